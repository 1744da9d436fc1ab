"""Does the fast path compute what the policy computes? Asked once per policy, before anything is sampled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from covey.sample.native.inference_mode import lent
from covey.sample.native.kv_cache import RESERVED, Cache
from covey.sample.native.kv_layout import arrange
from covey.sample.native.kv_pool import Layout
from covey.sample.native.llama import Llama, Step
from covey.sample.native.weights import Weights

TOKENS = 24
"""Length of the text that is compared. Five eighths are read as a prompt; the rest is decoded token by token."""

BOUND = {torch.float32: 0.01}
"""Largest mean gap by dtype, in nats."""

ROUGH_BOUND = 0.3
"""The same for 16-bit dtypes: two ways to round differ by some hundredths on real models, a wrong mask by whole nats."""


def gap(policy: nn.Module, autocast: Any, weights: Weights, shares_prompts: bool) -> float:
    """Mean over positions of the expected absolute gap of log-probabilities, in nats.

    Args:
        autocast: makes the context in which the policy computes.
        weights: what the fast path computes with.
        shares_prompts: how the fast path stores prompts.
    """
    vocab = len(weights.embedding)
    ids = [(7919 * i + 13) % vocab for i in range(min(TOKENS, weights.shape.longest or TOKENS))]
    own = torch.log_softmax(_own(policy, autocast, ids, weights.device), -1)
    fast = torch.log_softmax(_fast(weights, ids, shares_prompts), -1)
    difference = ((own - fast).abs() * own.exp()).sum(-1).mean()
    return float(difference) if torch.isfinite(difference) else float("inf")


def bound(dtype: torch.dtype) -> float:
    """The largest gap that is taken for rounding."""
    return BOUND.get(dtype, ROUGH_BOUND)


def _own(policy: nn.Module, autocast: Any, ids: list[int], device: torch.device) -> Tensor:
    with lent(policy) as model, autocast():
        logits: Tensor = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
    return logits[0, _prefilled(ids) - 1 :].float()


def _prefilled(ids: list[int]) -> int:
    return max(1, len(ids) * 5 // 8)


@torch.inference_mode()
def _fast(weights: Weights, ids: list[int], shares_prompts: bool) -> Tensor:
    """Logits at the same positions: a prompt that two completions share, then one token at a time."""
    shape, device = weights.shape, weights.device
    layout = Layout(shape.layers, shape.kv_heads, shape.head_dim, weights.dtype, device)
    cache = Cache(layout, 1 << 40, shares_prompts, keys_transposed=device.type == "cpu")
    prefilled = _prefilled(ids)
    model = Llama(weights, len(ids))
    cache.add_prompts({0: prefilled})
    states = [model.prefill(cache, [(0, ids[:prefilled])], max(1, prefilled // 2))[0]]
    cache.add_completions({0: 0, 1: 0})
    arrangement = arrange(cache, {0: 0, 1: 0}, spare=2)
    for position in range(prefilled, len(ids)):
        place = position - prefilled + RESERVED if shares_prompts else position
        positions = torch.full((2, 1), position, device=device)
        places = torch.full((2, 1), place, device=device)
        step = Step(arrangement, places, positions, [place + 1], [None])
        states.append(model.step(torch.full((2, 1), ids[position], device=device), step)[1])
    return model.logits(torch.stack(states)).float()
