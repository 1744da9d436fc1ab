"""Attention over packed rows by matrix products: a block of queries at a time, each sees its prompt and the tokens before it.

CPUs are best at large matrix products. The query heads that share a key head are rows of one product, and a block's
scores stay in the cache between the product, the soft-max and the next product. The backward pass makes the weights
again, so that only queries, keys and values are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Query tokens at a time. Keys behind a block are not looked at, which saves up to half of a long sequence."""


@dataclass(frozen=True)
class PackedSection:
    """The place of one group within a packed row; numbers count tokens."""

    start: int
    """First token of its prompt."""
    prompt: int
    """Length of the prompt."""
    inputs: tuple[int, ...]
    """Length of each completion without its last token, which predicts nothing."""
    spans: tuple[tuple[int, int], ...] = ()
    """Places in the prompt, first and one past the last, of tokens that see one another both ways; in order, none within another."""
    in_windows: bool = False
    """Whether they do so only in layers with a window."""

    @property
    def stop(self) -> int:
        return self.start + self.prompt + sum(self.inputs)


@dataclass(frozen=True)
class Block:
    """Some query tokens of one sequence, and the keys that they see."""

    queries: slice
    prompt: slice
    """Seen by all of them; empty where the block is part of a prompt."""
    own: slice
    """Keys of the same sequence; the last of them are the queries' own, seen up to each token itself."""
    limits: tuple[int, ...] = ()
    """For each query, one past the last key that it sees, where some see beyond themselves; none: itself is the last."""


def blocks(sections: tuple[PackedSection, ...], size: int) -> Iterator[Block]:
    """Yield the blocks of all prompts and completions of a packed row, of at most `size` queries each."""
    for s in sections:
        start = s.start
        for number, length in enumerate((s.prompt, *s.inputs)):
            prompt = slice(s.start, s.start + (s.prompt if number else 0))
            for first in range(start, start + length, size):
                last = min(first + size, start + length)
                limits = () if number else seen_until(s, range(first - start, last - start))
                yield Block(slice(first, last), prompt, slice(start, max(limits, default=last)), limits)
            start += length


def seen_until(section: PackedSection, places: range) -> tuple[int, ...]:
    """Return one past the last token of the row that each of these places of a prompt sees; empty where that is itself."""
    if not section.spans:
        return ()
    limits = [place + 1 for place in places]
    for first, stop in section.spans:
        for place in range(max(first, places.start), min(stop, places.stop)):
            limits[place - places.start] = stop
    is_causal = all(limit == place + 1 for place, limit in zip(places, limits, strict=True))
    return () if is_causal else tuple(section.start + limit for limit in limits)


class BlockwiseAttention(torch.autograd.Function):
    """soft-max(q kᵀ × scale) v over the blocks of a packed row."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sections: tuple[PackedSection, ...], scale: float
    ) -> Tensor:
        heads, tokens, _ = query.shape
        out = query.new_empty(tokens, heads, value.shape[2])
        with torch.autocast(query.device.type, enabled=False):
            for block in blocks(sections, BLOCK):
                queries = _by_key_head(query, key, block)
                weights = _weights(queries, _seen(key, block), block, scale)
                attended = torch.bmm(weights, _seen(value, block))  # (key heads, rows, value width)
                out[block.queries] = attended.view(heads, -1, value.shape[2]).transpose(0, 1)
        ctx.save_for_backward(query, key, value)
        ctx.sections, ctx.scale = sections, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        heads, _, width = query.shape
        by_head = gradient.transpose(0, 1)  # (heads, tokens, value width)
        d_query = torch.empty_like(query)
        d_key, d_value = (
            torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (key, value)
        )
        for block in blocks(ctx.sections, BLOCK):
            queries, d_out = (_by_key_head(x, key, block) for x in (query, by_head))
            keys = _seen(key, block)
            weights = _weights(queries, keys, block, ctx.scale)
            _add_seen(d_value, block, torch.bmm(weights.transpose(1, 2), d_out))
            d_weights = torch.bmm(d_out, _seen(value, block).transpose(1, 2))
            d_scores = torch._softmax_backward_data(
                d_weights, weights, -1, weights.dtype, grad_input=d_weights
            )
            d_query[:, block.queries] = _scaled(d_scores, keys, ctx.scale).view(heads, -1, width)
            _add_seen(d_key, block, _scaled(d_scores.transpose(1, 2), queries, ctx.scale))
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), None, None


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, sections: tuple[PackedSection, ...], scale: float
) -> Tensor:
    """Let every token attend to its prompt, to itself and to the tokens of its completion before it; within a span, both ways.

    Args:
        query: shape (heads, tokens, width).
        key: shape (key heads, tokens, width), of the same dtype.
        value: shape (key heads, tokens, value width), of the same dtype; latent attention (DeepSeek) has narrower values.
        sections: the groups in the row; together they cover it.
        scale: scores are multiplied by it.

    Returns:
        Shape (tokens, heads, value width).
    """
    attended: Tensor = BlockwiseAttention.apply(query, key, value, sections, scale)
    return attended


def _by_key_head(query: Tensor, key: Tensor, block: Block) -> Tensor:
    """Reshape (heads, tokens, width) → (key heads, heads per key head × tokens of the block, width)."""
    return query[:, block.queries].reshape(key.shape[0], -1, query.shape[2])


def _seen(x: Tensor, block: Block) -> Tensor:
    """Return the keys or values that the block sees, shape (key heads, keys, width): the prompt's, then its own."""
    return torch.cat([x[:, block.prompt], x[:, block.own]], 1)


def _add_seen(total: Tensor, block: Block, part: Tensor) -> None:
    """Add the gradient of the result of `_seen` to where it came from."""
    prompt = block.prompt.stop - block.prompt.start
    total[:, block.prompt] += part[:, :prompt]
    total[:, block.own] += part[:, prompt:]


def _weights(queries: Tensor, keys: Tensor, block: Block, scale: float) -> Tensor:
    """Compute attention weights, shape (key heads, rows, keys)."""
    scores = _scaled(queries, keys.transpose(1, 2), scale)
    tokens = block.queries.stop - block.queries.start
    if block.limits:
        own = torch.arange(block.own.start, block.own.stop, device=scores.device)
        hidden = own >= torch.tensor(block.limits, device=scores.device)[:, None]  # (queries, own keys)
        rows = scores.view(-1, tokens, keys.shape[1])[..., -len(own) :]
        rows.masked_fill_(hidden, -torch.inf)
        return torch.softmax(scores, -1, out=scores)
    later = torch.full((tokens, tokens), -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    scores.view(-1, tokens, keys.shape[1])[..., -tokens:] += later
    return torch.softmax(scores, -1, out=scores)


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Compute scale × a b, without another pass over the product."""
    return torch.baddbmm(
        a.new_empty(()).expand(a.shape[0], a.shape[1], b.shape[2]), a, b, beta=0, alpha=scale
    )
