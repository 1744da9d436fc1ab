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
from covey.sample.native.chunked_prefill import AlignedParts, PromptPart, aligned_parts, chunks
from covey.sample.native.kv_cache import KvCache
from covey.sample.native.kv_layout import KvLayout
from covey.sample.native.kv_pool import KvPool
from covey.sample.native.weights import Layer, Weights


@dataclass(frozen=True)
class DecodeStep:
    """One step of a batch: where its tokens go, and what they see."""

    layout: KvLayout
    offsets: Tensor
    """Offset of each token in the slot of its sequence, shape (rows, tokens)."""
    positions: Tensor
    """Position of each token in its text, shape (rows, tokens)."""
    lengths: Sequence[int]
    """Tokens that are read of each segment's slots."""
    masks: Sequence[Tensor | None]
    """Added to the scores of each segment, broadcast to (rows, heads, queries, length)."""


class Llama:
    """The family's computation, with the weights of one policy.

    Args:
        weights: of the policy.
        longest: positions that may occur.
    """

    def __init__(self, weights: Weights, longest: int) -> None:
        self.weights, shape = weights, weights.shape
        probe = torch.zeros(1, device=weights.device)
        cos, sin = weights.rotary(probe, torch.arange(longest, device=weights.device)[None])
        half = shape.head_dim // 2
        self.rotations = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
        """Unit complex numbers of positions, shape (longest, head_dim / 2)."""
        # Queries are scaled as they are rotated.
        self.scale = torch.ones(shape.heads + shape.kv_heads, 1, device=weights.device)
        self.scale[: shape.heads] = shape.head_dim**-0.5

    # --- decoding -----------------------------------------------------------------------------------------------------

    def step(self, tokens: Tensor, step: DecodeStep) -> Tensor:
        """Read tokens of every sequence of the batch; states after the last layer, shape (rows · tokens, hidden).

        Args:
            tokens: shape (rows, tokens).
        """
        states = F.embedding(tokens.reshape(-1), self.weights.embedding).float()
        rotations = self._rotations_at(step.positions.reshape(-1))
        for number, layer in enumerate(self.weights.layers):
            queries, keys, values = self._project(layer, states, rotations)
            self._write(number, step, keys, values)
            attended = self._attend(number, step, queries)
            states += layer.attention_out(attended)
            states += self._mlp(layer, states)
        return states

    def _write(self, number: int, step: DecodeStep, keys: Tensor, values: Tensor) -> None:
        """Add the tokens' keys and values, shape (rows · tokens, heads, head_dim), to the slots."""
        tokens = step.offsets.shape[1]
        # (rows, tokens, heads, head_dim)
        keys, values = keys.unflatten(0, (-1, tokens)), values.unflatten(0, (-1, tokens))
        for segment in step.layout.segments:
            pool, rows = segment.pool, segment.rows
            slots, offsets = segment.slots, step.offsets[rows]
            if pool.keys_transposed:
                pool.keys[number][slots, :, :, offsets] = keys[rows]
            else:
                pool.keys[number][slots, :, offsets] = keys[rows]
            pool.values[number][slots, :, offsets] = values[rows]

    def _attend(self, number: int, step: DecodeStep, queries: Tensor) -> Tensor:
        """Attend to prompts and completions; queries and result have the shape (rows · tokens, heads · head_dim)."""
        shape, tokens = self.weights.shape, step.offsets.shape[1]
        # Queries that meet the same keys stand side by side.
        grouped = queries
        if tokens > 1:
            per_token = queries.view(-1, tokens, shape.kv_heads, shape.queries_per_key * shape.head_dim)
            grouped = per_token.transpose(1, 2).reshape(queries.shape)
        # (rows · kv heads, tokens · queries per key, head_dim)
        grouped = grouped.view(-1, tokens * shape.queries_per_key, shape.head_dim)
        prompts = self._attend_to_prompts(number, step.layout, grouped) if step.layout.prompts else None

        segments, parts = step.layout.segments, []
        for segment, length, mask in zip(segments, step.lengths, step.masks, strict=True):
            keys, values = segment.keys[number], segment.values[number]
            if length < segment.pool.capacity:
                keys, values = keys[..., :length], values[:, :length]
            its_queries, its_prompts = grouped, prompts
            if len(segments) > 1:
                span = slice(segment.rows.start * shape.kv_heads, segment.rows.stop * shape.kv_heads)
                its_queries = grouped[span]
                its_prompts = None if prompts is None else (prompts[0][span], prompts[1][span])
            parts.append(over_completion(its_queries, keys, values, mask, its_prompts))

        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        if tokens > 1:  # back from keys to tokens
            out = out.view(-1, shape.kv_heads, tokens, shape.queries_per_key * shape.head_dim).transpose(1, 2)
        return out.reshape(-1, shape.heads * shape.head_dim)

    def _attend_to_prompts(self, number: int, layout: KvLayout, grouped: Tensor) -> tuple[Tensor, Tensor]:
        """Return results over the prompts, of the shape of the queries, and their log-sum-exp, shape of all but the last."""
        outs, totals = [], []
        for segment in layout.prompts:
            keys, values = segment.keys[number], segment.values[number]
            # All queries of a row and head are one member: (members, tokens · queries per key · head_dim)
            members = grouped.flatten(1).index_select(0, segment.members)
            out, total = over_prompt(members.view(len(keys), -1, keys.shape[2]), keys, values, segment.mask)
            outs.append(out.view(members.shape))
            totals.append(total.view(len(members), -1))
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        total = totals[0] if len(totals) == 1 else torch.cat(totals)
        # From the prompts' order back to the batch's.
        return out.index_select(0, layout.back).view(grouped.shape), total.index_select(0, layout.back)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def prefill(self, cache: KvCache, prompts: Sequence[tuple[int, Sequence[int]]], chunk: int) -> Tensor:
        """Read prompts into the cache; states at their last tokens, shape (prompts, hidden).

        Args:
            cache: has room for the prompts.
            prompts: numbers in the cache, and ids.
            chunk: tokens that go through the layers together; a longer prompt goes in parts.
        """
        last: dict[int, Tensor] = {}
        ids_of = dict(prompts)
        for parts in chunks([(number, len(ids)) for number, ids in prompts], chunk):
            ids = [i for part in parts for i in ids_of[part.prompt][part.start : part.stop]]
            states = self._read_chunk(cache, parts, torch.tensor(ids, device=self.weights.device))
            end = 0
            for part in parts:
                end += part.stop - part.start
                last[part.prompt] = states[end - 1]
        return torch.stack([last[number] for number, _ in prompts])

    def _read_chunk(self, cache: KvCache, parts: Sequence[PromptPart], ids: Tensor) -> Tensor:
        """Return the states after the last layer, shape (tokens, hidden)."""
        positions = torch.cat([torch.arange(p.start, p.stop, device=ids.device) for p in parts])
        states = F.embedding(ids, self.weights.embedding).float()
        rotations = self._rotations_at(positions)
        batches = aligned_parts(parts)
        for number, layer in enumerate(self.weights.layers):
            queries, keys, values = self._project(layer, states, rotations)
            attended = torch.empty_like(queries)
            for batch in batches:
                pool = cache.prompt_pool[batch.prompts[0]]
                self._attend_causally(pool, number, batch, queries, keys, values, attended)
            states += layer.attention_out(attended)
            states += self._mlp(layer, states)
        return states

    def _attend_causally(
        self,
        pool: KvPool,
        number: int,
        batch: AlignedParts,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
    ) -> None:
        """Write keys and values of parts of equal length, and attend to their prompts so far."""
        shape, start, stop = self.weights.shape, batch.start, batch.stop
        slots = torch.tensor([pool.slots[p] for p in batch.prompts], device=queries.device)
        per_part = (len(batch.prompts), stop - start)
        tokens = slice(batch.first, batch.first + len(batch.prompts) * (stop - start))
        # Slots hold (parts, kv heads, tokens, head_dim).
        pool.keys[number][slots, :, start:stop] = keys[tokens].unflatten(0, per_part).transpose(1, 2)
        pool.values[number][slots, :, start:stop] = values[tokens].unflatten(0, per_part).transpose(1, 2)

        # (parts, heads, tokens, dim)
        q = queries[tokens].view(*per_part, shape.heads, shape.head_dim).transpose(1, 2)
        k, v = pool.keys[number][slots, :, :stop], pool.values[number][slots, :, :stop]
        if shape.queries_per_key > 1:  # (parts, heads, stop, dim)
            k, v = (x.repeat_interleave(shape.queries_per_key, 1) for x in (k, v))
        mask = None
        if start:
            seen = torch.arange(stop, device=q.device)
            mask = seen <= torch.arange(start, stop, device=q.device)[:, None]  # (tokens, stop)
        attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=1.0)
        out[tokens] = attended.transpose(1, 2).reshape(-1, shape.heads * shape.head_dim)

    # --- the parts of a layer -----------------------------------------------------------------------------------------

    def logits(self, states: Tensor) -> Tensor:
        """Return next-token logits, shape (rows, vocab)."""
        return self.weights.head(self._normed(states, self.weights.norm))

    def _rotations_at(self, positions: Tensor) -> Tensor:
        """Return complex factors of queries, keys and values (which are not rotated), shape (rows, heads, head_dim / 2)."""
        rotations = self.rotations[positions][:, None] * self.scale
        values = rotations.new_ones(len(rotations), self.weights.shape.kv_heads, rotations.shape[2])
        return torch.cat([rotations, values], 1)

    def _project(self, layer: Layer, states: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of shape (rows, heads · head_dim); keys and values of shape (rows, kv heads, head_dim)."""
        shape = self.weights.shape
        sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
        joined = layer.queries_keys_values(self._normed(states, layer.before_attention))
        dtype, heads = joined.dtype, joined.view(len(states), -1, shape.head_dim).float()
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys, values = heads.split(sizes, 1)
            queries, keys = rms_normed(queries, layer.query_norm), rms_normed(keys, layer.key_norm)
            heads = torch.cat([queries, keys, values], 1)
        # Rotary positions (arXiv:2104.09864): pairs of numbers as complex numbers, times their unit factors. Values go along,
        # by a factor of one: that costs less than to take them apart and copy the rest.
        if self.weights.has_pairs:
            torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(rotations)
        else:
            rotated = torch.complex(*heads.chunk(2, -1)) * rotations
            heads = torch.cat([rotated.real, rotated.imag], -1)
        queries, keys, values = heads.to(dtype).split(sizes, 1)
        return queries.flatten(1).contiguous(), keys, values

    def _mlp(self, layer: Layer, states: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._normed(states, layer.before_mlp)).chunk(2, -1)
        return layer.down(F.silu(gate).mul_(up))

    def _normed(self, states: Tensor, norm: Norm) -> Tensor:
        return rms_normed(states, norm).to(self.weights.dtype)
