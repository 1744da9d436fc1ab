"""Settings of a curriculum: which prompts are drawn, by what they are expected to teach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.validation import help_text
from covey.errors import ConfigError
from covey.types import CurriculumKind

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig


@dataclass
class CurriculumSettings:
    """Settings of a curriculum."""

    curriculum: CurriculumKind | None = help_text(
        None,
        "Draw prompts by what they are expected to teach. 'exact': weighed, so that the gradient is on average that of all prompts alike; "
        "'biased': not weighed. Default: each prompt once per epoch.",
    )
    curriculum_from: str | None = help_text(
        None,
        "Folder of an earlier run whose pass rates the curriculum begins with. Default: it knows nothing.",
    )
    curriculum_floor: float = help_text(
        0.2, "Share of the draws that goes to all prompts alike, so that none is forgotten."
    )
    curriculum_half_life: float = help_text(
        50.0, "Rollouts in which what is known of a prompt loses half of its weight."
    )


def check_curriculum_settings(config: GRPOConfig) -> None:
    """Raise where a curriculum contradicts other settings, or would not be what its name says."""
    if not 0 < config.curriculum_floor < 1:
        raise ConfigError(
            f"curriculum_floor is {config.curriculum_floor}; it must lie between 0 and 1: at 0 a prompt could be forgotten for good, at 1 "
            "all are drawn alike."
        )
    if not 0 < config.curriculum_half_life < float("inf"):
        raise ConfigError(
            f"curriculum_half_life is {config.curriculum_half_life}; it must be a number of rollouts above 0."
        )
    if config.curriculum is None:
        return
    kind = f"curriculum={config.curriculum!r}"
    if not config.shuffle_dataset:
        raise ConfigError(
            f"{kind} draws prompts, and shuffle_dataset=False keeps the order of the dataset. Leave one of them out."
        )
    if config.dataloader_num_workers:
        raise ConfigError(
            f"{kind} knows the rows of a rollout only when it begins: dataloader_num_workers={config.dataloader_num_workers} has nothing to "
            "read ahead. Set it to 0."
        )
    if config.curriculum == "exact" and (mixed := across_groups(config)):
        raise ConfigError(
            f"{kind} cannot be exact with {' or '.join(mixed)}: what a group adds to the gradient depends on the other prompts of its "
            "step, which are drawn unequally. Leave it out, or say curriculum='biased'."
        )


def across_groups(config: GRPOConfig) -> list[str]:
    """Return the settings by which groups of a step change what another one adds to the gradient, beyond a common factor."""
    is_grpo = config.advantage_estimator == "grpo"
    is_gdpo = is_grpo and config.multi_objective_aggregation == "normalize_then_sum"
    found = {
        "scale_rewards='batch'": is_grpo and not is_gdpo and config.scale_rewards == "batch",
        "multi_objective_aggregation='normalize_then_sum'": is_gdpo,
        "advantage_estimator='reinforce_pp'": config.advantage_estimator == "reinforce_pp",
        "task_weights='equal'": config.task_weights == "equal",
        f"loss_type={config.loss_type!r}": config.loss_type in ("bnpo", "clip_cov", "kl_cov"),
        "top_entropy_quantile": config.top_entropy_quantile < 1,
        "importance_sampling_mode='token_m2'": config.importance_sampling_mode == "token_m2",
    }
    return [name for name, is_on in found.items() if is_on]
