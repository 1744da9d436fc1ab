"""Mask of the tokens that the newest ones see: those of their own sequence up to themselves, and no more than a window of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.sample.native.kv_layout import PromptSegment

UNSEEN = -1e30
"""Score of a token that is not seen where all may be out of sight: a row of nothing but minus infinity has no soft-max."""


@dataclass(frozen=True)
class StepMasks:
    """Addition to the scores of one step, for layers of one window; None: every token is seen."""

    own: Sequence[Tensor | None]
    """Per segment of completions, broadcast to (rows, heads, queries, length)."""
    prompts: Sequence[Tensor | None]
    """Per segment of prompts, broadcast to (width, heads, queries, length)."""


def own_mask(
    offsets: Tensor, length: int, per_key: int, dtype: torch.dtype, window: int | None, reserved: int
) -> Tensor:
    """Return what is added to scores over a slot, shape (rows, 1, queries, length); one query stands for all of one token.

    Args:
        offsets: of each token in its slot, shape (rows, tokens).
        reserved: places at the start that are always seen: they stand for the prompt.
    """
    places, offsets = torch.arange(length, device=offsets.device), offsets[..., None]
    is_there = places <= offsets  # (rows, tokens, length)
    if window is not None:
        is_there &= (places > offsets - window) | (places < reserved)
    if offsets.shape[1] > 1:
        is_there = is_there.repeat_interleave(per_key, 1)
    return torch.zeros_like(is_there, dtype=dtype).masked_fill_(~is_there, float("-inf"))[:, None]


def prompt_mask(segment: PromptSegment, positions: Tensor, window: int, per_key: int) -> Tensor:
    """Return what is added to scores over shared prompts in layers with a window, shape (width, 1, queries, length).

    Args:
        segment: the prompts, and who reads them.
        positions: of each token in its text, shape (rows, tokens).
    """
    length = segment.keys[0].shape[1]
    places = torch.arange(length, device=positions.device)
    readers = positions[segment.rows].flatten(1).repeat_interleave(per_key, 1)  # (width, queries)
    is_there = (places > readers[..., None] - window) & (places < segment.lengths[:, None, None])
    return torch.zeros_like(is_there, dtype=torch.float32).masked_fill_(~is_there, UNSEEN)[:, None]


def causal_mask(start: int, stop: int, window: int | None, device: torch.device) -> Tensor:
    """Return which of the first `stop` tokens each of the last ones, from `start` on, sees; shape (tokens, stop)."""
    seen, seeing = torch.arange(stop, device=device), torch.arange(start, stop, device=device)[:, None]
    is_seen = seen <= seeing
    return is_seen if window is None else is_seen & (seen > seeing - window)
