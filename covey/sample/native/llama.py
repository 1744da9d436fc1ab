"""The forward pass of the Llama family for sampling: one token per sequence and step, with few operations.

The stream between the layers is float32, whatever the products compute in. Queries carry the scale of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.kernels.decode_attention import over_completion, over_prompt
from covey.kernels.rms_norm import Norm, rms_normed
from covey.sample.native.chunked_prefill import Part, SideBySide, chunks, side_by_side
from covey.sample.native.kv_cache import Cache
from covey.sample.native.kv_layout import Arrangement, PromptSegment, Segment
from covey.sample.native.kv_pool import Pool
from covey.sample.native.weights import Layer, Weights


@dataclass(frozen=True)
class Step:
    """One step of a batch: where its tokens go, and what they see."""

    arrangement: Arrangement
    places: Tensor
    """Place of each token in the slot of its sequence, shape (rows, tokens)."""
    positions: Tensor
    """Position of each token in its text, shape (rows, tokens)."""
    lengths: Sequence[int]
    """Tokens that are read of each segment's slots."""
    masks: Sequence[Tensor | None]
    """Added to the scores of each segment, broadcast to (rows, heads, queries, length)."""


class Llama:
    """Computes with weights.

    Args:
        weights: of the policy.
        longest: positions that may occur.
    """

    def __init__(self, weights: Weights, longest: int) -> None:
        self.weights, self.longest = weights, longest
        self.turns = weights.rotations(longest)
        shape = weights.shape
        # Queries are scaled as they are turned.
        scale = torch.ones(shape.heads + shape.kv_heads, 1, device=weights.device)
        scale[: shape.heads] = shape.head_dim**-0.5
        self.scale = scale

    # --- decoding -----------------------------------------------------------------------------------------------------

    def step(self, tokens: Tensor, step: Step) -> Tensor:
        """Read tokens of every sequence of the batch; states after the last layer, shape (rows · tokens, hidden).

        Args:
            tokens: shape (rows, tokens).
        """
        states = self._embedded(tokens.reshape(-1))
        turns = self._turns(step.positions.reshape(-1))
        for number, layer in enumerate(self.weights.layers):
            queries, keys, values = self._heads(layer, states, turns)
            self._write(number, step, keys, values)
            attended = self._attend(number, step, queries)
            states += layer.attention_out(attended)
            states += self._mlp(layer, states)
        return states

    def _write(self, number: int, step: Step, keys: Tensor, values: Tensor) -> None:
        """Add the tokens' keys and values, shape (rows · tokens, heads, head_dim), to the slots."""
        tokens = step.places.shape[1]
        keys, values = keys.unflatten(0, (-1, tokens)), values.unflatten(0, (-1, tokens))
        for segment in step.arrangement.segments:
            rows = slice(segment.start, segment.start + segment.width)
            slots, places = segment.slots, step.places[rows]
            pool = segment.pool
            if pool.keys_transposed:
                pool.keys[number][slots, :, :, places] = keys[rows]
            else:
                pool.keys[number][slots, :, places] = keys[rows]
            pool.values[number][slots, :, places] = values[rows]

    def _attend(self, number: int, step: Step, queries: Tensor) -> Tensor:
        """Attention of queries of shape (rows · tokens, heads · head_dim); the result has the same shape."""
        tokens = step.places.shape[1]
        grouped = self._by_key(queries, tokens)
        prompt = self._over_prompts(number, step.arrangement, grouped)
        parts = [
            self._over_segment(segment, number, length, mask, grouped, prompt)
            for segment, length, mask in zip(step.arrangement.segments, step.lengths, step.masks, strict=True)
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._by_token(out, tokens)

    def _by_key(self, queries: Tensor, tokens: int) -> Tensor:
        """Queries that meet the same keys, side by side; shape (rows · kv heads, tokens · queries per key, head_dim)."""
        shape = self.weights.shape
        if tokens > 1:
            split = queries.view(-1, tokens, shape.kv_heads, shape.queries_per_key * shape.head_dim)
            queries = split.transpose(1, 2).reshape(queries.shape)
        return queries.view(-1, tokens * shape.queries_per_key, shape.head_dim)

    def _by_token(self, grouped: Tensor, tokens: int) -> Tensor:
        """The way back, to shape (rows · tokens, heads · head_dim)."""
        shape = self.weights.shape
        width = shape.heads * shape.head_dim
        if tokens == 1:
            return grouped.view(-1, width)
        split = grouped.view(-1, shape.kv_heads, tokens, shape.queries_per_key * shape.head_dim)
        return split.transpose(1, 2).reshape(-1, width)

    def _over_segment(
        self,
        segment: Segment,
        number: int,
        length: int,
        mask: Tensor | None,
        grouped: Tensor,
        prompt: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        keys, values = segment.keys[number], segment.values[number]
        if length < segment.pool.capacity:
            keys, values = keys[..., :length], values[:, :length]
        if segment.width * self.weights.shape.kv_heads < len(grouped):
            first = segment.start * self.weights.shape.kv_heads
            span = slice(first, first + segment.width * self.weights.shape.kv_heads)
            grouped = grouped[span]
            prompt = None if prompt is None else (prompt[0][span], prompt[1][span])
        return over_completion(grouped, keys, values, mask, prompt)

    def _over_prompts(
        self, number: int, arrangement: Arrangement, grouped: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Results over the prompts and their log-sum-exp, in the order of the batch; None: prompts are not apart."""
        if not arrangement.prompts:
            return None
        parts = [self._over_prompt(number, segment, grouped) for segment in arrangement.prompts]
        out = parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts])
        total = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts])
        back = arrangement.back
        return out.index_select(0, back).view(grouped.shape), total.index_select(0, back)

    def _over_prompt(self, number: int, segment: PromptSegment, grouped: Tensor) -> tuple[Tensor, Tensor]:
        """Results and log-sum-exp, a row for each place of the segment: all queries of a row and head."""
        members = grouped.flatten(1).index_select(0, segment.members)
        keys, values = segment.keys[number], segment.values[number]
        out, total = over_prompt(members.view(len(keys), -1, keys.shape[2]), keys, values, segment.mask)
        return out.view(members.shape), total.view(len(members), -1)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def prefill(self, cache: Cache, prompts: Sequence[tuple[int, Sequence[int]]], chunk: int) -> Tensor:
        """Read prompts into the cache; states at their last tokens, shape (prompts, hidden).

        Args:
            cache: has room for the prompts.
            prompts: numbers in the cache, and ids.
            chunk: tokens that go through the layers together; a longer prompt goes in parts.
        """
        last: dict[int, Tensor] = {}
        for parts in chunks([(number, len(ids)) for number, ids in prompts], chunk):
            ids_of = dict(prompts)
            ids = [i for part in parts for i in ids_of[part.prompt][part.start : part.stop]]
            states = self._read_chunk(cache, parts, torch.tensor(ids, device=self.weights.device))
            end = 0
            for part in parts:
                end += part.stop - part.start
                last[part.prompt] = states[end - 1]
        return torch.stack([last[number] for number, _ in prompts])

    def _read_chunk(self, cache: Cache, parts: Sequence[Part], ids: Tensor) -> Tensor:
        positions = torch.cat([torch.arange(p.start, p.stop, device=ids.device) for p in parts])
        states, turns = self._embedded(ids), self._turns(positions)
        batches = side_by_side(parts)
        for number, layer in enumerate(self.weights.layers):
            queries, keys, values = self._heads(layer, states, turns)
            attended = torch.empty_like(queries)
            for batch in batches:
                pool = cache.prompt_pool[batch.prompts[0]]
                self._attend_causally(pool, number, batch, queries, keys, values, attended)
            states += layer.attention_out(attended)
            states += self._mlp(layer, states)
        return states

    def _attend_causally(
        self,
        pool: Pool,
        number: int,
        batch: SideBySide,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
    ) -> None:
        """Parts of equal length: write keys and values, and attend to the prompt so far."""
        shape = self.weights.shape
        slots = torch.tensor([pool.slots[p] for p in batch.prompts], device=queries.device)
        tokens = slice(batch.first, batch.first + len(batch.prompts) * (batch.stop - batch.start))
        per_part = (len(batch.prompts), batch.stop - batch.start)
        here = slice(batch.start, batch.stop)
        pool.keys[number][slots, :, here] = keys[tokens].unflatten(0, per_part).transpose(1, 2)
        pool.values[number][slots, :, here] = values[tokens].unflatten(0, per_part).transpose(1, 2)
        q = queries[tokens].view(*per_part, shape.heads, shape.head_dim).transpose(1, 2)
        k = _repeated(pool.keys[number][slots, :, : batch.stop], shape.queries_per_key)
        v = _repeated(pool.values[number][slots, :, : batch.stop], shape.queries_per_key)
        mask = None
        if batch.start:
            seen = torch.arange(batch.stop, device=q.device)
            mask = seen <= torch.arange(batch.start, batch.stop, device=q.device)[:, None]
        attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=1.0)
        out[tokens] = attended.transpose(1, 2).reshape(-1, shape.heads * shape.head_dim)

    # --- the parts of a layer -----------------------------------------------------------------------------------------

    def logits(self, states: Tensor) -> Tensor:
        """Next-token logits, shape (rows, vocab)."""
        return self.weights.head(self._normed(states, self.weights.norm))

    def _embedded(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weights.embedding).float()

    def _turns(self, positions: Tensor) -> Tensor:
        """Complex factors of queries, keys and values (which are not turned), shape (rows, heads, head_dim / 2)."""
        turns = self.turns[positions][:, None] * self.scale
        values = turns.new_ones(len(turns), self.weights.shape.kv_heads, turns.shape[2])
        return torch.cat([turns, values], 1)

    def _heads(self, layer: Layer, states: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of shape (rows, heads · head_dim); keys and values of shape (rows, kv heads, head_dim)."""
        shape = self.weights.shape
        joined = layer.queries_keys_values(self._normed(states, layer.before_attention))
        joined = joined.view(len(states), -1, shape.head_dim)
        # Values go along, by a factor of one: that costs less than to take them apart and copy the rest.
        turned = self._turned(self._head_normed(layer, joined.float()), turns).to(joined.dtype)
        queries, keys, values = turned.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        return queries.flatten(1).contiguous(), keys, values

    def _head_normed(self, layer: Layer, heads: Tensor) -> Tensor:
        if layer.query_norm is None or layer.key_norm is None:
            return heads
        shape = self.weights.shape
        queries, keys, values = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        return torch.cat([rms_normed(queries, layer.query_norm), rms_normed(keys, layer.key_norm), values], 1)

    def _turned(self, heads: Tensor, turns: Tensor) -> Tensor:
        """Rotary positions (arXiv:2104.09864): pairs of numbers as complex numbers, turned by their angles, in place."""
        if self.weights.has_pairs:
            torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turns)
            return heads
        turned = torch.complex(*heads.chunk(2, -1)) * turns
        return torch.cat([turned.real, turned.imag], -1)

    def _mlp(self, layer: Layer, states: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._normed(states, layer.before_mlp)).chunk(2, -1)
        return layer.down(F.silu(gate).mul_(up))

    def _normed(self, states: Tensor, norm: Norm) -> Tensor:
        return rms_normed(states, norm).to(self.weights.dtype)


def _repeated(heads: Tensor, times: int) -> Tensor:
    """Each head as often as there are queries per key; shape (parts, heads · times, tokens, head_dim)."""
    return heads if times == 1 else heads.repeat_interleave(times, 1)
