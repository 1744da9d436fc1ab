"""What if: advantages and losses of recorded groups under other weights, estimators, filters or a changed reward.

    from covey.rescore import WhatIf, rescore

    changed = rescore("quickstart-run", WhatIf(weights={"format": 0.0}))
    print(changed.summary())
    changed.frame().query("flips")          # the completions that would be pushed the other way

No model is needed. The advantages are those of `score.advantages`, on the rounds in which the groups were scored. The loss
is that of the first pass, where every ratio is 1: -Σ w_i n_i A_i, with the token weights w_i of `update.reduction`, n_i
tokens and advantage A_i; and |w_i n_i A_i| is how hard a completion pulls.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from covey.errors import ConfigError, RewardError
from covey.groups import Completion, Group, Prompt, Score
from covey.loss_types import LOSS_TYPES, REDUCTIONS
from covey.rewards.contract import Reward
from covey.rewards.evaluate import evaluate
from covey.runs import Run
from covey.runs.regroup import regroup
from covey.score.advantages import Scale, has_spread, rows_of
from covey.score.estimators import Outcomes, estimator
from covey.score.scorer import reward_batch
from covey.update.batch import Sample
from covey.update.reduction import Reduction, Totals, row_weights

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Floats = NDArray[np.float64]

AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
SCALES = ("group", "batch", "none")
LOSSES = tuple(REDUCTIONS)


@dataclass(frozen=True)
class WhatIf:
    """How the recorded groups are to be scored instead. What is None stays as it was."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by reward name; rewards that are not named keep theirs."""
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions that take the place of recorded rewards, or stand beside them under a new name with weight 1."""
    multi_objective_aggregation: str | None = None
    scale_rewards: str | None = None
    loss_type: str | None = None
    mask_truncated_completions: bool | None = None
    drop_groups_without_spread: bool = False
    """Leave groups without spread out of the loss and its totals, as dynamic sampling does."""


@dataclass(frozen=True)
class Scoring:
    """Rows under one way of scoring; one value per completion."""

    totals: Floats
    """NaN where nothing scored it, or a reward failed."""
    advantages: Floats
    pulls: Floats
    """|w n A|: how hard it pulls; those of a step are comparable."""
    loss: Floats
    """What it adds to the loss of its step at the first pass."""


@dataclass(frozen=True)
class Rescored:
    """The recorded completions before and after."""

    keys: Mapping[str, NDArray[Any]]
    """step, group, index, row, tokens."""
    before: Scoring
    after: Scoring
    skipped: int = 0
    """Completions left out, because a changed reward needs texts and these were not recorded."""

    @property
    def flips(self) -> NDArray[np.bool_]:
        """Whether the advantage changes its sign: the completion would be pushed the other way."""
        return self.before.advantages * self.after.advantages < 0

    def summary(self) -> dict[str, float]:
        """The change in numbers."""
        n = max(1, len(self.flips))
        starts = (self.before.advantages == 0) & (self.after.advantages != 0)
        stops = (self.before.advantages != 0) & (self.after.advantages == 0)
        return {
            "completions": len(self.flips),
            "skipped": self.skipped,
            "flips": int(self.flips.sum()),
            "flip_share": float(self.flips.sum() / n),
            "starts_to_count": int(starts.sum()),
            "stops_to_count": int(stops.sum()),
            "signal_share_before": self._signal_share(self.before),
            "signal_share_after": self._signal_share(self.after),
            "loss_before": self._mean_loss(self.before),
            "loss_after": self._mean_loss(self.after),
            "correlation": _correlation(self.before.advantages, self.after.advantages),
        }

    def frame(self) -> pd.DataFrame:
        """One row per completion: keys, totals, advantages and pulls before and after, `flips`."""
        import pandas as pd

        columns: dict[str, Any] = dict(self.keys)
        for name in ("totals", "advantages", "pulls", "loss"):
            columns[f"{name}_before"] = getattr(self.before, name)
            columns[f"{name}_after"] = getattr(self.after, name)
        return pd.DataFrame(columns | {"flips": self.flips})

    def _signal_share(self, scoring: Scoring) -> float:
        """Share of the groups in which any completion has an advantage."""
        rows = rows_of(_group_ids(self.keys["step"], self.keys["group"]))
        return float(np.mean([np.any(scoring.advantages[r] != 0) for r in rows])) if rows else 0.0

    def _mean_loss(self, scoring: Scoring) -> float:
        steps = rows_of(self.keys["step"])
        return float(np.mean([scoring.loss[r].sum() for r in steps])) if steps else 0.0


def rescore(run: Run | str | Path, what_if: WhatIf, steps: Container[int] | None = None) -> Rescored:
    """Score the recorded groups of a run another way.

    Args:
        run: the run, its output directory, or its record.
        what_if: what is to be different.
        steps: only these steps, for example `range(100, 200)`.

    Raises:
        FileNotFoundError: there is no record.
        ConfigError: a weight of a reward that the run does not have, or a setting that does not exist.
        RewardError: a changed reward asks for what is not recorded, or breaks the contract.
    """
    run = run if isinstance(run, Run) else Run(run)
    recorded = _recorded(run)
    wanted = _resolved(what_if, recorded, run)
    functions = [Reward(function, name) for name, function in what_if.rewards.items()]
    parts, skipped = [], 0
    for rows in _rounds(run, steps):
        groups = regroup(rows) if functions else []
        if groups is None:
            skipped += rows.num_rows
            continue
        replaced = _run_again(functions, groups) if functions else {}
        parts.append((_keys(rows), _score(rows, recorded, {}, run), _score(rows, wanted, replaced, run)))
    return Rescored(
        {name: np.concatenate([keys[name] for keys, _, _ in parts] or [np.empty(0)]) for name in _KEYS},
        _joined([before for _, before, _ in parts]),
        _joined([after for _, _, after in parts]),
        skipped,
    )


_KEYS = ("step", "group", "index", "row", "tokens")


def _recorded(run: Run) -> WhatIf:
    """The way in which the run itself scored."""
    settings = run.settings
    scale = settings.get("scale_rewards", "group")
    return WhatIf(
        weights=run.rewards,
        multi_objective_aggregation=settings.get("multi_objective_aggregation", "sum_then_normalize"),
        scale_rewards=("group" if scale else "none") if isinstance(scale, bool) else scale,
        loss_type=settings.get("loss_type", "dapo"),
        mask_truncated_completions=bool(settings.get("mask_truncated_completions", False)),
    )


def _resolved(what_if: WhatIf, recorded: WhatIf, run: Run) -> WhatIf:
    """The changes laid over what was recorded."""
    unknown = sorted(set(what_if.weights) - set(run.rewards) - set(what_if.rewards))
    if unknown:
        raise ConfigError(f"Run {run.name!r} has no reward {unknown[0]!r}; it has: {', '.join(run.rewards)}.")
    weights = {**recorded.weights, **{name: 1.0 for name in what_if.rewards if name not in recorded.weights}}
    wanted = replace(
        recorded,
        weights=weights | dict(what_if.weights),
        multi_objective_aggregation=what_if.multi_objective_aggregation
        or recorded.multi_objective_aggregation,
        scale_rewards=what_if.scale_rewards or recorded.scale_rewards,
        loss_type=what_if.loss_type or recorded.loss_type,
        drop_groups_without_spread=what_if.drop_groups_without_spread,
        mask_truncated_completions=(
            recorded.mask_truncated_completions
            if what_if.mask_truncated_completions is None
            else what_if.mask_truncated_completions
        ),
    )
    _one_of("multi_objective_aggregation", wanted.multi_objective_aggregation, AGGREGATIONS)
    _one_of("scale_rewards", wanted.scale_rewards, SCALES)
    _one_of("loss_type", wanted.loss_type, LOSSES)
    return wanted


def _one_of(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; rescore knows {', '.join(known)}.")


def _rounds(run: Run, steps: Container[int] | None) -> Iterator[pa.Table]:
    """The completions that were scored together, round by round. A round never crosses two segments."""
    for table in run.group_tables():
        numbers = table["step"].to_numpy()
        edges = [int(i) for i in np.flatnonzero(np.diff(numbers, prepend=-1))]
        for start, stop in zip(edges, [*edges[1:], len(numbers)], strict=True):
            if steps is None or int(numbers[start]) in steps:
                yield table.slice(start, stop - start)


def _run_again(functions: Sequence[Reward], groups: Sequence[Group]) -> dict[str, list[Score]]:
    for reward in functions:
        if "completion_ids" in reward.required:
            raise RewardError(
                f"Reward {reward.name!r} asks for completion_ids, which are not recorded. Write it on the text, or on the "
                "recorded length."
            )
        missing = reward.missing_columns({name for g in groups for name in g.prompt.columns})
        if missing:
            raise RewardError(
                f"Reward {reward.name!r} asks for the column {missing[0]!r}, which the recorded rows do not have. They "
                f"have: {', '.join(sorted({name for g in groups for name in g.prompt.columns})) or 'none'}."
            )
    return evaluate(functions, {r.name: 1.0 for r in functions}, reward_batch(groups)).scores


def _score(rows: pa.Table, how: WhatIf, replaced: Mapping[str, Sequence[Score]], run: Run) -> Scoring:
    """The rows of one round under one way of scoring."""
    names = list(how.weights)
    weights = [how.weights[name] for name in names]
    values, failed = _values(rows, names, replaced)
    totals = _totals(values, failed, weights)
    ids = _group_ids(rows["step"].to_numpy(), rows["group"].to_numpy())
    named = str(run.settings.get("advantage_estimator") or "grpo")
    estimate = estimator(named, str(how.multi_objective_aggregation), cast(Scale, how.scale_rewards))
    lengths = rows["tokens"].to_numpy().astype(np.float64)
    advantages = estimate(Outcomes(values, np.broadcast_to(weights, values.shape), totals, ids, lengths))
    return _weighed(rows, how, totals, np.asarray(advantages), ids, run)


def _values(
    rows: pa.Table, names: Sequence[str], replaced: Mapping[str, Sequence[Score]]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Values with NaN for none, a gated score as 0; and the rows that a failure takes out.

    A failure that did not take a completion out when it was recorded (its reward was optional) does not now.
    """
    values = np.full((rows.num_rows, len(names)), np.nan)
    failed = np.zeros(rows.num_rows, dtype=bool)
    was_scored = np.asarray(rows["total"].is_valid())
    for k, name in enumerate(names):
        if name in replaced:
            scores = replaced[name]
            values[:, k] = [np.nan if s.value is None else s.value for s in scores]
            failed |= np.array([s.status == "failed" for s in scores])
        elif f"score/{name}" in rows.column_names:
            status = np.array(rows[f"status/{name}"].to_pylist(), dtype=object)
            values[:, k] = rows[f"score/{name}"].to_numpy(zero_copy_only=False).astype(np.float64)
            values[status == "gated", k] = 0.0
            failed |= (status == "failed") & ~was_scored
    return values, failed


def _totals(values: Floats, failed: NDArray[np.bool_], weights: Sequence[float]) -> Floats:
    unscored = np.isnan(values).all(axis=1) | failed
    return np.where(unscored, np.nan, np.nansum(values * np.asarray(weights), axis=1))


def _weighed(
    rows: pa.Table, how: WhatIf, totals: Floats, advantages: Floats, ids: NDArray[np.int64], run: Run
) -> Scoring:
    """Losses and pulls from advantages, by the token weights of the loss."""
    kept = np.ones(rows.num_rows, dtype=bool)
    if how.drop_groups_without_spread:
        for r in rows_of(ids):
            kept[r] = has_spread(totals[r])
    samples = _samples(rows, ids, bool(how.mask_truncated_completions))
    limit = int(run.settings.get("max_completion_length") or max(len(s.completion.ids) for s in samples))
    reduction = Reduction(LOSS_TYPES[str(how.loss_type)].reduction, limit)
    counted = [s for s, keeps in zip(samples, kept, strict=True) if keeps]
    weights = np.zeros(rows.num_rows)
    weights[kept] = row_weights(reduction, counted, Totals.of(counted))
    terms = weights * np.array([s.num_loss_tokens for s in samples]) * advantages
    return Scoring(totals, advantages, np.abs(terms), -terms)


def _samples(rows: pa.Table, ids: NDArray[np.int64], masks_truncated: bool) -> list[Sample]:
    """Recorded completions as the reducer takes them: lengths and groups are all that it looks at."""
    samples = []
    for tokens, finish, group in zip(
        rows["tokens"].to_pylist(), rows["finish"].to_pylist(), ids, strict=True
    ):
        prompt = Prompt("", (0,), seed_key=(int(group),))
        completion = Completion((0,) * tokens, (0.0,) * tokens, "", finish)
        samples.append(
            Sample(prompt, completion, 0.0, int(group), not (masks_truncated and finish == "length"))
        )
    return samples


def _keys(rows: pa.Table) -> dict[str, NDArray[Any]]:
    return {name: rows[name].to_numpy() for name in _KEYS}


def _group_ids(steps: NDArray[Any], groups: NDArray[Any]) -> NDArray[np.int64]:
    return steps.astype(np.int64) * 1_000_003 + groups.astype(np.int64)


def _joined(parts: Sequence[Scoring]) -> Scoring:
    names = ("totals", "advantages", "pulls", "loss")
    return Scoring(*(np.concatenate([getattr(p, name) for p in parts] or [np.empty(0)]) for name in names))


def _correlation(a: Floats, b: Floats) -> float:
    """Correlation of two columns; 0 where one of them is constant."""
    if a.size < 2 or not a.std() or not b.std():
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
