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
from covey.sample.native.stop_strings import INTERVAL, Decode, StopStrings
from covey.sample.sampling import Sampling
from covey.types import Group, Prompt

COPIES = 2
"""A cache that grows by a token a step holds the old and the new copy for a moment."""


def sample_any_model(
    policy: nn.Module,
    autocast: Autocast,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: Sampling,
    decode: Decode,
    budget: int,
    max_sequences: int,
) -> Iterator[Group]:
    """Yield groups in the order of the prompts; see `covey.sample.engine.Engine.generate`.

    Args:
        autocast: makes the context in which the model computes.
        decode: token ids → text.
        budget: bytes that the cache may take; at least one sequence is decoded, whatever it takes.
        max_sequences: sequences that are decoded together at most.
    """
    table = SequenceTable(prompts, group_size, settings, next(policy.parameters()).device)
    stops = StopStrings(settings.stop_strings, decode)
    longest = table.prompt_width + settings.max_new_tokens
    fitting = budget // (COPIES * cache_bytes_per_token(policy) * longest)
    size = max(1, min(fitting, max_sequences))
    lengths: list[int] = []
    complete = 0
    for first in range(0, table.number, size):
        with inference_mode(policy), autocast():
            lengths += _decode_wave(policy, table, stops, range(first, min(first + size, table.number)))
        while complete < len(prompts) and (complete + 1) * group_size <= len(lengths):
            yield table.group(complete, lengths, stops.stopped, decode)
            complete += 1


def _decode_wave(policy: nn.Module, table: SequenceTable, stops: StopStrings, rows: range) -> list[int]:
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
        looks_at_text = bool(stops.stops) and int(active.written.max()) % INTERVAL == 0
        if looks_at_text or bool(active.done.any()):
            active = _without_ended(forward, active, table, stops, lengths)
        if not len(active.rows):
            return [lengths[row] for row in rows]
        logits = forward.step(active.token)


def _without_ended(
    forward: _Forward,
    active: ActiveSequences,
    table: SequenceTable,
    stops: StopStrings,
    lengths: dict[int, int],
) -> ActiveSequences:
    """Return the sequences that go on; the lengths of the others are noted."""
    kept = []
    columns = active.rows.tolist(), active.written.tolist(), active.done.tolist()
    for index, (row, written, done) in enumerate(zip(*columns, strict=True)):
        end = stops.end(row, table.ids[row, :written].tolist()) if stops.stops else None
        if done or end is not None:
            lengths[row] = written if end is None else end
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
