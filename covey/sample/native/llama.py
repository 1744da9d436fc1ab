"""The forward pass of decoders for sampling: one token per sequence and step, with few operations.

A layer adds two parts to the stream, and a norm may stand before and after each of them:

    stream += after_attention(attention(before_attention(stream)))
    stream += after_mlp(mlp(before_mlp(stream)))          or, in parallel, mlp(before_attention(stream))

The stream is float32, whatever the products compute in. Queries carry the scale of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.kernels.decode_attention import over_completion, over_prompt
from covey.kernels.head_logprobs import LogitForm
from covey.kernels.norms import Norm, normed
from covey.kernels.rotary import rotated, rotation_table
from covey.sample.native.chunked_prefill import AlignedParts, PromptPart, aligned_parts, chunks
from covey.sample.native.kv_cache import KvCache
from covey.sample.native.kv_layout import KvLayout
from covey.sample.native.kv_pool import KvPool
from covey.sample.native.masks import StepMasks, causal_mask
from covey.sample.native.shown import PicturedChunk, PromptPictures
from covey.sample.native.weights import Layer, Weights


@dataclass(frozen=True)
class DecodeStep:
    """One step of a batch: where its tokens go, and what they see."""

    layout: KvLayout
    offsets: Tensor
    """Offset of each token in the slot of its sequence, shape (rows, tokens)."""
    positions: Tensor
    """Rotary position of each token, its place in its text but for what pictures before it take, shape (rows, tokens)."""
    lengths: Sequence[int]
    """Tokens that are read of each segment's slots."""
    masks: Mapping[int | None, StepMasks]
    """Of layers that see everything (None), and of those with a window that is shorter than some text."""


class Llama:
    """The computation of all families, with the weights of one policy.

    Args:
        weights: of the policy.
        longest: positions that may occur.
    """

    def __init__(self, weights: Weights, longest: int) -> None:
        self.weights, shape = weights, weights.shape
        self.rotations = {form.rotary: self._rotation_table(form.rotary, longest) for form in shape.forms}
        """Complex factors of positions by kind of layer, shape (longest, head_dim / 2)."""
        # Queries are scaled as they are rotated.
        self.scale = torch.ones(shape.heads + shape.kv_heads, 1, device=weights.device)
        self.scale[: shape.heads] = shape.score_scale

    # --- decoding -----------------------------------------------------------------------------------------------------

    def step(self, tokens: Tensor, step: DecodeStep) -> Tensor:
        """Read tokens of every sequence of the batch; states after the last layer, shape (rows · tokens, hidden).

        Args:
            tokens: shape (rows, tokens).
        """
        states = self._embedded(tokens.reshape(-1))
        rotations = self._rotations_at(step.positions.reshape(-1))
        for number, (layer, form) in enumerate(
            zip(self.weights.layers, self.weights.shape.forms, strict=True)
        ):
            inputs = self._normed(states, layer.before_attention)
            queries, keys, values = self._project(layer, inputs, rotations[form.rotary])
            self._write(number, step, keys, values)
            attended = self._attend(number, step, queries)
            self._add(layer, states, inputs, attended)
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
        masks = step.masks.get(shape.forms[number].window) or step.masks[None]
        score_form = self.weights.layers[number].score_form
        prompts = (
            self._attend_to_prompts(number, step.layout, grouped, masks) if step.layout.prompts else None
        )

        segments, parts = step.layout.segments, []
        for segment, length, mask in zip(segments, step.lengths, masks.own, strict=True):
            keys, values = segment.keys[number], segment.values[number]
            if length < segment.pool.capacity:
                keys, values = keys[..., :length], values[:, :length]
            its_queries, its_prompts = grouped, prompts
            if len(segments) > 1:
                span = slice(segment.rows.start * shape.kv_heads, segment.rows.stop * shape.kv_heads)
                its_queries = grouped[span]
                its_prompts = None if prompts is None else (prompts[0][span], prompts[1][span])
            parts.append(over_completion(its_queries, keys, values, mask, its_prompts, score_form))

        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        if tokens > 1:  # back from keys to tokens
            out = out.view(-1, shape.kv_heads, tokens, shape.queries_per_key * shape.head_dim).transpose(1, 2)
        return out.reshape(-1, shape.heads * shape.head_dim)

    def _attend_to_prompts(
        self, number: int, layout: KvLayout, grouped: Tensor, masks: StepMasks
    ) -> tuple[Tensor, Tensor]:
        """Return results over the prompts, of the shape of the queries, and their log-sum-exp, shape of all but the last."""
        outs, totals = [], []
        for segment, mask in zip(layout.prompts, masks.prompts, strict=True):
            keys, values = segment.keys[number], segment.values[number]
            # All queries of a row and head are one member: (members, tokens · queries per key · head_dim)
            members = grouped.flatten(1).index_select(0, segment.members)
            queries, score_form = (
                members.view(len(keys), -1, keys.shape[2]),
                self.weights.layers[number].score_form,
            )
            out, total = over_prompt(queries, keys, values, mask, score_form)
            outs.append(out.view(members.shape))
            totals.append(total.view(len(members), -1))
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        total = totals[0] if len(totals) == 1 else torch.cat(totals)
        # From the prompts' order back to the batch's.
        return out.index_select(0, layout.back).view(grouped.shape), total.index_select(0, layout.back)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def prefill(
        self,
        cache: KvCache,
        prompts: Sequence[tuple[int, Sequence[int]]],
        chunk: int,
        shown: Mapping[int, PromptPictures] | None = None,
    ) -> Tensor:
        """Read prompts into the cache; states at their last tokens, shape (prompts, hidden).

        Args:
            cache: has room for the prompts.
            prompts: numbers in the cache, and ids.
            chunk: tokens that go through the layers together; a longer prompt goes in parts.
            shown: pictures of prompts, by number; None: all are text.
        """
        last: dict[int, Tensor] = {}
        ids_of = dict(prompts)
        for parts in chunks([(number, len(ids)) for number, ids in prompts], chunk):
            ids = [i for part in parts for i in ids_of[part.prompt][part.start : part.stop]]
            ids_here = torch.tensor(ids, device=self.weights.device)
            states = self._read_chunk(cache, parts, ids_here, PicturedChunk(parts, shown) if shown else None)
            end = 0
            for part in parts:
                end += part.stop - part.start
                last[part.prompt] = states[end - 1]
        return torch.stack([last[number] for number, _ in prompts])

    def _read_chunk(
        self, cache: KvCache, parts: Sequence[PromptPart], ids: Tensor, pictures: PicturedChunk | None
    ) -> Tensor:
        """Return the states after the last layer, shape (tokens, hidden)."""
        positions = torch.cat([torch.arange(p.start, p.stop, device=ids.device) for p in parts])
        states = self._embedded(ids)
        factors = {kind: table[positions] for kind, table in self.rotations.items()}
        if pictures is not None:
            pictures.embed(states)
            factors = {
                kind: values if kind is None else pictures.turned(values) for kind, values in factors.items()
            }
        rotations = self._scaled(factors)
        batches = aligned_parts(parts)
        for number, (layer, form) in enumerate(
            zip(self.weights.layers, self.weights.shape.forms, strict=True)
        ):
            inputs = self._normed(states, layer.before_attention)
            queries, keys, values = self._project(layer, inputs, rotations[form.rotary])
            attended = torch.empty_like(queries)
            for batch in batches:
                pool = cache.prompt_pool[batch.prompts[0]]
                self._attend_causally(pool, number, batch, queries, keys, values, attended)
            self._add(layer, states, inputs, attended)
            if pictures is not None:
                pictures.add(states, number)
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

        # (parts, kv heads, stop, dim)
        k, v = pool.keys[number][slots, :, :stop], pool.values[number][slots, :, :stop]
        window, score_form = shape.forms[number].window, self.weights.layers[number].score_form
        mask = None
        if start or not score_form.is_plain or (window is not None and stop > window):
            mask = causal_mask(start, stop, window, queries.device)
        if mask is not None and not score_form.is_plain:
            # (parts · kv heads, tokens · queries per key, dim)
            q = queries[tokens].view(*per_part, shape.kv_heads, -1, shape.head_dim).transpose(1, 2)
            q = q.reshape(len(slots) * shape.kv_heads, -1, shape.head_dim)
            bias = torch.zeros(mask.shape, device=q.device).masked_fill_(~mask, float("-inf"))
            bias = bias.repeat_interleave(shape.queries_per_key, 0)[None, None]
            attended = over_completion(
                q, k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), bias, None, score_form
            )
            attended = attended.view(len(slots), shape.kv_heads, stop - start, -1)
            out[tokens] = attended.transpose(1, 2).reshape(-1, shape.heads * shape.head_dim)
            return

        # (parts, heads, tokens, dim)
        q = queries[tokens].view(*per_part, shape.heads, shape.head_dim).transpose(1, 2)
        if shape.queries_per_key > 1:  # (parts, heads, stop, dim)
            k, v = (x.repeat_interleave(shape.queries_per_key, 1) for x in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=1.0)
        out[tokens] = attended.transpose(1, 2).reshape(-1, shape.heads * shape.head_dim)

    # --- the parts of a layer -----------------------------------------------------------------------------------------

    def logits(self, states: Tensor) -> Tensor:
        """Return next-token logits, shape (rows, vocab)."""
        raw, form = self.weights.head(self._normed(states, self.weights.norm)), self.weights.shape.logit_form
        return raw if form == LogitForm() else form.logits(raw)

    def _embedded(self, ids: Tensor) -> Tensor:
        states, scale = F.embedding(ids, self.weights.embedding).float(), self.weights.shape.embedding_scale
        return states if scale == 1.0 else states * scale

    def _rotation_table(self, rotary: str | None, longest: int) -> Tensor:
        """Return complex factors of the first positions, shape (longest, head_dim / 2); ones where there is no rotation."""
        shape, device = self.weights.shape, self.weights.device
        if rotary is None:
            return torch.ones(longest, shape.head_dim // 2, dtype=torch.complex64, device=device)
        # Drafts may stand behind the longest text; none of them is kept.
        known = min(longest, shape.longest or longest)
        probe, positions = torch.zeros(1, device=device), torch.arange(known, device=device)[None]
        cos, sin = self.weights.rotary(probe, positions, *([rotary] if rotary else []))
        table = rotation_table(cos[0], sin[0], shape.turned, shape.head_dim)
        return (
            torch.cat([table, table.new_ones(longest - known, table.shape[1])]) if known < longest else table
        )

    def _rotations_at(self, positions: Tensor) -> dict[str | None, Tensor]:
        """Return complex factors of queries, keys and values (which are not rotated), by kind of layer.

        Each has the shape (rows, heads, head_dim / 2).
        """
        return self._scaled({kind: table[positions] for kind, table in self.rotations.items()})

    def _scaled(self, factors: Mapping[str | None, Tensor]) -> dict[str | None, Tensor]:
        """Return the same from the factors of each token, shape (rows, head_dim / 2)."""
        result = {}
        for kind, of_tokens in factors.items():
            rotations = of_tokens[:, None] * self.scale
            values = rotations.new_ones(len(rotations), self.weights.shape.kv_heads, rotations.shape[2])
            result[kind] = torch.cat([rotations, values], 1)
        return result

    def _project(self, layer: Layer, inputs: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of shape (rows, heads · head_dim); keys and values of shape (rows, kv heads, head_dim)."""
        shape = self.weights.shape
        sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
        joined = layer.queries_keys_values(inputs)
        dtype, heads = joined.dtype, joined.view(len(inputs), -1, shape.head_dim).float()
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys, values = heads.split(sizes, 1)
            queries, keys = _normed_heads(queries, layer.query_norm), _normed_heads(keys, layer.key_norm)
            heads = torch.cat([queries, keys, values], 1)
        # Values go along, by a factor of one: that costs less than to take them apart and copy the rest.
        heads = rotated(heads, rotations, None if self.weights.has_pairs else shape.turned)
        queries, keys, values = heads.to(dtype).split(sizes, 1)
        return queries.flatten(1).contiguous(), keys, values

    def _add(self, layer: Layer, states: Tensor, inputs: Tensor, attended: Tensor) -> None:
        """Add both parts of a layer to the stream `states`.

        Args:
            inputs: what attention has read, shape (rows, hidden).
            attended: shape (rows, heads · head_dim).
        """
        states += self._part(layer.attention_out(attended), layer.after_attention)
        if not layer.is_parallel:
            inputs = self._normed(states, layer.before_mlp)
        states += self._part(layer.mlp(inputs), layer.after_mlp)

    def _part(self, out: Tensor, after: Norm | None) -> Tensor:
        """Return what a part of a layer adds to the stream."""
        scale = self.weights.shape.residual_scale
        out = out if after is None else normed(out.float(), after)
        return out if scale == 1.0 else out.float() * scale

    def _normed(self, states: Tensor, norm: Norm | None) -> Tensor:
        return (states if norm is None else normed(states, norm)).to(self.weights.dtype)


def _normed_heads(heads: Tensor, norm: Norm) -> Tensor:
    """Return heads, shape (rows, heads, head_dim), normed one by one, or together where there are weights for all of them."""
    is_whole = norm.weight.ndim == 1 and len(norm.weight) != heads.shape[2]
    return normed(heads.flatten(1), norm).view(heads.shape) if is_whole else normed(heads, norm)
