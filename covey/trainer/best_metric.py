"""The metric that the best checkpoint, early stopping and some schedules go by: whether an evaluation will have it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from covey.config import GRPOConfig
from covey.errors import ConfigError
from covey.rewards.contract import Reward
from covey.score.score_metrics import completion_metrics, reward_metrics

BY_REWARD = (
    "low",
    "high",
    "weight",
    "applicable_share",
    "gated_share",
    "error_share",
    "timeout_share",
    "cached_share",
    "zero_std_share",
)
"""What an evaluation says of each reward beside `reward_metrics`."""

OPEN = ("tasks/", "/mean/", "/pass@")
"""Parts of names that depend on the rows and on the completions per prompt."""


def evaluation_names(rewards: Sequence[str]) -> list[str]:
    """Return the metrics of an evaluation, without those of `OPEN`, and without what rewards and `compute_metrics` add."""
    names = ["reward", "reward/low", "reward/high", *(f"rewards/{name}/mean" for name in rewards)]
    names += [*reward_metrics((), rewards), *completion_metrics(())]
    for reward in rewards:
        names += [*(f"rewards/{reward}/{name}" for name in BY_REWARD), f"time/rewards/{reward}"]
    return list(dict.fromkeys([*names, "runtime", "samples_per_second"]))


def check_best_metric(
    args: GRPOConfig, rewards: Sequence[Reward], eval_dataset: object, adds_metrics: bool
) -> None:
    """Raise where the metric that the run goes by cannot be among those of an evaluation.

    A name that nothing resembles passes where something may add metrics: `compute_metrics`, or a reward that takes `log_metric`.

    Args:
        adds_metrics: whether there is a `compute_metrics`.

    Raises:
        ConfigError: it cannot.
    """
    asked = args.metric_for_best_model
    if asked is None or eval_dataset is None or args.eval_strategy == "no":
        return
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else []
    prefixes = [f"eval_{name}_" for name in sets] or ["eval_"]
    full = asked if asked.startswith("eval_") else f"eval_{asked}"
    names = evaluation_names([reward.name for reward in rewards])
    name = next((full.removeprefix(p) for p in prefixes if full.startswith(p)), None)
    if name in names or (name is not None and any(part in name for part in OPEN)):
        return
    known = [p + n for n in names for p in prefixes]
    close = [k for k in known if k.startswith(f"{full}/")][:1] or difflib.get_close_matches(
        full, known, 3, 0.75
    )
    is_loss = full.endswith("loss") and not adds_metrics
    may_be_added = adds_metrics or any(r.takes_all or "log_metric" in r.names for r in rewards)
    if name is None or close or is_loss or not may_be_added:
        raise refused(asked, is_loss, [*close, *(prefix + "reward" for prefix in prefixes)])


def refused(asked: str, is_loss: bool, instead: Sequence[str]) -> ConfigError:
    """Return the error that says why the metric cannot be gone by, and what to choose instead."""
    why = "no evaluation of this run has it"
    if is_loss:
        why = "a loss says nothing about learning here: it moves with the advantages, and is near 0 when all goes well"
    return ConfigError(
        f"metric_for_best_model is {asked!r}: {why}. Choose {' or '.join(dict.fromkeys(instead))}; docs/metrics.md has the "
        "names of all metrics."
    )
