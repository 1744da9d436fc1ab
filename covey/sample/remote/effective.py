"""Policy → the tensors that transformers itself would save of it, a block at a time: what another program can load.

Adapters are added, quantisation is undone, shards are gathered; names and forms are those of the family's files (experts one by
one, joined matrices apart). The policy is left as it is. A head that shares the embedding's weight is written beside it under its
own name, because servers that keep a copy of it would go on with the old one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import EngineError
from covey.models.inspect import innermost
from covey.sample.native.merged_weights import gathered, merged_weights, whole

NUMBERED = re.compile(r"^(.*?\.)?\d+(?=\.)")
"""The beginning of a name, up to its first number: the layer."""

OF_PEFT = re.compile(
    r"\.(base_layer|lora_\w+|modules_to_save|original_module|token_adapter|parametrizations)\."
)
"""Parts of names that no file of a model has."""


@dataclass(frozen=True)
class Piece:
    """One module that owns tensors, under the name that it has without adapters."""

    path: str
    module: nn.Module
    """With the adapter around it, where it has one."""
    factors: tuple[Any, ...] = ()
    """Adapters of single parameters of it (peft's `target_parameters`)."""

    @property
    def owned(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, as this process holds them: what is in a file of the model."""
        inner: Any = self.module
        while hasattr(inner, "base_layer"):
            inner = inner.base_layer
        if hasattr(inner, "W_q"):
            return {"weight": inner.W_q} | ({} if inner.bias is None else {"bias": inner.bias})
        kept = {n: b for n, b in inner._buffers.items() if n not in inner._non_persistent_buffers_set}
        return {n: t for n, t in (*inner._parameters.items(), *kept.items()) if t is not None}

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each tensor when it is whole and its quantisation undone."""
        found = {}
        for name, tensor in self.owned.items():
            state = getattr(tensor, "quant_state", None)
            shape = tensor.shape if state is None else state.shape
            if name == "weight" and hasattr(self.module, "W_q"):
                shape = self.module.meta["shape"]  # type: ignore[index]
            found[name] = torch.Size(getattr(tensor, "ds_shape", shape))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors as the policy computes with them. Collective where they are sharded; not to be written to."""
        owned = self.owned
        is_quantised = type(owned.get("weight")).__name__ in ("Params4bit", "Int8Params")
        if not (is_quantised or hasattr(self.module, "W_q") or hasattr(self.module, "base_layer")):
            values = {name: whole(tensor) for name, tensor in owned.items()}
        else:
            merged, bias = merged_weights(self.module)
            values = {"weight": merged} | ({} if bias is None else {"bias": bias})
        for wrapper in self.factors:
            if wrapper.disable_adapters:
                continue
            for name in wrapper.active_adapters:
                if name in wrapper.lora_A and name not in wrapper.merged_adapters:
                    with gathered(list(wrapper.parameters())):
                        delta = wrapper.get_delta_weight(name)
                    parameter = wrapper.parameter_name
                    values[parameter] = values[parameter].float() + whole(delta).float()
        return values


def pieces_of(module: nn.Module, path: str = "", factors: tuple[Any, ...] = ()) -> Iterator[Piece]:
    """Yield the modules of a causal model that own tensors, each once, in their order."""
    any_module: Any = module
    if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
        is_off = any_module.disable_adapters or not any_module.active_adapters
        chosen = any_module.original_module if is_off else None
        yield from pieces_of(
            chosen or any_module.modules_to_save[any_module.active_adapters[0]], path, factors
        )
    elif hasattr(module, "base_layer") and hasattr(module, "parameter_name"):
        yield from pieces_of(any_module.base_layer, path, (*factors, module))
    else:
        piece = Piece(path, module, factors)
        if piece.owned:
            yield piece
        if not hasattr(module, "base_layer"):
            for name, child in module.named_children():
                yield from pieces_of(child, f"{path}.{name}" if path else name)


@dataclass
class WeightBlock:
    """Pieces that are read together, because a file has them in another form together: a layer."""

    key: str
    pieces: list[Piece] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """Name of the head where it shares a weight here → the weight's name."""
    table: dict[str, Tensor] = field(default_factory=dict)
    """What it is in a file: names, and tensors without content."""


class SavedForm:
    """The form that a policy has in files.

    Args:
        policy: any causal model, whatever it is wrapped in.
        dtype: of the tensors in the files, but for those that the family keeps in float32.

    Attributes:
        blocks: what is read together, in the order of the files.
        table: name in the files → a tensor without content that has its shape and dtype.
        layers: keys of the blocks that are numbered: the layers of the model.
    """

    def __init__(self, policy: nn.Module, dtype: torch.dtype) -> None:
        self.causal = causal = _without_quantiser(innermost(policy))
        self.dtype = dtype
        strict = getattr(self.causal, "_keep_in_fp32_modules_strict", None) or ()
        self._exact = re.compile("|".join(rf"(?:^|\.){re.escape(n)}(?:$|\.)" for n in strict) or r"(?!)")
        blocks: dict[str, WeightBlock] = {}
        owner: dict[int, tuple[str, WeightBlock]] = {}
        self._skipped: set[str] = set()
        """Other names of tensors that are written under their first."""
        head = causal.get_output_embeddings() if hasattr(causal, "get_output_embeddings") else None
        for piece in pieces_of(self.causal):
            key = match[0] if (match := NUMBERED.match(piece.path + ".")) else piece.path
            for name, tensor in piece.owned.items():
                full = f"{piece.path}.{name}" if piece.path else name
                if id(tensor) in owner:
                    self._skipped.add(full)
                    first, block = owner[id(tensor)]
                    if name == "weight" and piece.module is head:
                        block.aliases[full] = first
                else:
                    owner[id(tensor)] = full, blocks.setdefault(key, WeightBlock(key))
            if key in blocks:
                blocks[key].pieces.append(piece)
        self.blocks = list(blocks.values())
        for block in self.blocks:
            self._refuse_split_ties(block)
        whole_table = self._as_saved({n: t for b in self.blocks for n, t in self._empty(b).items()})
        for block in self.blocks:
            block.table = self._as_saved(self._empty(block))
        parts = {name: tensor for block in self.blocks for name, tensor in block.table.items()}
        if {n: t.shape for n, t in parts.items()} != {n: t.shape for n, t in whole_table.items()}:
            # What a file joins lies in several layers: everything is read at once.
            everything = [p for b in self.blocks for p in b.pieces]
            ties = {k: v for b in self.blocks for k, v in b.aliases.items()}
            self.blocks = [WeightBlock("", everything, ties, whole_table)]
        self.table = {name: tensor for block in self.blocks for name, tensor in block.table.items()}
        if strange := next((n for n in self.table if OF_PEFT.search(f".{n}.")), None):
            raise EngineError(
                f"The adapter keeps {strange}, and no server knows such a weight. Train LoRA, or full weights, or sample with "
                "engine='native'."
            )

    @property
    def layers(self) -> list[str]:
        """Keys of the numbered blocks."""
        return [block.key for block in self.blocks if NUMBERED.match(block.key + ".")]

    @property
    def bytes(self) -> int:
        """Size of all tensors in files."""
        return sum(prod(t.shape) * t.element_size() for t in self.table.values())

    def read(self, block: WeightBlock, keeps: bool = True) -> dict[str, Tensor]:
        """Return a block as it is in files, on the CPU. Collective where the policy is sharded.

        Args:
            keeps: False: take part in the gathering, and return nothing.

        Raises:
            EngineError: a number in it is not finite.
        """
        values: dict[str, Tensor] = {}
        for piece in block.pieces:
            for name, tensor in piece.tensors().items():
                full = f"{piece.path}.{name}" if piece.path else name
                if keeps and full not in self._skipped:
                    values[full] = tensor.to(self._dtype_of(full, tensor)).cpu()
        if not keeps:
            return {}
        for name, tensor in values.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise EngineError(
                    f"The weight {name} of the policy holds numbers that are not finite, so no server can sample from it. A step "
                    "of training has diverged: lower the learning rate, or resume from an earlier checkpoint."
                )
        values |= {alias: values[name].clone() for alias, name in block.aliases.items()}
        return {name: tensor.contiguous() for name, tensor in self._as_saved(values).items()}

    def _dtype_of(self, name: str, tensor: Tensor) -> torch.dtype:
        if not (tensor.is_floating_point() or name.endswith("weight")):
            return tensor.dtype
        return torch.float32 if self._exact.search(name) else self.dtype

    def _empty(self, block: WeightBlock) -> dict[str, Tensor]:
        """Return the tensors of a block without content, named as in the policy."""
        found = {}
        for piece in block.pieces:
            for name, shape in piece.shapes().items():
                full = f"{piece.path}.{name}" if piece.path else name
                if full not in self._skipped:
                    dtype = self._dtype_of(full, piece.owned[name])
                    found[full] = torch.empty(shape, dtype=dtype, device="meta")
        return found | {alias: found[name].clone() for alias, name in block.aliases.items()}

    def _as_saved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors under the names and in the forms of files."""
        from transformers.core_model_loading import revert_weight_conversion

        ignored = getattr(self.causal, "_keys_to_ignore_on_save", None) or ()
        return revert_weight_conversion(self.causal, {n: t for n, t in tensors.items() if n not in ignored})

    def _refuse_split_ties(self, block: WeightBlock) -> None:
        """Refuse a head that shares the embedding's weight where an adapter changes one of the two alone."""
        for alias, name in block.aliases.items():
            ends = [self.causal.get_submodule(n.rpartition(".")[0]) for n in (alias, name)]
            if any(hasattr(end, "base_layer") for end in ends):
                raise EngineError(
                    f"{alias} and {name} are one weight, and an adapter changes it: a server has only one of the two. Leave the "
                    "embedding and the head out of target_modules."
                )


def _without_quantiser(causal: Any) -> Any:
    """Return the model, or a view of it that saves plain weights where it was loaded with quantisation."""
    conversions = getattr(causal, "_weight_conversions", None)
    if not conversions or getattr(causal, "hf_quantizer", None) is None:
        return causal
    view: Any = copy.copy(causal)
    view._weight_conversions = [
        c
        for c in conversions
        if not any("integrations" in type(o).__module__ for o in getattr(c, "operations", ()))
    ]
    return view
