"""Compares the fast path's log-probabilities with the policy's own: once before anything is sampled, and as weights move."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.models.inference_mode import Autocast, inference_mode
from covey.models.inspect import accepted_arguments, meaningless_ids
from covey.sample.native.kv_cache import RESERVED, KvCache
from covey.sample.native.kv_layout import kv_layout
from covey.sample.native.llama import DecodeStep, Llama
from covey.sample.native.masks import StepMasks, own_mask, prompt_mask
from covey.sample.native.shown import PromptPictures
from covey.sample.native.weights import Weights
from covey.vision.sight import Sight, placed, typed

TOKENS = 24
"""Length of the text that is compared."""
DECODED = 9
"""Tokens at its end that are decoded one by one; those before are read as a prompt."""
WINDOW_CHECKED = 1024
"""A window up to this length is made shorter than the text that is compared first; the masks of longer ones are believed."""

BOUND = {torch.float32: 0.01, torch.bfloat16: 0.3, torch.float16: 0.3}
"""Largest mean gap that is taken for rounding, by dtype, in nats. In 16 bits two ways to round differ by some hundredths on
real models, a wrong mask by whole nats."""


@dataclass
class Watch:
    """When the next comparison is due, and on what."""

    policy: weakref.ref[nn.Module] | None = None
    """The policy whose first comparison has been made, whatever came of it."""
    version: int = 0
    """Weights that were loaded since the first comparison."""
    text: tuple[int, ...] = ()
    """Ids of a prompt and a completion of the last call."""
    is_stale: bool = True
    """Whether weights have been loaded that were not read yet."""
    has_seen: bool = False
    """Whether a prompt with pictures has been compared with these weights, or those of the last comparison."""


def first_text(weights: Weights) -> list[int]:
    """Return ids of no meaning, more than the longest window that is checked holds."""
    windows = [window for window in weights.shape.windows if window <= WINDOW_CHECKED]
    number = max(TOKENS, *(window + DECODED for window in windows)) if windows else TOKENS
    return meaningless_ids(len(weights.embedding), min(number, weights.shape.longest or number))


def behind(weights: Weights, prompt: Sequence[int], placeholders: Collection[int]) -> list[int]:
    """Return a prompt with ids of no meaning behind it, none of which stands for a part of a picture."""
    ids = [i for i in first_text(weights) if i not in placeholders]
    return [*prompt, *ids[:DECODED]]


def gap(
    policy: nn.Module,
    autocast: Autocast,
    weights: Weights,
    shares_prompts: bool,
    ids: Sequence[int],
    seen: tuple[Sight, PromptPictures] | None = None,
) -> float:
    """Return the mean over positions of the expected absolute gap of log-probabilities, in nats.

    Args:
        autocast: makes the context in which the policy computes.
        shares_prompts: how the fast path stores prompts.
        ids: a text; its last tokens are compared.
        seen: the pictures at its beginning, for both; None: there are none.
    """
    prefilled = max(1, len(ids) - DECODED)
    text = torch.tensor([list(ids)], device=weights.device)
    compared = len(ids) - prefilled + 1
    arguments: dict[str, Any] = (
        {"logits_to_keep": compared} if "logits_to_keep" in accepted_arguments(policy) else {}
    )
    arguments |= {} if seen is None else _arguments(seen[0], ids, weights.device)
    with inference_mode(policy) as model, autocast():
        logits: Tensor = model(input_ids=text, use_cache=False, **arguments).logits
    own = torch.log_softmax(logits[0, -compared:].float(), -1)  # (positions, vocab)
    fast = torch.log_softmax(
        _fast_logits(weights, ids, prefilled, shares_prompts, None if seen is None else seen[1]), -1
    )
    difference = ((own - fast).abs() * own.exp()).sum(-1).mean()
    return float(difference) if torch.isfinite(difference) else float("inf")


def _arguments(sight: Sight, ids: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """Return what the policy's own pass takes beside the ids of a prompt with pictures and what is behind it."""
    arguments = {**sight.inputs, **typed([sight], [len(ids)], len(ids))}
    if sight.positions is not None:
        arguments["position_ids"] = placed(sight, len(ids))[:, None]
    return {name: value.to(device) for name, value in arguments.items()}


@torch.inference_mode()
def _fast_logits(
    weights: Weights, ids: Sequence[int], prefilled: int, shares_prompts: bool, shown: PromptPictures | None
) -> Tensor:
    """Return logits from the last prompt token on: a prompt that two completions share, then one token at a time."""
    device, shape, model = weights.device, weights.shape, Llama(weights, len(ids))
    cache = KvCache(weights.kv_format, 1 << 40, shares_prompts)
    cache.add_prompts({0: prefilled})
    states = [
        model.prefill(
            cache, [(0, ids[:prefilled])], max(1, prefilled // 2), None if shown is None else {0: shown}
        )[0]
    ]
    cache.add_completions({0: 0, 1: 0})
    reserved = RESERVED if shares_prompts else 0
    for position in range(prefilled, len(ids)):
        offset = position - prefilled + RESERVED if shares_prompts else position
        cache.make_room(np.full(2, offset + 1))
        layout = kv_layout(cache, {0: 0, 1: 0}, spare=2)
        positions, offsets = (torch.full((2, 1), n, device=device) for n in (position, offset))
        masks: dict[int | None, StepMasks] = {None: StepMasks([None], [s.mask for s in layout.prompts])}
        for window in shape.windows:
            own = own_mask(offsets, offset + 1, shape.queries_per_key, weights.dtype, window, reserved)
            prompts = [prompt_mask(s, positions, window, shape.queries_per_key) for s in layout.prompts]
            masks[window] = StepMasks([own], prompts)
        turned = positions if shown is None else positions + shown.shift
        step = DecodeStep(layout, offsets, turned, [offset + 1], masks)
        states.append(model.step(torch.full((2, 1), ids[position], device=device), step)[1])
    return model.logits(torch.stack(states)).float()
