"""Policy → weights of the fast path.

By default the engine has a copy of its own in the dtype that it computes in: queries, keys and values in one matrix, gate and
up in another, adapters merged, rotary pairs side by side. With `in_place` it reads the policy's own tensors where they
have that dtype, and only layers with an adapter are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from covey.kernels.linear import ConcatLinear, PlainLinear, Projection, projection
from covey.kernels.rms_norm import Norm
from covey.models.inspect import innermost
from covey.sample.native.architectures import Architecture, architecture_of
from covey.sample.native.kv_pool import KvFormat
from covey.sample.native.merged_weights import merged_weights


@dataclass(frozen=True)
class Layer:
    """One layer; every projection takes and gives rows."""

    before_attention: Norm
    queries_keys_values: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    attention_out: Projection
    before_mlp: Norm
    gate_up: Projection
    down: Projection


Part = Tensor | Layer | Norm | Projection
"""Embedding, a layer, the last norm or the head."""


@dataclass(frozen=True)
class Weights:
    """Everything that the fast path computes with."""

    shape: Architecture
    dtype: torch.dtype
    device: torch.device
    has_pairs: bool
    """Whether the two numbers that a rotary position rotates are neighbours, rather than half a head apart."""
    embedding: Tensor
    layers: Sequence[Layer]
    norm: Norm
    head: Projection
    rotary: Any
    """The policy's module that knows the angle of each position."""
    vocab: int
    """Number of logits."""
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
    shape, has_pairs = architecture_of(policy), not in_place
    reader = _WeightReader(shape, dtype, has_pairs, may_pack and not in_place)
    parts: list[Any] = list(reader.parts(policy))
    embedding, *layers, norm, head = parts
    model: Any = innermost(policy).model
    return Weights(
        shape=shape,
        dtype=dtype,
        device=embedding.device,
        has_pairs=has_pairs,
        embedding=embedding,
        layers=layers,
        norm=norm,
        head=head,
        rotary=model.rotary_emb,
        vocab=len(head.weight),
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
    reader = _WeightReader(weights.shape, weights.dtype, weights.has_pairs, may_pack=False)
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


def _tensors(part: Part | None) -> Iterator[Tensor]:
    """Yield all tensors of a part of the weights, in a fixed order."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, PlainLinear):
        yield from (t for t in (part.weight, part.bias) if t is not None)
    elif isinstance(part, ConcatLinear):
        for projection_ in part.parts:
            yield from _tensors(projection_)
    elif isinstance(part, Norm):
        yield part.weight
    elif isinstance(part, Layer):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))
    else:
        assert part is None, f"{type(part).__name__} cannot be filled again"


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
        inner: Any = innermost(policy)
        yield merged_weights(inner.model.embed_tokens)[0]
        for layer in inner.model.layers[: self.shape.layers]:
            attention, mlp = layer.self_attn, layer.mlp
            has_norms = getattr(attention, "q_norm", None) is not None
            yield Layer(
                before_attention=self.norm(layer.input_layernorm),
                queries_keys_values=self.joined(
                    attention.q_proj, attention.k_proj, attention.v_proj, rotary=2
                ),
                query_norm=self.norm(attention.q_norm, is_rotary=True) if has_norms else None,
                key_norm=self.norm(attention.k_norm, is_rotary=True) if has_norms else None,
                attention_out=self.single(attention.o_proj),
                before_mlp=self.norm(layer.post_attention_layernorm),
                gate_up=self.joined(mlp.gate_proj, mlp.up_proj),
                down=self.single(mlp.down_proj),
            )
        yield self.norm(inner.model.norm)
        yield self.single(inner.lm_head)

    def norm(self, module: nn.Module, is_rotary: bool = False) -> Norm:
        """Return a norm; one of queries or keys (`is_rotary`) in the order of their outputs."""
        epsilon: Any = module.variance_epsilon
        weight = merged_weights(module)[0].float()
        return Norm(self.in_pairs(weight) if is_rotary and self.fuses else weight, float(epsilon))

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
        """Return outputs of each head in the order 0, d/2, 1, d/2 + 1, ...; scores do not depend on the order."""
        dim = self.shape.head_dim
        heads = values.unflatten(0, (-1, 2, dim // 2))  # (heads, 2, d/2, inputs)
        return heads.transpose(1, 2).reshape(values.shape)
