"""Routes and gates: the rows that a reward applies to, and those that its gates let through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from covey.errors import RewardError
from covey.rewards.batch import RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.options import Row
from covey.rewards.own import own
from covey.types import Score


def applicable_rows(reward: Reward, batch: RewardBatch, task_column: str) -> list[int]:
    """Return the rows that a reward applies to, by its options `tasks`, `present` and `when`.

    Raises:
        RewardError: a column that decides is missing, or `when` raised.
    """
    options = reward.options
    rows = list(range(len(batch)))
    if options.tasks is not None:
        tasks = _column(batch, task_column, reward, "tasks")
        rows = [row for row in rows if tasks[row] in options.tasks]
    if options.present is not None:
        values = _column(batch, options.present, reward, "present")
        rows = [row for row in rows if values[row] is not None]
    if options.when is not None:
        rows = [row for row in rows if _holds(reward, options.when, batch, row)]
    return rows


def gate_score(reward: Reward, row: int, scored: Mapping[str, Sequence[Score]]) -> Score | None:
    """Return the score of a row that is not run: gated, or failed with its gate; None where all gates hold.

    A gate that does not apply to the row is no gate for it.
    """
    for name, least in reward.options.requires:
        score = scored[name][row]
        if score.status == "failed":
            return Score(None, "failed", f"its gate {name!r} failed: {score.error}")
        if score.status == "gated" or (score.value is not None and score.value < least):
            return Score(None, "gated")
    return None


def check_gates(rewards: Sequence[Reward], given: Sequence[str]) -> None:
    """Raise where a gate cannot be; `given` are the names that the rewards came with, before they were made unique.

    Raises:
        RewardError: a gate that is no reward of the mixture, or one of several with that name; or gates in a circle.
    """
    names = {reward.name for reward in rewards}
    for reward in rewards:
        for gate, _ in reward.options.requires:
            if gate not in names:
                raise RewardError(
                    f"Reward {reward.name!r} requires {gate!r}, which is no reward of this mixture; there are "
                    f"{', '.join(sorted(names))}."
                )
            if given.count(gate) > 1:
                raise RewardError(
                    f"Reward {reward.name!r} requires {gate!r}, and {given.count(gate)} rewards are called so. Give each a name: "
                    "reward(..., name='...')."
                )
    in_waves(rewards)


def in_waves(rewards: Sequence[Reward]) -> list[list[Reward]]:
    """Return rewards in the order in which they can be run: first those without a gate, then those whose gates are done.

    Raises:
        RewardError: gates in a circle.
    """
    waves: list[list[Reward]] = []
    done: set[str] = set()
    left = list(rewards)
    while left:
        wave = [r for r in left if all(gate in done for gate, _ in r.options.requires)]
        if not wave:
            raise RewardError(f"Rewards require each other in a circle: {', '.join(r.name for r in left)}.")
        waves.append(wave)
        done |= {r.name for r in wave}
        left = [r for r in left if r.name not in done]
    return waves


def groups_of(batch: RewardBatch) -> list[list[int]]:
    """Return the rows of each group. Without group ids, neighbours with the same prompt are one group."""
    keys = batch.group_ids
    if not keys:
        keys, number = [], 0
        for row, prompt in enumerate(batch.prompts):
            number += row > 0 and prompt != batch.prompts[row - 1]
            keys.append(number)
    groups: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _column(batch: RewardBatch, name: str, reward: Reward, option: str) -> Sequence[object]:
    if name not in batch.columns:
        raise RewardError(
            f"Reward {reward.name!r} is routed by {option!r}, which needs the column {name!r}; the rows have "
            f"{', '.join(sorted(batch.columns)) or 'no columns'}."
        )
    return batch.columns[name]


def _holds(reward: Reward, when: Callable[[Row], bool], batch: RewardBatch, row: int) -> bool:
    """Return the value of the predicate `when` for a row."""
    seen = own({name: values[row] for name, values in batch.columns.items()}, batch.album)
    if batch.prompts:
        seen["prompt"] = own(batch.prompts[row], batch.album)
    try:
        return bool(when(seen))
    except Exception as error:
        raise RewardError(
            f"Reward {reward.name!r}: its predicate `when` raised {type(error).__name__}: {error}, for the row "
            f"{repr(seen)[:300]}."
        ) from error
