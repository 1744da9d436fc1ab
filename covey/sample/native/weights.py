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
from covey.sample.native.architectures import Shape, shape_of
from covey.sample.native.merged_weights import effective


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


@dataclass(frozen=True)
class Weights:
    """Everything that the fast path computes with."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    has_pairs: bool
    """Whether the two numbers that a rotary position turns are neighbours, rather than half a head apart."""
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

    def rotations(self, length: int) -> Tensor:
        """Unit complex numbers of positions 0 to length - 1, shape (length, head_dim / 2)."""
        probe = torch.zeros(1, device=self.device)
        cos, sin = self.rotary(probe, torch.arange(length, device=self.device)[None])
        half = self.shape.head_dim // 2
        return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())


def weights_of(policy: nn.Module, dtype: torch.dtype, in_place: bool, may_pack: bool = True) -> Weights:
    """Read a policy that `covey.sample.native.architectures` knows.

    Args:
        dtype: what the engine computes in.
        in_place: read the policy's own tensors where that is possible.
        may_pack: put weights into the layout that the processor reads fastest; without effect with `in_place`.
    """
    shape, has_pairs = shape_of(policy), not in_place
    build = _Builder(shape, dtype, has_pairs, may_pack and not in_place)
    embedding, *layers, norm, head = _parts(build, policy)
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
        own_memory=frozenset(_memory(t) for t in chain(policy.parameters(), policy.buffers())),
    )


def refill(weights: Weights, policy: nn.Module) -> bool:
    """Put the policy's weights of now where those of before are, so that captured graphs read them.

    What the engine has made (norms in float32, merged layers, joined matrices) is written over. What it borrows from the
    policy holds the weights of now already, unless the policy keeps them elsewhere since.

    Returns:
        False where that cannot be: borrowed tensors are elsewhere now, or shapes are others.
    """
    if shape_of(policy) != weights.shape:
        return False
    build = _Builder(weights.shape, weights.dtype, weights.has_pairs, may_pack=False)
    before = (weights.embedding, *weights.layers, weights.norm, weights.head)
    pairs = zip(before, _parts(build, policy), strict=True)
    return all(_copied(old, new, weights.own_memory) for old, new in pairs)


def _parts(build: _Builder, policy: nn.Module) -> Iterator[Any]:
    """Embedding, layers, last norm and head.

    The order is one for all: gathering shards takes every process, and some may read anew where others fill again.
    """
    inner: Any = innermost(policy)
    yield effective(inner.model.embed_tokens)[0]
    for layer in inner.model.layers[: build.shape.layers]:
        yield build.layer(layer)
    yield build.norm(inner.model.norm)
    yield build.single(inner.lm_head)


def _copied(old: Any, new: Any, own_memory: frozenset[int]) -> bool:
    """Copy what has moved; the policy's own memory is never written to."""
    for target, source in zip(_tensors(old), _tensors(new), strict=True):
        if target.data_ptr() == source.data_ptr():
            continue
        is_alike = (target.shape, target.dtype, target.device) == (source.shape, source.dtype, source.device)
        if _memory(target) in own_memory or not is_alike:
            return False
        target.copy_(source)
    return True


def _memory(tensor: Any) -> int:
    """Address of the tensor; of this process's part where it is sharded (FSDP2)."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.data_ptr()


def _tensors(part: Any) -> Iterator[Tensor]:
    """All tensors of a part of the weights, in a fixed order."""
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


class _Builder:
    def __init__(self, shape: Shape, dtype: torch.dtype, fuses: bool, may_pack: bool) -> None:
        self.shape, self.dtype, self.fuses, self.may_pack = shape, dtype, fuses, may_pack

    def layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return Layer(
            before_attention=self.norm(layer.input_layernorm),
            queries_keys_values=self.joined(
                self._turned(attention.q_proj), self._turned(attention.k_proj), effective(attention.v_proj)
            ),
            query_norm=self._head_norm(getattr(attention, "q_norm", None)),
            key_norm=self._head_norm(getattr(attention, "k_norm", None)),
            attention_out=self.single(attention.o_proj),
            before_mlp=self.norm(layer.post_attention_layernorm),
            gate_up=self.joined(effective(mlp.gate_proj), effective(mlp.up_proj)),
            down=self.single(mlp.down_proj),
        )

    def norm(self, norm: Any) -> Norm:
        return Norm(effective(norm)[0].float(), float(norm.variance_epsilon))

    def _head_norm(self, norm: Any) -> Norm | None:
        if norm is None:
            return None
        plain = self.norm(norm)
        return Norm(self._in_pairs(plain.weight) if self.fuses else plain.weight, plain.epsilon)

    def single(self, module: nn.Module) -> Projection:
        return projection(*effective(module), self.dtype, self.may_pack)

    def joined(self, *parts: tuple[Tensor, Tensor | None]) -> Projection:
        """Several linear layers of the same input as one."""
        if not self.fuses:
            return ConcatLinear([projection(*part, self.dtype, self.may_pack) for part in parts])
        weight = torch.cat([weight.to(self.dtype) for weight, _ in parts])
        biases = [w.new_zeros(len(w)) if b is None else b for w, b in parts]
        has_bias = any(b is not None for _, b in parts)
        bias = torch.cat([b.to(self.dtype) for b in biases]) if has_bias else None
        return projection(weight, bias, self.dtype, self.may_pack)

    def _turned(self, module: nn.Module) -> tuple[Tensor, Tensor | None]:
        """A projection to queries or keys, rotary pairs side by side where the engine has a copy."""
        weight, bias = effective(module)
        if not self.fuses:
            return weight, bias
        return self._in_pairs(weight), None if bias is None else self._in_pairs(bias)

    def _in_pairs(self, values: Tensor) -> Tensor:
        """Outputs of each head in the order 0, d/2, 1, d/2 + 1, ...; scores do not depend on the order."""
        dim = self.shape.head_dim
        heads = values.unflatten(0, (-1, 2, dim // 2))
        return heads.transpose(1, 2).reshape(values.shape)
