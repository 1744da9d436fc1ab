"""Choices of the settings that no step reads, and what each `loss_type` stands for.

The choices that a step reads are in `covey.types`. `LOSS_TYPES` is one table for the settings, which refuse what would have
no effect, and for the update, which builds what it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.errors import ConfigError
from covey.types import LossType, ReductionName

Display = Literal["auto", "live", "plain"]
"""The terminal shows a live display, or prints lines; `auto`: live on a terminal."""

QuantType = Literal["nf4", "fp4"]
"""The format of 4-bit weights."""

_BOUNDS = frozenset({"epsilon", "epsilon_high"})
_LEVEL = frozenset({"importance_sampling_level"})
_CORRECTION = frozenset(
    {
        "importance_sampling_correction",
        "importance_sampling_mode",
        "importance_sampling_cap",
        "importance_sampling_floor",
        "importance_sampling_m2",
    }
)
_CLIP = _BOUNDS | _LEVEL | {"delta"}


@dataclass(frozen=True)
class LossSpec:
    """The loss, the reduction and the settings behind a name of `loss_type`."""

    loss: str
    """The loss of a token: a file of `covey.update.losses`."""
    reduction: ReductionName
    """How the losses of tokens are summed."""
    options: frozenset[str]
    """Settings that act on the loss of a token."""

    @property
    def settings(self) -> frozenset[str]:
        """All settings of `LOSS_SETTINGS` that act."""
        return self.options | (_CORRECTION if self.is_corrected else frozenset())

    @property
    def is_corrected(self) -> bool:
        """Whether its tokens are weighed by π_old / π_sampled; the others compare with the sampler themselves."""
        return self.loss not in ("dppo", "vespo")


LOSS_TYPES: dict[LossType, LossSpec] = {
    "grpo": LossSpec("clipped", "grpo", _CLIP),
    "dr_grpo": LossSpec("clipped", "dr_grpo", _CLIP),
    "dapo": LossSpec("clipped", "dapo", _CLIP),
    "bnpo": LossSpec("clipped", "bnpo", _CLIP),
    "prompt_mean": LossSpec("clipped", "prompt_mean", _CLIP),
    "luspo": LossSpec("luspo", "luspo", _BOUNDS | {"delta"}),
    "gmpo": LossSpec("gmpo", "grpo", _BOUNDS),
    "cispo": LossSpec("cispo", "dapo", _BOUNDS | _LEVEL | {"cispo_bound"}),
    "sapo": LossSpec("sapo", "grpo", _LEVEL | {"sapo_temperature_pos", "sapo_temperature_neg"}),
    "vespo": LossSpec(
        "vespo",
        "dapo",
        frozenset(
            {
                "vespo_k_pos",
                "vespo_lambda_pos",
                "vespo_k_neg",
                "vespo_lambda_neg",
                "importance_sampling_correction",
            }
        ),
    ),
    "dppo": LossSpec("dppo", "dapo", _BOUNDS | {"dppo_kl_coef"}),
    "clip_cov": LossSpec(
        "clip_cov",
        "dapo",
        _BOUNDS | {"delta", "covariance_share", "covariance_low", "covariance_high"},
    ),
    "kl_cov": LossSpec(
        "kl_cov",
        "dapo",
        frozenset({"covariance_share", "kl_cov_coef"}),
    ),
}

REDUCTIONS = tuple(name for name, spec in LOSS_TYPES.items() if spec.loss == "clipped")
"""Loss types that share the clipped loss and differ in the reduction alone; a loss of your own goes with one of them."""

OTHER_SETTINGS = {
    "gspo": 'importance_sampling_level="sequence" beside loss_type="grpo"',
    "gspo_token": 'importance_sampling_level="sequence_token" beside loss_type="grpo"',
    "rloo": 'advantage_estimator="rloo"',
    "reinforce++": 'advantage_estimator="reinforce_pp"',
    "reinforce_pp": 'advantage_estimator="reinforce_pp"',
    "maxrl": 'advantage_estimator="maxrl"',
    "opo": 'advantage_estimator="opo"',
    "pass_at_k": 'advantage_estimator="pass_at_k"',
    "gdpo": 'multi_objective_aggregation="normalize_then_sum"',
}
"""Algorithms that a user may look for under `loss_type`, and the settings that choose them."""

LOSS_SETTINGS: frozenset[str] = frozenset().union(*(o.settings for o in LOSS_TYPES.values()))
"""Settings that act on some loss types and not on others."""


def completions_share(record_completions: object) -> float:
    """Return `all`, `none` or a share as a share in [0, 1].

    Raises:
        ConfigError: it is none of these.
    """
    if record_completions == "none":
        return 0.0
    share = 1.0 if record_completions == "all" else record_completions
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1:
        return float(share)
    raise ConfigError(
        f"record_completions is {record_completions!r}. Give 'all', 'none', or the share of the groups whose texts are "
        "recorded, in (0, 1]."
    )
