"""The settings of the update → the values that the update works with. Settings come by name, validated.

A loss of your own takes the place of the loss that `loss_type` names, and keeps its reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from covey.config.choices import LOSS_SETTINGS, LOSS_TYPES, REDUCTIONS
from covey.errors import ConfigError
from covey.types import KlEstimator
from covey.update.entropy import Adaptation, EntropyBonus
from covey.update.losses import make_loss
from covey.update.objective import Objective
from covey.update.reduction import Reduction
from covey.update.sampler_correction import Correction
from covey.update.terms import Loss
from covey.update.token_selection import Selection

Settings = Mapping[str, Any]


def make_objective(s: Settings, own: Loss | None = None) -> Objective:
    """What is minimised."""
    kind = LOSS_TYPES[s["loss_type"]]
    correction = Correction(
        s["importance_sampling_mode"], s["importance_sampling_cap"], s["importance_sampling_floor"]
    )
    is_corrected = s["importance_sampling_correction"] and kind.is_corrected
    return Objective(
        loss=make_loss(s["loss_type"], s) if own is None else own,
        correction=correction if is_corrected else None,
        off_policy_threshold=s["off_policy_mask_threshold"],
        beta=s["beta"],
        kl_estimator=kl_estimator(s),
        unbiased_kl=s["use_bias_correction_kl"],
    )


def kl_estimator(s: Settings) -> KlEstimator:
    """The one that is named, or the one whose gradient is unbiased where the divergence goes."""
    return cast(KlEstimator, s["kl_estimator"] or ("k1" if s["kl_in_reward"] else "k3"))


def make_reduction(s: Settings) -> Reduction:
    """How token losses are summed."""
    return Reduction(
        LOSS_TYPES[s["loss_type"]].reduction, s["max_completion_length"], s["truncated_in_denominator"]
    )


def make_entropy_bonus(s: Settings) -> EntropyBonus:
    """The coefficient of the entropy bonus."""
    adaptation = Adaptation(
        s["entropy_target"], s["entropy_coef_delta"], s["entropy_coef_min"], s["entropy_coef_max"]
    )
    return EntropyBonus(s["entropy_coef"], adaptation if s["use_adaptive_entropy"] else None)


def make_selection(s: Settings, own: Loss | None = None) -> Selection:
    """Which tokens are chosen over a whole optimizer step."""
    kind = LOSS_TYPES[s["loss_type"]].loss if own is None else ""
    bounds = (s["covariance_low"], s["covariance_high"]) if kind == "clip_cov" else None
    share = s["covariance_share"] if kind in ("clip_cov", "kl_cov") else None
    return Selection(s["top_entropy_quantile"], share, bounds)


def needs_every_row(s: Settings, own: Loss | None = None) -> bool:
    """Whether a completion of advantage 0 changes the step: by a term of its own, or by what is counted over all.

    A loss of your own is asked for every row, unless it says `needs_every_row = False`.
    """
    if own is not None:
        by_loss = bool(getattr(own, "needs_every_row", True))
    else:
        by_loss = not LOSS_TYPES[s["loss_type"]].is_idle_without_advantage
    has_divergence = bool(s["beta"]) and not s["kl_in_reward"]
    has_bonus = make_entropy_bonus(s).is_used
    return by_loss or has_divergence or has_bonus or s["top_entropy_quantile"] < 1


def check_is_loss(own: Any) -> None:
    """A loss of your own is a function.

    Raises:
        ConfigError: it is something else, such as a name.
    """
    if not callable(own):
        raise ConfigError(
            f"loss is {own!r}; it must be a function of LossTerms that returns one loss per token. A loss that has a name "
            f"is chosen with GRPOConfig(loss_type=...): {', '.join(LOSS_TYPES)}."
        )


def check_own_loss(s: Settings, defaults: Settings) -> None:
    """A loss of your own goes with a plain reduction, and with no setting of the losses it replaces.

    Raises:
        ConfigError: it does not.
    """
    if s["loss_type"] not in REDUCTIONS:
        raise ConfigError(
            f"loss_type={s['loss_type']!r} names a loss, and GRPOTrainer was given one as `loss`. Beside it, loss_type says "
            f"how token losses are summed: {', '.join(REDUCTIONS)}."
        )
    corrections = {
        n for n in LOSS_SETTINGS if n.startswith("importance_sampling") and not n.endswith("level")
    }
    for name in sorted(LOSS_SETTINGS - corrections):
        if s[name] != defaults[name]:
            raise ConfigError(
                f"{name}={s[name]!r} has no effect: GRPOTrainer was given a loss of your own, which knows its settings "
                f"itself. Leave it at {defaults[name]!r}."
            )
