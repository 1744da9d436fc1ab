"""Sampling of a command that has no trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from covey.sample.native.engine import NativeEngine
    from covey.sample.prompts import PromptReader
    from covey.vision.eyes import ProcessorEyes


def reader_of(policy: nn.Module, processing: Any, root: str | Path | None) -> PromptReader:
    """Return what reads the prompts of a policy, with their pictures where it sees.

    Args:
        processing: the processor of a policy that sees, the tokenizer of others.
        root: folder that paths of pictures lie below; None: no path is opened.
    """
    from covey.models.inspect import context_length
    from covey.models.loading import tokenizer_of
    from covey.sample.prompts import PromptReader
    from covey.vision.eyes import blindness, eyes_of
    from covey.vision.pictures import PictureLimits

    eyes = eyes_of(policy, processing, PictureLimits(None if root is None else Path(root)))
    return PromptReader(
        tokenizer_of(processing),
        context=context_length(policy),
        eyes=eyes,
        blind=blindness(eyes, policy),
    )


def engine_of(
    policy: nn.Module, tokenizer: PreTrainedTokenizerBase, eyes: ProcessorEyes | None = None
) -> tuple[NativeEngine, tuple[int, ...]]:
    """Return an engine that samples from a policy, and the ids that end a completion; `eyes` show it pictures of prompts."""
    from covey.config.threads import settle_threads
    from covey.sample.chat import decode_text, stop_ids
    from covey.sample.native.engine import NativeEngine

    if all(p.device.type == "cpu" for p in policy.parameters()):
        settle_threads(sum(p.numel() for p in policy.parameters()))
    ending = stop_ids(tokenizer, getattr(policy, "generation_config", None))
    not_text = frozenset(i for i in (*ending, tokenizer.pad_token_id) if i is not None)
    engine = NativeEngine(lambda ids: decode_text(tokenizer, ids, not_text), eyes=eyes)
    engine.load(policy)
    return engine, ending


def never_drawn(policy: Any, tokenizer: Any, ending: Sequence[int]) -> dict[str, Any]:
    """Return the ids that training never draws: padding that ends nothing, and ids without a token."""
    from covey.models.fitness import unknown_ids

    padding = tokenizer.pad_token_id
    return {
        "padding_id": None if padding in ending else padding,
        "unknown_ids": tuple(unknown_ids(tokenizer, policy, ending)),
    }
