"""Names of metrics that are Covey's own or the Trainer's: a number that a user logs has another one."""

from __future__ import annotations

FAMILIES = frozenset(
    [
        "advantages",
        "allocation",
        "async",
        "clip_ratio",
        "completions",
        "constraints",
        "covariance",
        "curriculum",
        "dppo",
        "dynamic_sampling",
        "engine",
        "entropy",
        "episodes",
        "kl",
        "loss",
        "memory",
        "prompts",
        "ratio",
        "replay",
        "reward",
        "rewards",
        "sampling",
        "tasks",
        "time",
        "tools",
        "update",
        "vespo",
        "vision",
    ]
)
"""Whatever begins with one of these and a slash is Covey's, that of a later version too."""
SINGLE = frozenset(
    [
        "aux_loss",
        "cispo_clip_ratio",
        "entropy",
        "entropy_coef",
        "epoch",
        "frac_reward_zero_std",
        "grad_norm",
        "kl",
        "learning_rate",
        "loss",
        "num_tokens",
        "policy_loss",
        "reward",
        "reward_std",
        "runtime",
        "samples_per_second",
        "step",
        "step_time",
        "steps_per_second",
        "total_flos",
    ]
)
PREFIXES = ("eval_", "train_")
"""Of the same names in an evaluation, and of the whole run."""


def is_reserved(name: str) -> bool:
    """Return whether a name is that of a number which Covey or `transformers.Trainer` logs."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    family, separator, _ = name.partition("/")
    return name in SINGLE or (bool(separator) and family in FAMILIES)
