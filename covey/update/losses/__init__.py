"""The losses, one file each: what a token contributes before the reduction.

Each file gives the formula, the paper, and where it departs from it. A loss is a frozen value with the settings that act
on it, called with `covey.update.terms.LossTerms`; it returns the loss of each token and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from covey.config.choices import LOSS_TYPES
from covey.types import LossType
from covey.update.losses.cispo import Cispo
from covey.update.losses.clip_cov import ClipCov
from covey.update.losses.clipped import Clip, Clipped
from covey.update.losses.dppo import Dppo
from covey.update.losses.gmpo import Gmpo
from covey.update.losses.kl_cov import KlCov
from covey.update.losses.luspo import Luspo
from covey.update.losses.sapo import Sapo
from covey.update.losses.vespo import Vespo
from covey.update.terms import Loss

Settings = Mapping[str, Any]


def make_loss(loss_type: LossType, settings: Settings) -> Loss:
    """The loss that a name of `covey.config.choices.LOSS_TYPES` stands for.

    Args:
        settings: values of at least the settings that act on it, by name.
    """
    return _BUILDERS[LOSS_TYPES[loss_type].loss](settings)


def _clip(s: Settings) -> Clip:
    high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
    return Clip(s["epsilon"], high, s.get("delta"))


_BUILDERS: dict[str, Callable[[Settings], Loss]] = {
    "clipped": lambda s: Clipped(_clip(s), s["importance_sampling_level"]),
    "luspo": lambda s: Luspo(_clip(s)),
    "gmpo": lambda s: Gmpo(_clip(s)),
    "cispo": lambda s: Cispo(
        s["epsilon"], s["epsilon_high"], s["cispo_bound"], s["importance_sampling_level"]
    ),
    "sapo": lambda s: Sapo(
        s["sapo_temperature_pos"], s["sapo_temperature_neg"], s["importance_sampling_level"]
    ),
    "vespo": lambda s: Vespo(
        (s["vespo_k_pos"], s["vespo_lambda_pos"]),
        (s["vespo_k_neg"], s["vespo_lambda_neg"]),
        s["importance_sampling_correction"],
    ),
    "dppo": lambda s: Dppo(_clip(s), s["dppo_kl_coef"]),
    "clip_cov": lambda s: ClipCov(_clip(s)),
    "kl_cov": lambda s: KlCov(s["kl_cov_coef"]),
}
