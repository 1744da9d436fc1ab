"""Weights disturbed so that every tensor shows in the log-probabilities, and put back to the bit.

A server that goes on with an old tensor, drops one or puts it somewhere else is told from rounding only where that one tensor moves
the output by a good part of what the whole disturbance does. So only two layers are disturbed at once, and of them what works
together: what scores attention, what attention carries, the feed-forward part, and what is added to the stream. Signs are flipped in
a pattern of both dimensions: plain negation cancels (queries with keys, values with outputs, an embedding with a tied head). Matrices
of a fresh model, whose layers hardly act, are made larger by a power of two, which is exact. What is small or zero (norms, biases,
adapters at their start) is moved besides.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from covey.sample.remote.effective import NUMBERED, SavedForm, WeightBlock

LAYERS = 2
"""Layers that are disturbed together."""

STRIDES = (5, 7)
"""The sign of every fifth and of every seventh number is flipped: a good quarter of all, and rows are unlike. More of them, and the
model is so far from itself that rounding in 16 bits grows like the fault that is looked for."""

ROW = 1.5
"""Length that rows of a matrix are brought near to: then what a layer reads, whose numbers are about 1, gives numbers about 1."""

WORDS = {
    "scores": "what scores attention",
    "values": "what attention carries",
    "mlp": "the feed-forward part",
    "offsets": "what is added to the stream",
    "sinks": "the sinks of attention",
    "rest": "the other tensors",
    "adapter": "the adapter",
}

_OFFSET = re.compile(r"(o_proj|out_proj|down_proj|c_proj|fc2|fc_out|wo|dense|dense_4h_to_h)(\.|_)bias$")
_SCORES = re.compile(r"q_proj|k_proj|q_norm|k_norm|query|key|\bq_|\bkv_a|\bq\b|\bk\b")
_JOINED = re.compile(r"qkv|c_attn|query_key_value|kv_b|Wqkv")
_ATTENTION = re.compile(r"attn|attention|\bv_|value")
_FORWARD = re.compile(r"mlp|feed_?forward|ffn?\b|moe|expert|router|\bfc|dense_h|dense_4h|gate")
_NORM = re.compile(r"norm|\bln")


def parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a layer in which a tensor is disturbed, by its name."""
    inside = name[match.end() :] if (match := NUMBERED.match(name)) else name
    is_norm = bool(_NORM.search(inside)) and not re.search(r"q_norm|k_norm|q_a_|kv_a_", inside)
    if is_norm:  # one kind of them hides another
        return (f"{inside.split('.')[-2]} alone",)
    if _OFFSET.search(inside):
        return ("offsets",)
    if "sinks" in inside:  # too weak beside others
        return ("sinks",)
    if _JOINED.search(inside):
        return ("scores", "values")
    if _SCORES.search(inside):
        return ("scores",)
    if _ATTENTION.search(inside) and not re.search(r"mlp|expert", inside):
        return ("values",)
    if _FORWARD.search(inside):
        return ("mlp",)
    return (f"rest{zlib.crc32(inside.encode()) % 2}",)


def groups_of(form: SavedForm) -> list[list[WeightBlock]]:
    """Return the blocks that are disturbed together: layers, then embedding and head, then what is left."""
    layers = [b for b in form.blocks if b.key in form.layers]
    others = [b for b in form.blocks if b.key not in form.layers]
    ends = [b for b in others if any(s and len(s) > 1 for p in b.pieces for s in p.shapes().values())]
    rest = [b for b in others if b not in ends]
    pairs = [layers[i : i + LAYERS] for i in range(0, len(layers), LAYERS)]
    return [group for group in (*pairs, ends, rest) if group]


def disturbable(
    blocks: Sequence[WeightBlock], only_adapter: bool = False
) -> dict[str, list[tuple[str, Tensor]]]:
    """Return the parameters of blocks by the part they are disturbed in; of one that is quantised, or with `only_adapter`, its adapter's."""
    found: dict[str, list[tuple[str, Tensor]]] = {}
    seen: set[int] = set()
    for block in blocks:
        for piece in block.pieces:
            adapters: Any = getattr(piece.module, "lora_B", {})
            ups = [(f"{piece.path}.lora_B", up.weight) for up in adapters.values()]
            own = [(f"{piece.path}.{n}", t) for n, t in piece.owned.items() if _is_plain(n, t)]
            chosen = ups if only_adapter or not own else own
            for name, tensor in chosen:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    numbered = bool(NUMBERED.match(name))
                    for part in parts_of(name.replace(".lora_B", ".weight")) if numbered else ("rest",):
                        found.setdefault(part, []).append((name, tensor))
    return found


def _is_plain(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor can be written to: no quantised one, and no buffer but a bias."""
    is_kept = isinstance(tensor, nn.Parameter) or (name.endswith("bias") and tensor.ndim == 1)
    return is_kept and tensor.is_floating_point() and not hasattr(tensor, "quant_state")


@contextmanager
def disturbed(parameters: Sequence[tuple[str, Tensor]]) -> Iterator[None]:
    """Disturb parameters inside, and put them back to the bit; each process its own part of what is sharded."""
    kept: list[tuple[Tensor, Tensor | float]] = []
    try:
        with torch.no_grad():
            for name, parameter in parameters:
                local = _own_part(parameter)
                shape = getattr(parameter, "ds_shape", parameter.shape)
                is_matrix = len(shape) > 1 and NUMBERED.match(name) and "lora_B" not in name
                if local.is_contiguous() and _has_size(local) and not name.endswith(("bias", "sinks")):
                    factor = _factor(local, shape[-1]) if is_matrix else 1.0
                    kept.append((local, factor))
                    _flip(local)
                    local.mul_(factor)
                else:
                    kept.append((local, local.clone()))
                    _move(name, local, shape)
        yield
    finally:
        with torch.no_grad():
            for local, before in reversed(kept):
                if isinstance(before, float):
                    local.mul_(1 / before)
                    _flip(local)
                else:
                    local.copy_(before)


def _own_part(parameter: Any) -> Tensor:
    """Return the numbers of a parameter that this process holds."""
    if hasattr(parameter, "to_local"):
        local: Tensor = parameter.to_local()
        return local
    if hasattr(parameter, "ds_id") and parameter.data.numel() != parameter.ds_numel:
        part: Tensor = parameter.ds_tensor.data
        return part
    data: Tensor = parameter.data
    return data


def _flip(local: Tensor) -> None:
    flat = local.view(-1)
    for stride in STRIDES:
        flat[::stride].neg_()


def _has_size(local: Tensor) -> bool:
    """Return whether numbers are large enough that their signs matter; norms that add one begin at zero."""
    least = 0.02 if local.ndim == 1 else 0.0
    return local.numel() > 0 and float(local.float().pow(2).mean().sqrt()) > least


def _factor(local: Tensor, width: int) -> float:
    """Return the power of two, at least 1, that brings the rows of a matrix nearest to `ROW`."""
    length = float(local.float().pow(2).mean().sqrt()) * math.sqrt(width)
    return 2.0 ** min(8, max(0, round(math.log2(ROW / max(length, 1e-9)))))


def _move(name: str, local: Tensor, shape: Sequence[int]) -> None:
    """Negate the numbers, and add a pattern of signs: of a size that shows, whatever they were."""
    size = 0.5
    if "sinks" in name:
        size = 8.0
    elif name.endswith("bias"):
        size = 2.0 if _SCORES.search(name) or _OFFSET.search(name) else 1.0
    elif len(shape) > 1:
        size = 2.0 / math.sqrt(shape[-1])
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    signs = torch.randint(0, 2, local.shape, generator=generator) * 2.0 - 1.0
    if len(shape) == 1 or name.endswith("bias"):
        local.neg_()
    local.add_(signs.to(local.device, local.dtype), alpha=size)
