"""Attention over packed rows: each completion sees its prompt and itself, and nothing else.

Registered with transformers' attention interface, so that it serves every decoder that goes through it, adapters and
gradient checkpointing included. Only pairs that matter are computed: on CPU by `blockwise`, elsewhere by PyTorch's fused
kernels, to which the completions of a group are a batch of queries over keys that begin with the prompt's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from covey.kernels.blockwise_attention import Section, blockwise_attention
from covey.models.inspect import compute_dtype

NAME = "covey_packed"
HARMLESS = frozenset(
    (
        "cache",
        "cache_position",
        "output_attentions",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "use_cache",
    )
)
"""What layers may pass that changes no score. Longer sequences than `sliding_window` never come here."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sections: tuple[Section, ...] | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function of a packed row.

    Args:
        query: shape (1, heads, tokens, width).
        key, value: shape (1, key heads, tokens, width).
        sections: the groups in the row.
        sliding_window: no sequence of the row is longer; see `covey.update.forward`.
        more: of no effect, or refused.

    Returns:
        Shape (1, tokens, heads, width).

    Raises:
        TypeError: attention has a part that is not computed here, such as a cap on its scores or sinks.
    """
    assert sections is not None, f"{type(module).__name__} does not pass the layout on"
    _refuse_unknown(module, more if is_causal in (None, True) else {**more, "is_causal": is_causal})
    # Autocast leaves rotated queries and keys in float32; what the products take is what should be kept.
    query, key, value = (x.to(compute_dtype(query.device, query.dtype)) for x in (query, key, value))
    if query.device.type == "cpu" and dropout == 0:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return blockwise_attention(query[0], key[0], value[0], sections, scale)[None], None
    given = (query, key, value, sections, scaling, dropout)
    if torch.is_grad_enabled() and query.requires_grad:
        return checkpoint(_attend, *given, use_reentrant=False, preserve_rng_state=dropout > 0), None
    return _attend(*given), None


def _refuse_unknown(module: nn.Module, more: dict[str, Any]) -> None:
    """A comparison of outputs does not tell in half precision: its rounding hides a cap that scores rarely reach."""
    unknown = sorted(name for name, value in more.items() if value is not None and name not in HARMLESS)
    if unknown:
        raise TypeError(
            f"{type(module).__name__} uses {', '.join(unknown)}, which packed attention does not compute"
        )


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sections: tuple[Section, ...],
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Shape (1, tokens, heads, width). Run again in the backward pass: keys and values that are repeated for every head
    and every completion would be a third of what a layer keeps, and more with a long prompt."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    q, k, v = query[0], key[0], value[0]
    return torch.cat([part for s in sections for part in _section(q, k, v, s, scale, dropout)])[None]


def _section(
    q: Tensor, k: Tensor, v: Tensor, s: Section, scale: float | None, dropout: float
) -> Iterator[Tensor]:
    """Outputs of a group in the order of its tokens; each of shape (tokens, heads, width)."""
    prompt = slice(s.start, s.start + s.prompt)
    own = scaled_dot_product_attention(
        q[None, :, prompt],
        k[None, :, prompt],
        v[None, :, prompt],
        is_causal=True,
        scale=scale,
        dropout_p=dropout,
    )
    yield own[0].transpose(0, 1)
    if sum(s.inputs) == 0:
        return
    rows = slice(prompt.stop, s.stop)
    queries, keys, values = (_split(x[:, rows], s.inputs) for x in (q, k, v))
    keys = _behind(k[:, prompt], keys)
    values = _behind(v[:, prompt], values)
    mask = _lower_right(queries.shape[2], keys.shape[2], q.device)
    out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, dropout_p=dropout)
    yield _joined(out, s.inputs)


def _split(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(heads, tokens, width) → (completions, heads, longest, width), padded on the right."""
    heads, _, width = x.shape
    if len(set(lengths)) == 1:
        return x.reshape(heads, len(lengths), lengths[0], width).transpose(0, 1)
    padded = torch.nn.utils.rnn.pad_sequence(list(x.transpose(0, 1).split(lengths)), batch_first=True)
    return padded.transpose(1, 2)


def _joined(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(completions, heads, longest, width) → (tokens, heads, width), the padding dropped."""
    x = x.transpose(1, 2)
    if len(set(lengths)) == 1:
        return x.flatten(0, 1)
    kept = torch.arange(x.shape[1], device=x.device) < torch.tensor(lengths, device=x.device)[:, None]
    return x[kept]


def _behind(prompt: Tensor, completions: Tensor) -> Tensor:
    """Keys or values of a group's completions, each with the prompt's in front."""
    return torch.cat([prompt[None].expand(completions.shape[0], -1, -1, -1), completions], 2)


def _lower_right(queries: int, keys: int, device: torch.device) -> Tensor:
    """Query i sees keys up to i + keys - queries. Shape (queries, keys), bool."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """The model's layers attend over packed rows; what they used before comes back whatever happens.

    It has to stay in force until the backward pass is done: checkpointed layers run again there.
    """
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, c._attn_implementation) for c in configs.values() if hasattr(c, "_attn_implementation")]
    try:
        for config, _ in before:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


AttentionInterface.register(NAME, packed_attention)
