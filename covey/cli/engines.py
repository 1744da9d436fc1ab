"""Sampling of a command that has no trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from covey.sample.native.engine import NativeEngine


def engine_of(policy: nn.Module, tokenizer: PreTrainedTokenizerBase) -> tuple[NativeEngine, tuple[int, ...]]:
    """Return an engine that samples from a policy, and the ids that end a completion."""
    from covey.config.threads import settle_threads
    from covey.sample.chat import decode_text, stop_ids
    from covey.sample.native.engine import NativeEngine

    if all(p.device.type == "cpu" for p in policy.parameters()):
        settle_threads(sum(p.numel() for p in policy.parameters()))
    ending = stop_ids(tokenizer, getattr(policy, "generation_config", None))
    not_text = frozenset(i for i in (*ending, tokenizer.pad_token_id) if i is not None)
    engine = NativeEngine(lambda ids: decode_text(tokenizer, ids, not_text))
    engine.load(policy)
    return engine, ending
