"""The general path: decodes any causal language model with its own forward pass and a key-value cache.

Each distinct prompt is read once, its keys and values are repeated for its completions, and sequences leave the batch when
they end. Prompts are padded on the left; positions are passed to the model, so that models with absolute positions see
the same numbers as without padding. Where the budget does not hold all sequences, they are decoded in waves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from covey.models.inspect import accepted_arguments
from covey.sample.native.inference_mode import Autocast, inference_mode
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.memory_budget import cache_bytes_per_token
from covey.sample.native.sequences import ActiveSequences, SequenceTable
from covey.sample.native.stop_strings import INTERVAL
from covey.types import Group

COPIES = 2
"""A cache that grows by a token a step holds the old and the new copy for a moment."""


def sample_any_model(
    policy: nn.Module, autocast: Autocast, table: SequenceTable, budget: int, max_sequences: int
) -> Iterator[Group]:
    """Yield groups in the order of the prompts; see `covey.sample.engine.Engine.generate`.

    Args:
        autocast: makes the context in which the model computes.
        table: the sequences of the call.
        budget: bytes that the cache may take; at least one sequence is decoded, whatever it takes.
        max_sequences: sequences that are decoded together at most.
    """
    longest = table.prompt_width + table.settings.max_new_tokens
    fitting = budget // (COPIES * cache_bytes_per_token(policy) * longest)
    size = max(1, min(fitting, max_sequences))
    lengths: list[int] = []
    for first in range(0, table.number, size):
        with inference_mode(policy), autocast():
            lengths += _decode_wave(policy, table, range(first, min(first + size, table.number)))
        for position in range(first // table.group_size, len(lengths) // table.group_size):
            yield table.group(position, lengths)


def _decode_wave(policy: nn.Module, table: SequenceTable, rows: range) -> list[int]:
    """Decode these rows of the table to their ends; returns their lengths."""
    prompts = [table.prompts[row // table.group_size].ids for row in rows]
    distinct = {ids: number for number, ids in enumerate(dict.fromkeys(prompts))}
    forward = _Forward(policy)
    active = ActiveSequences.start(torch.tensor(list(rows), device=forward.device))
    logits = forward.prefill(list(distinct), [distinct[ids] for ids in prompts])
    restrictions = Restrictions(table.settings, logits.shape[-1], logits.device)
    lengths: dict[int, int] = {}
    while True:
        active.advance(logits.float(), table, restrictions)
        looks_at_text = bool(table.stops.stops) and int(active.written.max()) % INTERVAL == 0
        if looks_at_text or bool(active.done.any()):
            active = _without_ended(forward, active, table, lengths)
        if not len(active.rows):
            return [lengths[row] for row in rows]
        logits = forward.step(active.token)


def _without_ended(
    forward: _Forward, active: ActiveSequences, table: SequenceTable, lengths: dict[int, int]
) -> ActiveSequences:
    """Return the sequences that go on; the lengths of the others are noted."""
    kept = []
    for index, (row, is_over, length) in enumerate(
        zip(active.rows.tolist(), *active.ends(table), strict=True)
    ):
        if is_over:
            lengths[row] = length
        else:
            kept.append(index)
    if len(kept) == len(active.rows):
        return active
    remaining = torch.tensor(kept, dtype=torch.long, device=forward.device)
    forward.select(remaining)
    return ActiveSequences(
        active.rows[remaining], active.written[remaining], active.token[remaining], active.done[remaining]
    )


class _Forward:
    """The policy's forward pass over a batch of sequences that grows by a token a step."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.device = next(policy.parameters()).device
        self.accepted = accepted_arguments(policy)
        # transformers 5.24 renames the argument.
        self.cache_name = "cache" if "cache" in self.accepted else "past_key_values"
        self.cache = DynamicCache(config=getattr(policy, "config", None))
        self.mask = self.positions = torch.zeros(0)

    def prefill(self, prompts: Sequence[Sequence[int]], order: Sequence[int]) -> Tensor:
        """Read each prompt once; next-token logits of the sequences, shape (sequences, vocab).

        Args:
            order: which prompt each sequence continues.
        """
        longest = max(len(ids) for ids in prompts)
        padded = torch.tensor([[0] * (longest - len(i)) + list(i) for i in prompts], device=self.device)
        self.mask = torch.tensor(
            [[0] * (longest - len(i)) + [1] * len(i) for i in prompts], device=self.device
        )
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)  # (prompts, longest)
        logits = self._call(padded, positions)
        self.positions = positions[:, -1:] + 1
        index = torch.tensor(order, device=self.device)
        self.select(index)
        return logits[index]

    def step(self, tokens: Tensor) -> Tensor:
        """Add one token to each sequence; next-token logits, shape (sequences, vocab)."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        logits = self._call(tokens[:, None], self.positions)
        self.positions = self.positions + 1
        return logits

    def select(self, index: Tensor) -> None:
        """Go on with these sequences; one that is named more than once is repeated."""
        self.cache.batch_select_indices(index)
        self.mask, self.positions = self.mask[index], self.positions[index]

    def _call(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return next-token logits after the last position, shape (rows, vocab)."""
        arguments: dict[str, object] = {
            "input_ids": ids,
            "attention_mask": self.mask,
            self.cache_name: self.cache,
            "use_cache": True,
        }
        if "position_ids" in self.accepted:
            arguments["position_ids"] = positions
        if "logits_to_keep" in self.accepted:
            arguments["logits_to_keep"] = 1
        logits: Tensor = self.policy(**arguments).logits[:, -1]
        return logits
