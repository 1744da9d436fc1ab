"""Attention over packed rows by matrix products: a block of queries at a time, each sees its prompt and what is before it.

What CPUs do best is large matrix products. The query heads that share a key head are rows of one product, and a block's
scores stay in the cache between the product, the soft-max and the next product. The backward pass makes the weights
again, so that queries, keys and values are all that is kept.
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
class Section:
    """One group within a packed row."""

    start: int
    """Where its prompt begins."""
    prompt: int
    """Tokens of the prompt."""
    inputs: tuple[int, ...]
    """Tokens of each completion that are read: all but its last."""

    @property
    def stop(self) -> int:
        return self.start + self.prompt + sum(self.inputs)


@dataclass(frozen=True)
class Block:
    """Some tokens of one sequence, and what they see."""

    queries: slice
    prompt: slice
    """Seen by all of them; empty where the block is part of a prompt."""
    own: slice
    """Keys of the same sequence; the last of them are the queries' own, seen up to each token itself."""


def blocks(sections: tuple[Section, ...], size: int) -> Iterator[Block]:
    """The blocks of all prompts and completions of a packed row."""
    for s in sections:
        behind = s.start + s.prompt
        yield from _blocks(s.start, s.prompt, slice(s.start, s.start), size)
        for length in s.inputs:
            yield from _blocks(behind, length, slice(s.start, s.start + s.prompt), size)
            behind += length


def _blocks(start: int, length: int, prompt: slice, size: int) -> Iterator[Block]:
    for first in range(start, start + length, size):
        last = min(first + size, start + length)
        yield Block(slice(first, last), prompt, slice(start, last))


class BlockwiseAttention(torch.autograd.Function):
    """soft-max(q kᵀ × scale) v over the blocks of a packed row."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sections: tuple[Section, ...], scale: float
    ) -> Tensor:
        heads, tokens, _ = query.shape
        out = query.new_empty(tokens, heads, value.shape[2])
        with torch.autocast(query.device.type, enabled=False):
            for block in blocks(sections, BLOCK):
                queries = _by_key_head(query, key, block)
                weights = _weights(queries, _seen(key, block), block, scale)
                attended = torch.bmm(weights, _seen(value, block))
                out[block.queries] = attended.view(heads, -1, value.shape[2]).transpose(0, 1)
        ctx.save_for_backward(query, key, value)
        ctx.sections, ctx.scale = sections, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        heads, _, width = query.shape
        by_head = gradient.transpose(0, 1)
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
    query: Tensor, key: Tensor, value: Tensor, sections: tuple[Section, ...], scale: float
) -> Tensor:
    """Attention of every token to its prompt, to itself and to what its completion has before it.

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
    """(heads, tokens, width) → (key heads, heads per key head × tokens of the block, width)."""
    return query[:, block.queries].reshape(key.shape[0], -1, query.shape[2])


def _seen(x: Tensor, block: Block) -> Tensor:
    """Keys or values that the block sees: those of the prompt, then its own."""
    return torch.cat([x[:, block.prompt], x[:, block.own]], 1)


def _add_seen(total: Tensor, block: Block, part: Tensor) -> None:
    """Add the gradient of what `_seen` gave to where it came from."""
    prompt = block.prompt.stop - block.prompt.start
    total[:, block.prompt] += part[:, :prompt]
    total[:, block.own] += part[:, prompt:]


def _weights(queries: Tensor, keys: Tensor, block: Block, scale: float) -> Tensor:
    """Attention weights, shape (key heads, rows, keys)."""
    scores = _scaled(queries, keys.transpose(1, 2), scale)
    tokens = block.queries.stop - block.queries.start
    later = torch.full((tokens, tokens), -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    scores.view(-1, tokens, keys.shape[1])[..., -tokens:] += later
    return torch.softmax(scores, -1, out=scores)


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """scale × a b, without another pass over the product."""
    return torch.baddbmm(
        a.new_empty(()).expand(a.shape[0], a.shape[1], b.shape[2]), a, b, beta=0, alpha=scale
    )
