"""Numbers of the tower of a policy that sees, from its modules without weights and its config."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from covey.forecast.seeing import Tower
from covey.vision.features import sees_with

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WIDTHS, OF_ROOT_MEAN_SQUARES, OF_ROTATION, OF_SCALES = 6, 2, 3, 2
"""Tensors of the hidden width that a layer keeps, and those that it keeps more; see `covey.forecast.seeing`."""
NORMS = 2
"""Of a layer, and one tensor more for each further one."""
FIRST_LAYER = re.compile(r"\b0\.")
OF_MLP = {"quick_gelu": 3}
"""Tensors of the intermediate width that an MLP keeps, by its activation."""
GATED, PLAIN = 4, 2


def tower_of(model: PreTrainedModel, quantised: set[int]) -> Tower:
    """Return the numbers of tower and projector.

    Args:
        model: of a family that sees, its weights frozen as in the run; inside no adapter.
        quantised: which parameters are, by their `id`.
    """
    tower: nn.Module = model.get_encoder(modality="image")
    seen, config = sees_with(model), cast(Any, tower.config)
    kinds = {type(module).__name__ for module in tower.modules()}
    norms = [n for n, m in tower.named_modules() if FIRST_LAYER.search(n) and "Norm" in type(m).__name__]
    is_gated = any("gate" in name for name, _ in tower.named_modules())
    hidden = int(first_of(config, "embed_dim", "hidden_size"))
    return Tower(
        weights=sum(p.numel() for p in seen),
        trained=sum(p.numel() for p in seen if p.requires_grad),
        quantised=sum(p.numel() for p in seen if id(p) in quantised),
        layers=int(first_of(config, "depth", "num_hidden_layers")),
        hidden=hidden,
        intermediate=int(getattr(config, "intermediate_size", None) or hidden * config.mlp_ratio),
        heads=int(first_of(config, "num_heads", "num_attention_heads")),
        widths=WIDTHS
        + OF_ROOT_MEAN_SQUARES * any("RMS" in kind for kind in kinds)
        + OF_ROTATION * any("Rotary" in kind for kind in kinds)
        + max(0, len(norms) - NORMS)
        + OF_SCALES * any("lambda" in name for name, _ in tower.named_parameters()),
        inner=GATED if is_gated else OF_MLP.get(str(getattr(config, "hidden_act", "")), PLAIN),
        depths=1 + len(getattr(config, "deepstack_visual_indexes", None) or ()),
        keeps=any(p.requires_grad for p in tower.parameters()),
    )


def first_of(config: Any, *names: str) -> Any:
    """Return the first of these entries of a config that it has."""
    return next(value for name in names if (value := getattr(config, name, None)) is not None)


def patches_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> int:
    """Return the patches that a tower makes of pictures, as its processor gives them: one by one, or in tiles."""
    pixels = inputs["pixel_values"]
    if pixels.ndim < 4:
        return math.prod(pixels.shape[:-1])
    patch = first_of(model.get_encoder(modality="image").config, "patch_size")
    height, width = patch if isinstance(patch, list | tuple) else (patch, patch)
    return math.prod(pixels.shape[:-3]) * (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
