"""Compares the fast path's log-probabilities with the policy's own, once per policy, before anything is sampled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covey.models.inference_mode import Autocast, inference_mode
from covey.sample.native.kv_cache import RESERVED, KvCache
from covey.sample.native.kv_layout import kv_layout
from covey.sample.native.llama import DecodeStep, Llama
from covey.sample.native.weights import Weights

TOKENS = 24
"""Length of the text that is compared. Five eighths are read as a prompt; the rest is decoded token by token."""

BOUND = {torch.float32: 0.01, torch.bfloat16: 0.3, torch.float16: 0.3}
"""Largest mean gap that is taken for rounding, by dtype, in nats. In 16 bits two ways to round differ by some hundredths on
real models, a wrong mask by whole nats."""


def gap(policy: nn.Module, autocast: Autocast, weights: Weights, shares_prompts: bool) -> float:
    """Return the mean over positions of the expected absolute gap of log-probabilities, in nats.

    Args:
        autocast: makes the context in which the policy computes.
        weights: of the fast path.
        shares_prompts: how the fast path stores prompts.
    """
    vocab = len(weights.embedding)
    ids = [(7919 * i + 13) % vocab for i in range(min(TOKENS, weights.shape.longest or TOKENS))]
    prefilled = max(1, len(ids) * 5 // 8)
    with inference_mode(policy) as model, autocast():
        logits: Tensor = model(input_ids=torch.tensor([ids], device=weights.device), use_cache=False).logits
    own = torch.log_softmax(logits[0, prefilled - 1 :].float(), -1)  # (positions, vocab)
    fast = torch.log_softmax(_fast_logits(weights, ids, prefilled, shares_prompts), -1)
    difference = ((own - fast).abs() * own.exp()).sum(-1).mean()
    return float(difference) if torch.isfinite(difference) else float("inf")


@torch.inference_mode()
def _fast_logits(weights: Weights, ids: list[int], prefilled: int, shares_prompts: bool) -> Tensor:
    """Return logits from the last prompt token on: a prompt that two completions share, then one token at a time."""
    device = weights.device
    cache = KvCache(weights.kv_format, 1 << 40, shares_prompts)
    model = Llama(weights, len(ids))
    cache.add_prompts({0: prefilled})
    states = [model.prefill(cache, [(0, ids[:prefilled])], max(1, prefilled // 2))[0]]
    cache.add_completions({0: 0, 1: 0})
    layout = kv_layout(cache, {0: 0, 1: 0}, spare=2)
    for position in range(prefilled, len(ids)):
        offset = position - prefilled + RESERVED if shares_prompts else position
        positions, offsets = (torch.full((2, 1), n, device=device) for n in (position, offset))
        step = DecodeStep(layout, offsets, positions, [offset + 1], [None])
        states.append(model.step(torch.full((2, 1), ids[position], device=device), step)[1])
    return model.logits(torch.stack(states)).float()
