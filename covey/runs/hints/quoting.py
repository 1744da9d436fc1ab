"""Hints that quote what was measured, and beyond which distance: a symptom and a setting that explains it."""

from __future__ import annotations

from collections.abc import Mapping

from covey.runs.evidence import distances
from covey.runs.hints.history import History

TOO_FAST = ("learning_rate", 10.0)
TOO_SLOW = ("learning_rate", 0.1)

SYMPTOMS: Mapping[str, tuple[str, float]] = {
    "kl_runs_away": TOO_FAST,
    "entropy_runs_away": TOO_FAST,
    "reward_peaked_and_fell": TOO_FAST,
    "length_doubles_while_the_reward_falls": TOO_FAST,
    "reward_never_rose": TOO_SLOW,
    "most_completions_are_cut_off": ("max_completion_length", 0.5),
    "no_group_has_spread": ("num_generations", 0.5),
    "clipping_never_acts": ("epsilon", 5.0),
    "clipping_always_acts": ("epsilon", 0.2),
}
"""By rule: the setting, and from how many times the most on (above 1), or up to which part of the least, it explains the symptom."""


def quoted(rule: str, history: History) -> tuple[str, ...]:
    """Return what was measured, as the first advice of a hint; nothing where the setting is no explanation."""
    weights, trained = history.model.get("parameters"), history.model.get("trainable")
    if rule not in SYMPTOMS or not isinstance(weights, int) or not isinstance(trained, int):
        return ()
    setting, bound = SYMPTOMS[rule]
    own = [d for d in distances(history.settings, weights, trained) if d.setting == setting]
    return tuple(f"{setting}: {d}" for d in own if (d.times >= bound if bound > 1 else d.times <= bound))
