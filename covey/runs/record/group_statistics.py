"""The numbers of a sampled batch: means with standard errors, statuses, duplicates.

Everything that curves with intervals and the hints need, so that neither has to read the completions. Completions of
one prompt are no independent samples; the unit is the group. The standard error of a mean over completions is that of
a cluster sample with groups as clusters (ratio estimator, Cochran, Sampling Techniques, 1977, chapter 6):

    se = sqrt( m / (m - 1) · Σ_g (s_g - n_g · mean)² ) / n

with m groups, n_g values in group g and s_g their sum, n = Σ n_g. One group has no standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul

from covey.types import ScoredGroup

Clusters = Sequence[Sequence[float]]
"""Values by group."""


def group_statistics(
    groups: Sequence[ScoredGroup], tasks: Sequence[str | None], weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the numbers of one batch by name; a name is missing where there is nothing to measure.

    Args:
        groups: the batch.
        tasks: task of each group.
        weights: weight by reward name; with it, `rewards/<reward>/advantage_share` says which reward trains the policy.

    Names: `groups`, `completions`; `reward/mean|se|groups|signal_share|failed_share|unscored_share`;
    `rewards/<reward>/mean|se|groups|count|min|max|constant_share|not_applicable_share|gated_share|failed_share|
    advantage_share`; `tasks/<task>/mean|se|groups|count`; `length/mean|se|groups|min|max`; `duplicate_share`, `truncated_share`,
    `empty_share`, `reward_length_correlation`; with tools also `turns/mean|se|groups`, `calls/mean|se|groups`, `call_failure_share`.
    `se` is a standard error, `groups` the groups that it rests on.
    """
    numbers: dict[str, float] = {"groups": len(groups), "completions": sum(len(g.totals) for g in groups)}
    totals = [[t for t in g.totals if t is not None] for g in groups]
    numbers |= _of_totals(groups, totals)
    for name in dict.fromkeys(name for g in groups for name in g.scores):
        numbers |= _of_reward(name, groups)
    for task in dict.fromkeys(t for t in tasks if t is not None):
        of_task = [values for values, name in zip(totals, tasks, strict=True) if name == task]
        numbers |= _mean_and_error(f"tasks/{task}", of_task)
        numbers[f"tasks/{task}/count"] = sum(map(len, of_task))
    return numbers | advantage_shares(groups, weights or {}) | _of_texts(groups) | _of_episodes(groups)


def advantage_shares(groups: Sequence[ScoredGroup], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each reward in the absolute advantage, for rewards that are summed before they are normalised.

    The advantage of a completion is (total - mean) / deviation, and total - mean is the sum over rewards of
    w_k (v_k - mean v_k), where the rewards apply to all completions of the group. Groups without spread have no say.
    """
    pulls = dict.fromkeys(weights, 0.0)
    for group in groups:
        totals = [t for t in group.totals if t is not None]
        spread = math.sqrt(math.fsum(d**2 for d in _centred(totals)) / max(1, len(totals) - 1))
        if spread <= 1e-9 * max(map(abs, totals), default=0.0):
            continue
        for name, weight in weights.items():
            values = [0.0 if s.status == "gated" else s.value for s in group.scores.get(name, ())]
            kept = [v for v, t in zip(values, group.totals, strict=False) if v is not None and t is not None]
            pulls[name] += abs(group.weights.get(name, weight)) * math.fsum(map(abs, _centred(kept))) / spread
    whole = math.fsum(pulls.values())
    return {f"rewards/{name}/advantage_share": pull / whole for name, pull in pulls.items()} if whole else {}


def _centred(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / max(1, len(values))
    return [v - mean for v in values]


def clustered_mean(clusters: Clusters) -> tuple[float | None, float | None]:
    """Return the mean over all values and its standard error with groups as clusters; None where there is none."""
    kept = [(math.fsum(c), len(c)) for c in clusters if len(c)]
    n = sum(size for _, size in kept)
    if not n:
        return None, None
    mean = math.fsum(total for total, _ in kept) / n
    m = len(kept)
    if m < 2:
        return mean, None
    squares = math.fsum((total - size * mean) ** 2 for total, size in kept)
    return mean, math.sqrt(m / (m - 1) * squares) / n


def _mean_and_error(name: str, clusters: Clusters) -> dict[str, float]:
    mean, error = clustered_mean(clusters)
    numbers = {f"{name}/mean": mean, f"{name}/se": error, f"{name}/groups": sum(map(bool, clusters))}
    return {key: value for key, value in numbers.items() if value is not None}


def _of_totals(groups: Sequence[ScoredGroup], totals: Clusters) -> dict[str, float]:
    numbers = _mean_and_error("reward", totals)
    if not groups:
        return numbers
    numbers["reward/signal_share"] = sum(any(a != 0 for a in g.advantages) for g in groups) / len(groups)
    completions = max(1, sum(len(g.totals) for g in groups))
    failed = sum(
        any(column[i].status == "failed" for column in g.scores.values())
        for g in groups
        for i, total in enumerate(g.totals)
        if total is None
    )
    numbers["reward/failed_share"] = failed / completions
    numbers["reward/unscored_share"] = 1 - (sum(map(len, totals)) + failed) / completions
    return numbers


def _of_reward(name: str, groups: Sequence[ScoredGroup]) -> dict[str, float]:
    columns = [g.scores[name] for g in groups if name in g.scores]
    values = [[s.value for s in column if s.value is not None] for column in columns]
    flat = [v for column in values for v in column]
    total = sum(map(len, columns))
    prefix = f"rewards/{name}"
    numbers = _mean_and_error(prefix, values)
    numbers[f"{prefix}/count"] = len(flat)
    if flat:
        several = [v for v in values if len(v) > 1]
        numbers[f"{prefix}/min"], numbers[f"{prefix}/max"] = min(flat), max(flat)
        if several:
            numbers[f"{prefix}/constant_share"] = sum(min(v) == max(v) for v in several) / len(several)
    for status in ("not_applicable", "gated", "failed"):
        share = sum(s.status == status for column in columns for s in column) / max(1, total)
        numbers[f"{prefix}/{status}_share"] = share
    return numbers


def _of_texts(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    completions = [c for g in groups for c in g.group.completions]
    if not completions:
        return {}
    lengths = [[float(c.num_written) for c in g.group.completions] for g in groups]
    flat = [n for column in lengths for n in column]
    distinct = sum(len({c.ids for c in g.group.completions}) for g in groups)
    numbers = _mean_and_error("length", lengths) | {"length/min": min(flat), "length/max": max(flat)}
    numbers["duplicate_share"] = 1 - distinct / len(completions)
    numbers["truncated_share"] = sum(c.is_truncated for c in completions) / len(completions)
    numbers["empty_share"] = sum(not c.text.strip() for c in completions) / len(completions)
    correlation = within_group_correlation(groups, lengths)
    return numbers if correlation is None else numbers | {"reward_length_correlation": correlation}


def _of_episodes(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return how many turns completions have, and how many calls were answered; nothing where all are plain."""
    turns = [[c.turns for c in g.group.completions if c.turns is not None] for g in groups]
    if not any(turns):
        return {}
    calls = [
        [[call for turn in of_one for call in turn.calls if call.status != "not_run"] for of_one in of_group]
        for of_group in turns
    ]
    answered = [call for of_group in calls for of_one in of_group for call in of_one]
    numbers = _mean_and_error("turns", [[len(of_one) for of_one in of_group] for of_group in turns])
    numbers |= _mean_and_error("calls", [[len(of_one) for of_one in of_group] for of_group in calls])
    if answered:
        numbers["call_failure_share"] = sum(call.has_failed for call in answered) / len(answered)
    return numbers


def within_group_correlation(groups: Sequence[ScoredGroup], lengths: Clusters) -> float | None:
    """Return the correlation of reward and length inside the groups (each group centred first); None without spread in both."""
    products, rewards, sizes = 0.0, 0.0, 0.0
    for group, column in zip(groups, lengths, strict=True):
        pairs = [(t, n) for t, n in zip(group.totals, column, strict=True) if t is not None]
        if len(pairs) < 2:
            continue
        t, n = (_centred(side) for side in zip(*pairs, strict=True))
        products += math.fsum(map(mul, t, n))
        rewards += math.fsum(d**2 for d in t)
        sizes += math.fsum(d**2 for d in n)
    scale = math.sqrt(rewards * sizes)
    return products / scale if scale > 1e-12 else None
