"""Attention over packed rows: each completion sees its prompt and itself, and nothing else. A prompt may have spans, such as pictures,
whose tokens see one another both ways.

Registered with transformers' attention interface, so that it serves every decoder that goes through it, adapters and
gradient checkpointing included. Only pairs that matter are computed: on CPU by `blockwise_attention`, elsewhere by PyTorch's
fused kernels, to which the completions of a group are a batch of queries over keys that begin with the prompt's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from covey.kernels.blockwise_attention import PackedSection, blockwise_attention, seen_until
from covey.models.inspect import compute_dtype

NAME = "covey_packed"
HARMLESS = frozenset(
    (
        "cache",
        "cache_position",
        "output_attentions",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "use_cache",
    )
)
"""Arguments of layers that change no score. Longer sequences than `sliding_window` never come here."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sections: tuple[PackedSection, ...] | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """Attend over a packed row, as transformers' attention interface asks.

    Args:
        query: shape (1, heads, tokens, width).
        key, value: shape (1, key heads, tokens, width).
        sections: the groups in the row.
        sliding_window: no sequence of the row is longer; see `covey.update.forward`. None: the layer has no window.
        more: of no effect, or refused.

    Returns:
        Shape (1, tokens, heads, width).

    Raises:
        TypeError: attention has a part that is not computed here, such as a cap on its scores or sinks.
    """
    assert sections is not None, f"{type(module).__name__} does not pass the layout on"
    if is_causal is False:
        more["is_causal"] = is_causal
    # By name: a comparison of outputs does not tell in half precision, whose rounding hides a cap that scores rarely reach.
    unknown = sorted(name for name, given in more.items() if given is not None and name not in HARMLESS)
    if unknown:
        raise TypeError(
            f"{type(module).__name__} uses {', '.join(unknown)}, which packed attention does not compute"
        )
    if sliding_window is None:
        sections = tuple(replace(s, spans=()) if s.in_windows else s for s in sections)
    # Autocast leaves rotated queries and keys in float32; the dtype of the products is the one to keep.
    query, key, value = (x.to(compute_dtype(query.device, query.dtype)) for x in (query, key, value))
    if query.device.type == "cpu" and dropout == 0:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return blockwise_attention(query[0], key[0], value[0], sections, scale)[None], None
    inputs = (query, key, value, sections, scaling, dropout)
    if torch.is_grad_enabled() and query.requires_grad:
        return checkpoint(fused_attention, *inputs, use_reentrant=False, preserve_rng_state=dropout > 0), None
    return fused_attention(*inputs), None


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sections: tuple[PackedSection, ...],
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attend by PyTorch's fused kernels: two calls per group, one for its prompt and one for its completions.

    Run again in the backward pass: keys and values that are repeated for every head and every completion would be a third
    of what a layer keeps, and more with a long prompt.

    Args:
        query: shape (1, heads, tokens, width).
        key, value: shape (1, key heads, tokens, width).

    Returns:
        Shape (1, tokens, heads, width).
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    parts = []
    for s in sections:
        prompt, rows = slice(s.start, s.start + s.prompt), slice(s.start + s.prompt, s.stop)
        q, k, v = (x[:, :, prompt] for x in (query, key, value))  # (1, heads, tokens of the prompt, width)
        limits = seen_until(s, range(s.prompt))
        both_ways = None
        if limits:
            places = torch.arange(s.prompt, device=query.device)
            both_ways = places < torch.tensor(limits, device=query.device)[:, None] - s.start
        own = scaled_dot_product_attention(
            q, k, v, both_ways, is_causal=both_ways is None, scale=scale, dropout_p=dropout
        )
        parts.append(own[0].transpose(0, 1))
        if sum(s.inputs) == 0:
            continue
        # (completions, heads, longest, width); keys and values have the prompt's in front
        queries, keys, values = (pad_completions(x[0, :, rows], s.inputs) for x in (query, key, value))
        keys, values = (
            torch.cat([x.expand(len(s.inputs), -1, -1, -1), y], 2) for x, y in ((k, keys), (v, values))
        )
        seen = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool, device=query.device)
        mask = seen.tril(keys.shape[2] - queries.shape[2])  # query i sees keys up to i + keys - queries
        out = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, dropout_p=dropout
        )
        parts.append(unpad_completions(out, s.inputs))
    return torch.cat(parts)[None]


def pad_completions(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Cut (heads, tokens, width) into (completions, heads, longest, width), padded on the right."""
    heads, _, width = x.shape
    if len(set(lengths)) == 1:
        return x.reshape(heads, len(lengths), lengths[0], width).transpose(0, 1)
    padded = torch.nn.utils.rnn.pad_sequence(list(x.transpose(0, 1).split(lengths)), batch_first=True)
    return padded.transpose(1, 2)


def unpad_completions(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Join (completions, heads, longest, width) to (tokens, heads, width), the padding dropped."""
    x = x.transpose(1, 2)
    if len(set(lengths)) == 1:
        return x.flatten(0, 1)
    kept = torch.arange(x.shape[1], device=x.device) < torch.tensor(lengths, device=x.device)[:, None]
    return x[kept]


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Let the model's layers of text attend over packed rows; their own attention comes back whatever happens.

    Of a model that sees, those of its decoder: a tower attends over pictures, also where its checkpointed layers run again.
    It has to stay in force until the backward pass is done: checkpointed layers run again there.
    """
    sees: Any = model
    text: nn.Module = sees.get_decoder() if hasattr(model, "get_image_features") else model
    configs = {id(c): c for m in text.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, c._attn_implementation) for c in configs.values() if hasattr(c, "_attn_implementation")]
    try:
        for config, _ in before:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


AttentionInterface.register(NAME, packed_attention)
