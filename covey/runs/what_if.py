"""Advantages and losses of recorded groups under other weights, estimators, filters or a changed reward.

    from covey.runs.what_if import WhatIf, rescore

    changed = rescore("quickstart-run", WhatIf(weights={"format": 0.0}))
    print(changed.summary())
    changed.frame().query("flips")          # the completions that would be pushed the other way

No model is needed. The advantages are those of `covey.score`, on the rounds in which the groups were scored. The loss is
the surrogate of the first pass, where every ratio is 1: -Σ w_i n_i A_i, with the token weights w_i of
`covey.update.reduction`, n_i tokens and advantage A_i; and |w_i n_i A_i| is how hard a completion pulls. (The logged loss of
cispo, sapo and vespo is another number with the same gradient.)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from covey.config.choices import LOSS_TYPES
from covey.errors import ConfigError, RewardError, warn
from covey.rewards.batch import RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture
from covey.runs import Run
from covey.runs.record.episodes import written_lengths
from covey.runs.record.json_text import Json
from covey.runs.record.regroup import cut_columns, regroup, shown_again
from covey.score.advantages import has_spread, rows_of
from covey.score.estimators import Outcomes, estimator
from covey.score.scorer import judged_rows
from covey.score.shaping import Shaping, shaped_totals
from covey.types import TRUNCATED, AdvantageEstimator, Aggregation, Group, LossType, Scale, Score
from covey.update.reduction import Reduction, Totals, row_weights
from covey.vision.blocks import COLUMNS
from covey.vision.pictures import PictureError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WhatIf:
    """Another way to score the recorded groups. A field that is None stays as it was."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by reward name; rewards that are not named keep theirs."""
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions that take the place of recorded rewards, or stand beside them under a new name with weight 1."""
    advantage_estimator: AdvantageEstimator | None = None
    multi_objective_aggregation: Aggregation | None = None
    scale_rewards: Scale | None = None
    truncated_reward: float | None = None
    truncated_in_baseline: bool | None = None
    loss_type: LossType | None = None
    mask_truncated_completions: bool | None = None
    drop_groups_without_spread: bool = False
    """Leave groups without spread out of the loss and its totals, as dynamic sampling does."""


@dataclass(frozen=True)
class ScoredRows:
    """Rows under one way of scoring; one value per completion."""

    totals: Floats
    """NaN where nothing scored it, or a reward failed."""
    advantages: Floats
    pulls: Floats
    """|w n A|: how hard it pulls; those of a step are comparable."""
    loss: Floats
    """Its part of the loss of its step at the first pass."""


@dataclass(frozen=True)
class Rescored:
    """The recorded completions before and after."""

    keys: Mapping[str, NDArray[Any]]
    """step, group, index, row, and tokens: those that the policy wrote."""
    before: ScoredRows
    after: ScoredRows
    skipped: int = 0
    """Completions left out, because a changed reward needs texts and these were not recorded."""

    @property
    def flips(self) -> NDArray[np.bool_]:
        """A mask of advantages that change their sign: the completion would be pushed the other way."""
        return self.before.advantages * self.after.advantages < 0

    def summary(self) -> dict[str, float]:
        """Return the change in numbers."""
        a, b = self.before.advantages, self.after.advantages
        is_constant = a.size < 2 or not a.std() or not b.std()
        n = max(1, len(self.flips))
        starts, stops = (a == 0) & (b != 0), (a != 0) & (b == 0)
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
            "correlation": 0.0 if is_constant else float(np.corrcoef(a, b)[0, 1]),
        }

    def frame(self) -> pd.DataFrame:
        """Return one row per completion: keys, totals, advantages and pulls before and after, `flips`."""
        import pandas as pd

        columns: dict[str, Any] = dict(self.keys)
        for name in ("totals", "advantages", "pulls", "loss"):
            columns[f"{name}_before"] = getattr(self.before, name)
            columns[f"{name}_after"] = getattr(self.after, name)
        return pd.DataFrame(columns | {"flips": self.flips})

    def _signal_share(self, scored: ScoredRows) -> float:
        """Return the share of the groups in which any completion has an advantage."""
        groups = rows_of(self.keys["step"].astype(np.int64) * 1_000_003 + self.keys["group"].astype(np.int64))
        return float(np.mean([np.any(scored.advantages[r] != 0) for r in groups])) if groups else 0.0

    def _mean_loss(self, scored: ScoredRows) -> float:
        steps = rows_of(self.keys["step"])
        return float(np.mean([scored.loss[r].sum() for r in steps])) if steps else 0.0


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
    how = _how(what_if, run)
    functions = [Reward(function, name) for name, function in what_if.rewards.items()]
    parts, skipped = [], 0
    for rows in _rounds(run, steps):
        groups = regroup(rows) if functions else []
        if groups is None:
            skipped += rows.num_rows
            continue
        replaced = _run_again(functions, groups, cut_columns(rows), run.folder) if functions else {}
        recorded = _weighed(rows, how.before, _floats(rows, "total"), _floats(rows, "advantage"))
        keys = {n: written_lengths(rows) if n == "tokens" else rows[n].to_numpy() for n in _KEYS}
        parts.append((keys, recorded, _rescored(rows, how, replaced)))
    if how.has_varying_weights and (what_if.weights or what_if.rewards):
        warn(
            f"The weights of run {run.name!r} vary by task or over time. A changed weight is taken for a change of the one "
            "that the record names."
        )
    return Rescored(
        {name: np.concatenate([keys[name] for keys, _, _ in parts] or [np.empty(0)]) for name in _KEYS},
        _joined([before for _, before, _ in parts]),
        _joined([after for _, _, after in parts]),
        skipped,
    )


_KEYS = ("step", "group", "index", "row", "tokens")


@dataclass
class _How:
    """The settings before and after, with the weights of every reward."""

    before: Json
    after: Json
    old_weights: Mapping[str, float]
    """As the head of the record names them."""
    new_weights: Mapping[str, float]
    """Of every reward after the change; those that were not changed were what each group says."""
    changed: Container[str]
    """Rewards whose weight was changed."""
    drops_groups: bool
    has_varying_weights: bool = False


_DEFAULTS = {
    "advantage_estimator": "grpo",
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "group",
    "truncated_reward": None,
    "truncated_in_baseline": True,
    "loss_type": "dapo",
    "mask_truncated_completions": False,
    "truncated_in_denominator": "sequences",
    "max_completion_length": None,
    "kl_in_reward": False,
}
"""Settings that decide about advantages and losses, and what they are where the record does not say."""


def _how(what_if: WhatIf, run: Run) -> _How:
    """Return the settings and weights of the record with the changes laid over them.

    Raises:
        ConfigError: a reward or a value that does not exist.
    """
    unknown = sorted(set(what_if.weights) - set(run.rewards) - set(what_if.rewards))
    if unknown:
        raise ConfigError(f"Run {run.name!r} has no reward {unknown[0]!r}; it has: {', '.join(run.rewards)}.")
    before: Json = {name: run.settings.get(name, default) for name, default in _DEFAULTS.items()}
    if isinstance(before["scale_rewards"], bool):
        before["scale_rewards"] = "group" if before["scale_rewards"] else "none"
    if run.settings.get("group_allocation", "equal") != "equal":
        warn(
            f"Run {run.name!r} has groups of different sizes: its groups grew while they were sampled. What is worked out here is that "
            "of groups which had their size from the beginning, all completions weighing the same."
        )
    if run.settings.get("credit_assignment") == "turn":
        warn(
            f"Run {run.name!r} gave an advantage to each turn. What is worked out here, before and after, is that of whole "
            "completions."
        )
    changes = {
        name: value for name, value in vars(what_if).items() if name in _DEFAULTS and value is not None
    }
    after = before | changes
    choices = {
        "advantage_estimator": get_args(AdvantageEstimator),
        "multi_objective_aggregation": get_args(Aggregation),
        "scale_rewards": get_args(Scale),
        "loss_type": get_args(LossType),
    }
    for name, known in choices.items():
        if after[name] not in known:
            raise ConfigError(f"{name} is {after[name]!r}; rescore knows {', '.join(known)}.")
    if before["kl_in_reward"]:
        warn(
            f"Run {run.name!r} took a divergence off its rewards, which is not recorded. Advantages are worked out "
            "without it."
        )
    beside = {name: 1.0 for name in what_if.rewards if name not in run.rewards}
    new = {**run.rewards, **beside, **what_if.weights}
    return _How(before, after, run.rewards, new, what_if.weights, what_if.drop_groups_without_spread)


def _rounds(run: Run, steps: Container[int] | None) -> Iterator[pa.Table]:
    """Yield the completions that were scored together, round by round. A round never crosses two segments."""
    for table in run.group_tables():
        numbers = table["step"].to_numpy()
        edges = [int(i) for i in np.flatnonzero(np.diff(numbers, prepend=-1))]
        for start, stop in pairwise([*edges, len(numbers)]):
            if steps is None or int(numbers[start]) in steps:
                yield table.slice(start, stop - start)


NOT_RECORDED = {
    "completion_ids": "Write it on the text.",
    "completion_masks": "Write it on the text; of an episode, what the policy wrote are the messages of the assistant.",
    "image_sizes": "Write it on the pictures; the size that the policy saw of them is the processor's affair.",
    "environments": "They were objects of the run and are gone with it. Write it on the completions: the messages of an "
    "episode, the results of tools among them.",
}
"""Arguments of rewards that no record gives back, and what to do instead."""
NEVER = frozenset({"completion_ids", "completion_masks", "image_sizes"})
"""Those that a reward of a run always gets."""


def _run_again(
    functions: Sequence[Reward], groups: Sequence[Group], cut: Mapping[str, int], record: Path
) -> dict[str, list[Score]]:
    columns = {name for g in groups for name in g.prompt.columns}
    for reward in functions:
        asks = f"Reward {reward.name!r} asks for"
        for name in [*sorted(reward.names & NEVER), *reward.missing_columns(columns)]:
            if name in NOT_RECORDED:
                raise RewardError(f"{asks} {name}, which are not recorded. {NOT_RECORDED[name]}")
            raise RewardError(
                f"{asks} the column {name!r}, which the recorded rows do not have. They "
                f"have: {', '.join(sorted(columns)) or 'none'}."
            )
        for name in sorted(reward.names & set(cut)):
            raise RewardError(
                f"{asks} the column {name!r}, which is cut in the record: {cut[name]} characters."
            )
    groups = [_with_pictures(group, functions, record) for group in groups]
    batch, judged = RewardBatch.of_groups(groups), judged_rows(groups)
    return Mixture(*functions).score(batch.select(judged)).spread(judged, len(batch)).scores


def _with_pictures(group: Group, functions: Sequence[Reward], record: Path) -> Group:
    """Return a group with its pictures; with marks in its prompt alone where they are not there and no reward names them.

    Raises:
        RewardError: a reward asks for pictures that are not there.
    """
    try:
        return shown_again(group, record) if group.prompt.pictures else group
    except PictureError as error:
        for reward in functions:
            if names := sorted(reward.names & set(COLUMNS)):
                raise RewardError(
                    f"Reward {reward.name!r} asks for {names[0]}, which cannot be opened again. {error}"
                ) from error
        left = {name: value for name, value in group.prompt.columns.items() if name not in COLUMNS}
        return replace(group, prompt=replace(group.prompt, columns=left, pictures=()))


def _rescored(rows: pa.Table, how: _How, replaced: Mapping[str, Sequence[Score]]) -> ScoredRows:
    """Return the rows of one round, scored the other way."""
    names, settings = list(how.new_weights), how.after
    old, new = _columns(rows, names, {}), _columns(rows, names, replaced)
    was, weights = _weights(rows, how)
    totals = _new_totals(rows, how, old.values * was, new.values * weights, old, new)
    is_cut = _is_truncated(rows)
    shaping = Shaping(settings["truncated_reward"], settings["truncated_in_baseline"])
    estimate = estimator(
        settings["advantage_estimator"], settings["multi_objective_aggregation"], settings["scale_rewards"]
    )
    lengths = written_lengths(rows).astype(np.float64)
    shaped = shaped_totals(totals, is_cut, shaping)
    advantages = estimate(Outcomes(new.values, weights, shaped, _group_ids(rows), lengths))
    return _weighed(rows, settings, totals, np.asarray(advantages), how.drops_groups)


@dataclass(frozen=True)
class _Columns:
    """Scores of a round, one column per reward."""

    values: Floats
    """NaN for none; a gated score is 0."""
    failed: NDArray[np.bool_]


def _columns(rows: pa.Table, names: Sequence[str], replaced: Mapping[str, Sequence[Score]]) -> _Columns:
    values = np.full((rows.num_rows, len(names)), np.nan)
    failed = np.zeros((rows.num_rows, len(names)), dtype=bool)
    for k, name in enumerate(names):
        if name in replaced:
            values[:, k] = [score.counted for score in replaced[name]]
            failed[:, k] = [score.status == "failed" for score in replaced[name]]
        elif f"score/{name}" in rows.column_names:
            status = np.array(rows[f"status/{name}"].to_pylist(), dtype=object)
            values[:, k] = np.where(status == "gated", 0.0, _floats(rows, f"score/{name}"))
            failed[:, k] = status == "failed"
    return _Columns(values, failed)


def _weights(rows: pa.Table, how: _How) -> tuple[Floats, Floats]:
    """Return the weights of each completion's scores before and after the change. Shape (completions, rewards)."""
    was = np.tile([how.old_weights.get(name, 0.0) for name in how.new_weights], (rows.num_rows, 1))
    now = np.tile(list(how.new_weights.values()), (rows.num_rows, 1))
    for k, name in enumerate(how.new_weights):
        if f"weight/{name}" in rows.column_names:
            recorded = _floats(rows, f"weight/{name}")
            was[:, k] = np.where(np.isnan(recorded), was[:, k], recorded)
            now[:, k] = now[:, k] if name in how.changed else was[:, k]
    return was, now


def _new_totals(
    rows: pa.Table, how: _How, was_worth: Floats, is_worth: Floats, old: _Columns, new: _Columns
) -> Floats:
    """Return the totals after the change: what changed is added to what was recorded.

    So weights that an older record does not name may have varied by task or over time. A failure that did not take its completion
    out when it was recorded (the reward is optional) does not now.

    Args:
        was_worth, is_worth: scores times their weights, before and after. Shape (completions, rewards).
    """
    recorded = _floats(rows, "total")
    was, now = np.nansum(was_worth, axis=1), np.nansum(is_worth, axis=1)
    was_scored = ~np.isnan(recorded)
    size = np.maximum(1.0, np.nansum(np.abs(was_worth), axis=1))
    how.has_varying_weights |= bool((np.abs(recorded - was)[was_scored] > 1e-6 * size[was_scored]).any())
    totals = np.where(was_scored, recorded + (now - was), now)
    optional = (old.failed & was_scored[:, None]).any(axis=0)
    is_out = np.isnan(new.values).all(axis=1) | (new.failed & ~optional).any(axis=1)
    return np.where(is_out, np.nan, totals)


def _weighed(
    rows: pa.Table, settings: Json, totals: Floats, advantages: Floats, drops_groups: bool = False
) -> ScoredRows:
    """Return losses and pulls from advantages, by the token weights of the loss."""
    lengths, ids = written_lengths(rows), _group_ids(rows)
    is_masked = _is_truncated(rows) & bool(settings["mask_truncated_completions"])
    kept = np.ones(len(lengths), dtype=bool)
    for r in rows_of(ids) if drops_groups else ():
        kept[r] = has_spread(totals[r])
    limit = int(settings["max_completion_length"] or max(1, lengths.max(initial=1)))
    reduction = Reduction(
        LOSS_TYPES[settings["loss_type"]].reduction, limit, settings["truncated_in_denominator"]
    )
    counts = lengths[kept].tolist(), (~is_masked[kept]).tolist(), ids[kept].tolist()
    weights = np.zeros(len(lengths))
    weights[kept] = row_weights(reduction, *counts, Totals.of(*counts, reduction.truncated))
    terms = weights * np.where(is_masked, 0, lengths) * advantages
    return ScoredRows(totals, advantages, np.abs(terms), -terms)


def _floats(rows: pa.Table, name: str) -> Floats:
    return np.asarray(rows[name].to_numpy(zero_copy_only=False), dtype=np.float64)


def _is_truncated(rows: pa.Table) -> NDArray[np.bool_]:
    return np.array([finish in TRUNCATED for finish in rows["finish"].to_pylist()], dtype=bool)


def _group_ids(rows: pa.Table) -> NDArray[np.int64]:
    return rows["group"].to_numpy().astype(np.int64)


def _joined(parts: Sequence[ScoredRows]) -> ScoredRows:
    names = ("totals", "advantages", "pulls", "loss")
    return ScoredRows(*(np.concatenate([getattr(p, name) for p in parts] or [np.empty(0)]) for name in names))
