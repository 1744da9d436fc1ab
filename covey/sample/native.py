"""The engine that needs nothing but PyTorch: decodes with the policy's own forward pass and a key-value cache.

Each distinct prompt is read once, its keys and values are repeated for its group, and sequences leave the batch when
they end. Prompts are padded on the left; positions are passed to the model, so that models with absolute positions see
the same numbers as without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from covey.causal import accepted_arguments
from covey.errors import EngineError
from covey.groups import Group, Prompt
from covey.sample.decoding import NEVER, draw, penalize_repetition
from covey.sample.lending import lent
from covey.sample.restrictions import forbidden, has_restrictions
from covey.sample.rows import Decode, Row, new_rows
from covey.sample.settings import Sampling


class NativeEngine:
    """Samples with the policy's own forward pass; see `covey.sample.engine.Engine` for the contract.

    Args:
        decode: token ids → text without end and padding tokens.
        autocast: makes the context in which the model computes, for example bfloat16 autocast.
    """

    def __init__(self, decode: Decode, autocast: Any = nullcontext) -> None:
        self.decode = decode
        self.autocast: type[AbstractContextManager[Any]] = autocast
        self.policy: nn.Module | None = None

    def load(self, policy: nn.Module) -> None:
        """Sample from this module; its weights are read where they are, so nothing is copied."""
        self.policy = policy

    def generate(self, prompts: Sequence[Prompt], group_size: int, settings: Sampling) -> Iterator[Group]:
        if self.policy is None:
            raise EngineError("The engine has no policy yet. Call load(policy) before generate(...).")
        if not prompts:
            return
        rows = new_rows(prompts, group_size, settings)
        with lent(self.policy) as policy, self.autocast():
            self._decode_all(_Forward(policy, prompts, group_size), rows, settings)
        for position, prompt in enumerate(prompts):
            siblings = rows[position * group_size : (position + 1) * group_size]
            yield Group(prompt, tuple(row.completion(settings, self.decode) for row in siblings))

    def _decode_all(self, forward: _Forward, rows: list[Row], settings: Sampling) -> None:
        """Draw tokens until every sequence has ended."""
        live = rows
        logits = forward.prefill()
        while True:
            self._draw(logits, live, settings)
            kept = [i for i, row in enumerate(live) if row.finish is None]
            if not kept:
                return
            if len(kept) < len(live):
                forward.keep(kept)
                live = [live[i] for i in kept]
            logits = forward.step([row.ids[-1] for row in live])

    def _draw(self, logits: Tensor, rows: list[Row], settings: Sampling) -> None:
        logits = logits.float()
        uniform = torch.tensor([row.uniform for row in rows], dtype=torch.float64, device=logits.device)
        drawn = draw(logits, adjusted(logits, rows, settings), uniform, settings)
        columns = (drawn.ids.tolist(), drawn.logprobs.tolist(), drawn.policy_logprobs.tolist())
        for row, token, logprob, policy_logprob in zip(rows, *columns, strict=True):
            row.append(token, logprob, policy_logprob, settings, self.decode)


def adjusted(logits: Tensor, rows: Sequence[Row], settings: Sampling) -> Tensor:
    """Logits after the options that look at what was said so far; shape (sequences, vocab), float32."""
    if settings.repetition_penalty != 1.0:
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for number, row in enumerate(rows):
            seen[number, torch.tensor([*row.prompt.ids, *row.ids], device=logits.device)] = True
        logits = penalize_repetition(logits, seen, settings.repetition_penalty)
    if settings.padding_id is not None:
        logits = logits.clone()
        logits[:, settings.padding_id] = NEVER
    if has_restrictions(settings):
        logits = logits.clone()
        for number, row in enumerate(rows):
            never = forbidden(settings, row.prompt.ids, row.ids)
            logits[number, torch.tensor(sorted(never), dtype=torch.long, device=logits.device)] = NEVER
    return logits


class _Forward:
    """The policy's forward pass over a batch of sequences that grows by a token a step."""

    def __init__(self, policy: nn.Module, prompts: Sequence[Prompt], group_size: int) -> None:
        self.policy = policy
        self.group_size = group_size
        self.device = next(policy.parameters()).device
        self.prompts = [list(p.ids) for p in prompts]
        self.accepted = accepted_arguments(policy)
        # transformers 5.24 renames the argument.
        self.cache_name = "cache" if "cache" in self.accepted else "past_key_values"
        self.cache: Any = DynamicCache(config=getattr(policy, "config", None))
        self.mask = torch.zeros(0)
        self.positions = torch.zeros(0)

    def prefill(self) -> Tensor:
        """Read every prompt once; next-token logits for each sequence of its group, shape (sequences, vocab)."""
        longest = max(len(ids) for ids in self.prompts)
        padded = [[0] * (longest - len(ids)) + ids for ids in self.prompts]
        self.mask = torch.tensor(
            [[0] * (longest - len(i)) + [1] * len(i) for i in self.prompts], device=self.device
        )
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        logits = self._call(torch.tensor(padded, device=self.device), positions)
        self.cache.batch_repeat_interleave(self.group_size)
        self.mask = self.mask.repeat_interleave(self.group_size, 0)
        self.positions = (positions[:, -1:] + 1).repeat_interleave(self.group_size, 0)
        return logits.repeat_interleave(self.group_size, 0)

    def step(self, tokens: list[int]) -> Tensor:
        """Add one token to each sequence; next-token logits, shape (sequences, vocab)."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        logits = self._call(torch.tensor(tokens, device=self.device)[:, None], self.positions)
        self.positions = self.positions + 1
        return logits

    def keep(self, rows: list[int]) -> None:
        """Only these sequences go on."""
        index = torch.tensor(rows, device=self.device)
        self.cache.batch_select_indices(index)
        self.mask, self.positions = self.mask[index], self.positions[index]

    def _call(self, ids: Tensor, positions: Tensor) -> Tensor:
        arguments: dict[str, Any] = {
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
