"""Policy → weights of the fast path.

By default the engine has a copy of its own in the dtype that it computes in: queries, keys and values in one matrix, gate and
up in another, adapters merged, rotary pairs side by side. With `in_place` it reads the policy's own tensors where they
have that dtype, and only layers with an adapter are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from covey.kernels.decode_attention import ScoreForm
from covey.kernels.experts import ClampedFeedForward, Experts, FeedForward
from covey.kernels.linear import ConcatLinear, PackedLinear, Projection, projection
from covey.kernels.norms import Norm
from covey.models.inspect import innermost
from covey.sample.native.architectures import Architecture, architecture_of, decoder_of, innermost_module
from covey.sample.native.kv_pool import KvFormat
from covey.sample.native.merged_weights import merged_weights, whole


@dataclass(frozen=True)
class Layer:
    """One layer; every projection takes and gives rows. A norm is None where the family has none in its place."""

    before_attention: Norm | None
    queries_keys_values: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    score_form: ScoreForm
    attention_out: Projection
    after_attention: Norm | None
    is_parallel: bool
    """Whether the feed-forward part reads what attention reads, rather than what comes after it."""
    before_mlp: Norm | None
    mlp: FeedForward | ClampedFeedForward | Experts
    after_mlp: Norm | None


Part = Tensor | Layer | Norm | Projection | None
"""Embedding, a layer, the last norm or the head."""


@dataclass(frozen=True)
class Weights:
    """Everything that the fast path computes with."""

    shape: Architecture
    dtype: torch.dtype
    device: torch.device
    has_pairs: bool
    """Whether the two numbers that a rotary position rotates are neighbours, rather than half of the rotated part apart."""
    embedding: Tensor
    layers: Sequence[Layer]
    norm: Norm
    head: Projection
    rotary: Any
    """The policy's module that knows the angle of each position."""
    vocab: int
    """Number of logits."""
    fuses: bool
    """Whether the engine has joined matrices of its own, rather than the policy's tensors."""
    own_memory: frozenset[int]
    """Addresses of the policy's own tensors when they were read: what lies there is borrowed, and never written to."""

    @property
    def kv_format(self) -> KvFormat:
        """Sizes of a token in the cache."""
        return KvFormat(self.shape.layers, self.shape.kv_heads, self.shape.head_dim, self.dtype, self.device)


def weights_of(policy: nn.Module, dtype: torch.dtype, in_place: bool, may_pack: bool = True) -> Weights:
    """Read a policy that `covey.sample.native.architectures` knows.

    Args:
        dtype: what the engine computes in.
        in_place: read the policy's own tensors where that is possible.
        may_pack: put weights into the layout that the processor reads fastest; without effect with `in_place`.
    """
    shape = architecture_of(policy)
    reader = _WeightReader(shape, dtype, not in_place, may_pack and not in_place)
    parts: list[Any] = list(reader.parts(policy))
    embedding, *layers, norm, head = parts
    return Weights(
        shape=shape,
        dtype=dtype,
        device=embedding.device,
        has_pairs=reader.fuses or shape.family.turns_neighbours,
        embedding=embedding,
        layers=layers,
        norm=norm,
        head=head,
        rotary=decoder_of(policy).rotary_emb,
        vocab=len(head.weight),
        fuses=reader.fuses,
        own_memory=frozenset(_address(t) for t in chain(policy.parameters(), policy.buffers())),
    )


def refill(weights: Weights, policy: nn.Module) -> bool:
    """Put the policy's present weights where the previous ones are, so that captured graphs read them.

    What the engine has made (norms in float32, merged layers, joined matrices) is written over. What it borrows from the
    policy holds the present weights already, unless the policy keeps them elsewhere since. Returns False where that cannot
    be: borrowed tensors are elsewhere now, or shapes are others.
    """
    if architecture_of(policy) != weights.shape:
        return False
    reader = _WeightReader(weights.shape, weights.dtype, weights.fuses, may_pack=False)
    previous: tuple[Part, ...] = (weights.embedding, *weights.layers, weights.norm, weights.head)
    for old, new in zip(previous, reader.parts(policy), strict=True):
        for target, source in zip(_tensors(old), _tensors(new), strict=True):
            if target.data_ptr() == source.data_ptr():
                continue
            is_alike = target.shape == source.shape and target.dtype == source.dtype
            if not is_alike or target.device != source.device or _address(target) in weights.own_memory:
                return False
            target.copy_(source)
    return True


def _address(tensor: Tensor) -> int:
    """Return where the tensor lies; where this process's part lies if it is sharded (FSDP2)."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.data_ptr()


def _tensors(part: object) -> Iterator[Tensor]:
    """Yield all tensors of a part of the weights, in a fixed order."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for member in part:
            yield from _tensors(member)
    elif is_dataclass(part):
        assert not isinstance(part, PackedLinear), "a packed matrix cannot be filled again"
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))


@dataclass(frozen=True)
class _WeightReader:
    """Reads modules of the policy.

    The order is one for all: gathering shards takes every process, and some may read anew where others fill again.
    """

    shape: Architecture
    dtype: torch.dtype
    fuses: bool
    may_pack: bool

    def parts(self, policy: nn.Module) -> Iterator[Part]:
        """Yield embedding, layers, last norm and head."""
        decoder, outer = decoder_of(policy), innermost(policy)
        yield merged_weights(decoder.embed_tokens)[0]
        for layer in decoder.layers[: self.shape.layers]:
            yield self.layer(layer)
        yield self.norm(decoder.norm)
        yield self.single(outer.lm_head)  # type: ignore[arg-type]

    def layer(self, layer: Any) -> Layer:
        """Return a layer. A norm is before or after what its name says, or what other norms beside it leave to it.

        `post_attention_layernorm` stands before the feed-forward part, but after attention where a norm has the name of the
        former place, or where attention has none before it.
        """
        attention = layer.self_attn
        names = dict(layer.named_children())
        before, after = names.get("input_layernorm"), names.get("post_self_attn_layernorm")
        before_mlp = names.get("pre_feedforward_layernorm")
        after_mlp = names.get("post_feedforward_layernorm", names.get("post_mlp_layernorm"))
        middle = names.get("post_attention_layernorm")
        if before_mlp is not None or before is None:
            after = middle
        else:
            before_mlp = middle
        query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        return Layer(
            before_attention=self.norm(before),
            queries_keys_values=self.queries_keys_values(attention),
            query_norm=self.norm(query_norm, is_rotary=True),
            key_norm=self.norm(key_norm, is_rotary=True),
            score_form=ScoreForm(self.shape.score_cap, self.sinks(attention)),
            attention_out=self.single(attention.o_proj),
            after_attention=self.norm(after),
            is_parallel=before is not None and before_mlp is None,
            before_mlp=self.norm(before_mlp),
            mlp=self.mlp(layer.mlp),
            after_mlp=self.norm(after_mlp),
        )

    def norm(self, module: nn.Module | None, is_rotary: bool = False) -> Norm | None:
        """Return a norm; one of queries or keys (`is_rotary`) in the order of their outputs."""
        if module is None:
            return None
        inside = innermost_module(module)
        epsilon: Any = inside.variance_epsilon if hasattr(inside, "variance_epsilon") else inside.eps
        weight, bias = merged_weights(module)
        weight = weight.float()
        if self.shape.family.norms_add_one:
            weight = 1 + weight
        if is_rotary:
            weight = self.in_pairs(weight.flatten()).view(weight.shape)
        is_centred = type(inside).__name__.endswith("LayerNorm")
        return Norm(weight, float(epsilon), is_centred, None if bias is None else bias.float())

    def sinks(self, attention: Any) -> Tensor | None:
        """Return the scores of the sinks of attention, shape (kv heads, queries per key)."""
        sinks = getattr(attention, "sinks", None)
        return None if sinks is None else whole(sinks).float().view(self.shape.kv_heads, -1)

    def queries_keys_values(self, attention: Any) -> Projection:
        """Return the three projections as one; some families have them in one matrix."""
        if not hasattr(attention, "qkv_proj"):
            return self.joined(attention.q_proj, attention.k_proj, attention.v_proj, rotary=2)
        weight, bias = merged_weights(attention.qkv_proj)
        turning = (self.shape.heads + self.shape.kv_heads) * self.shape.head_dim

        def ordered(values: Tensor) -> Tensor:
            return torch.cat([self.in_pairs(values[:turning]), values[turning:]]) if self.fuses else values

        return projection(ordered(weight), None if bias is None else ordered(bias), self.dtype, self.may_pack)

    def mlp(self, module: Any) -> FeedForward | ClampedFeedForward | Experts:
        """Return the feed-forward part: one network, or experts."""
        return self.experts(module) if hasattr(module, "experts") else self.network(module)

    def network(self, module: Any) -> FeedForward:
        """Return one feed-forward network, from the names that its matrices have."""
        activation = next(
            getattr(module, n) for n in ("act_fn", "activation_fn", "act") if hasattr(module, n)
        )
        if hasattr(module, "c_fc"):
            return FeedForward(
                self.single(module.c_fc), self.single(module.c_proj), activation, has_gate=False
            )
        is_joined = hasattr(module, "gate_up_proj")
        gate_up = (
            self.single(module.gate_up_proj) if is_joined else self.joined(module.gate_proj, module.up_proj)
        )
        return FeedForward(gate_up, self.single(module.down_proj), activation)

    def experts(self, module: Any) -> Experts:
        """Return a routed mixture; its matrices stand one behind the other in two tensors."""
        experts, router = module.experts, module.gate if hasattr(module, "gate") else module.router
        has_shared = hasattr(module, "shared_expert")
        return Experts(
            router=self.single(router),
            networks=list(self.networks(experts)),
            chosen=router.top_k,
            # A soft-max over the scores of the chosen ones alone is the same (gpt-oss).
            adds_up_to_one=getattr(router, "norm_topk_prob", True),
            shared=self.network(module.shared_expert) if has_shared else None,
            shared_gate=self.single(module.shared_expert_gate) if has_shared else None,
        )

    def networks(self, experts: Any) -> Iterator[FeedForward | ClampedFeedForward]:
        """Yield the network of each expert."""
        gate_up, down = whole(experts.gate_up_proj), whole(experts.down_proj)
        for i in range(len(gate_up)):
            if not hasattr(experts, "limit"):
                upper, lower = (projection(w[i], None, self.dtype, self.may_pack) for w in (gate_up, down))
                yield FeedForward(upper, lower, experts.act_fn)
                continue
            # gpt-oss: transposed, gate and up alternate, with biases.
            (wide, offset), (narrow, last) = (
                (weight[i].T, whole(bias)[i])
                for weight, bias in ((gate_up, experts.gate_up_proj_bias), (down, experts.down_proj_bias))
            )
            wide, offset = (torch.cat([x[::2], x[1::2]]) for x in (wide, offset))
            yield ClampedFeedForward(
                projection(wide, offset, self.dtype, self.may_pack),
                projection(narrow.contiguous(), last, self.dtype, self.may_pack),
                float(experts.alpha),
                float(experts.limit),
            )

    def single(self, module: nn.Module) -> Projection:
        return projection(*merged_weights(module), self.dtype, self.may_pack)

    def joined(self, *modules: nn.Module, rotary: int = 0) -> Projection:
        """Return several linear layers of the same input as one.

        Args:
            rotary: how many of them, from the first on, give queries or keys. Their rotary pairs are side by side where the
                engine has a copy.
        """
        parts = [merged_weights(module) for module in modules]
        if not self.fuses:
            return ConcatLinear([projection(*part, self.dtype, self.may_pack) for part in parts])
        for index, (weight, bias) in enumerate(parts[:rotary]):
            parts[index] = self.in_pairs(weight), None if bias is None else self.in_pairs(bias)
        weight = torch.cat([weight.to(self.dtype) for weight, _ in parts])
        biases = [w.new_zeros(len(w)) if b is None else b for w, b in parts]
        has_bias = any(b is not None for _, b in parts)
        bias = torch.cat([b.to(self.dtype) for b in biases]) if has_bias else None
        return projection(weight, bias, self.dtype, self.may_pack)

    def in_pairs(self, values: Tensor) -> Tensor:
        """Return outputs of each head in the order 0, t/2, 1, t/2 + 1, ... where t of them are rotated, then the others.

        Scores do not depend on the order. It stays where the engine has no copy, or where the policy has it.
        """
        if not self.fuses or self.shape.family.turns_neighbours:
            return values
        heads, turned = values.unflatten(0, (-1, self.shape.head_dim)), self.shape.turned
        pairs = (
            heads[:, :turned].unflatten(1, (2, turned // 2)).transpose(1, 2).flatten(1, 2)
        )  # (heads, t, inputs)
        return torch.cat([pairs, heads[:, turned:]], 1).flatten(0, 1)
