"""Rollouts that were sampled ahead, in a checkpoint: groups, scores and metrics as JSON, whose numbers are exact.

    covey/ahead<r>.json     {"ranks": 2, "rollouts": [{"number": 4, "version": 3, "engine": {}, "rounds": [[group, …]], "notes": [{…}],
                             "evidence": [[row, count, total, low, high]], "observed": {"<reward>": [[value, share]]}}],
                             "pictures": {"<digest>": {…}}}                       as `covey.vision.stored` writes them

They cannot be made anew: the weights that they were sampled with are gone. Columns and extras of rows, which only the record still
needs, are kept as the record writes them. A picture in a prompt's content or columns stands there as {"covey_picture": "<digest>"}.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from covey.errors import CheckpointError
from covey.metrics import Ledger
from covey.runs.record.json_text import json_text, plain
from covey.score.pass_rates import Evidence
from covey.text.secrets import blanked
from covey.trainer.scored_rollout import ScoredRollout
from covey.types import Picture, ScoredGroup
from covey.vision.stored import restored, stored

_hints = cache(get_type_hints)
SHOWN = "covey_picture"
"""The key of what stands for a picture in a content or a column."""


def save_ahead(folder: Path, rank: int, ranks: int, queue: Sequence[ScoredRollout]) -> None:
    """Write the rollouts of a process, all of which are made; nothing where there are none."""
    if not queue:
        return
    rollouts, shown = [], dict[str, Picture]()
    for rollout in queue:
        notes = []
        for metrics in rollout.notes:
            ledger = Ledger()
            ledger.add(metrics)
            notes.append(ledger.state()["pending"])
        rounds = [[as_json(scored, shown) for scored in groups] for groups in rollout.rounds]
        facts = {"number": rollout.number, "version": rollout.version, "engine": dict(rollout.engine_numbers)}
        seen = {"evidence": rollout.evidence, "observed": rollout.observed}
        rollouts.append({**facts, "rounds": rounds, "notes": notes, **seen})
    text = json.dumps(
        {"ranks": ranks, "rollouts": rollouts, "pictures": stored(shown.values())}, default=plain
    )
    (folder / f"ahead{rank}.json").write_text(text, encoding="utf-8")


def load_ahead(
    folder: Path, rank: int, ranks: int, first: int, rewards: Sequence[str]
) -> list[ScoredRollout]:
    """Return the rollouts of a process, the first of which is due next; none where the checkpoint has none.

    Args:
        rewards: their names, in this run.

    Raises:
        CheckpointError: they cannot be read, are those of another number of processes, belong to another point of the run, or were
            scored by other rewards; or a picture has changed.
    """
    path = folder / f"ahead{rank}.json"
    if not any(folder.glob("ahead*.json")):
        return []
    try:
        state = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"ranks": None, "rollouts": []}
        )
        if state["ranks"] != ranks:
            raise CheckpointError(
                f"{folder} holds rollouts that were sampled ahead by another number of processes than {ranks}. Resume with as many as "
                "the run was started with."
            )
        queue = []
        pictures = restored(state.get("pictures", {}))
        for entry in state["rollouts"]:
            rollout = ScoredRollout(int(entry["number"]), int(entry["version"]))
            rollout.rounds = [
                [from_json(ScoredGroup, g, pictures) for g in groups] for groups in entry["rounds"]
            ]
            rollout.engine_numbers = dict(entry["engine"])
            rollout.evidence = [Evidence(*own) for own in entry.get("evidence", [])]
            rollout.observed = dict(entry.get("observed", {}))
            for pending in entry["notes"]:
                ledger = Ledger()
                ledger.restore({"last": {}, "sums": [], "pending": pending})
                rollout.notes.append(ledger.drain())
            rollout.sampled.set()
            rollout.scored.set()
            queue.append(rollout)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise CheckpointError(
            f"The rollouts in {path} cannot be read ({type(error).__name__}: {error}): another version wrote them, or they were changed. "
            "Resume from another checkpoint, or with the version that wrote it."
        ) from error
    if [r.number for r in queue] != list(range(first, first + len(queue))):
        raise CheckpointError(
            f"{path} holds rollouts {[r.number for r in queue]}, and the settings of this run make {first} the next. Resume with the "
            "batch settings that the run was started with."
        )
    scored = [s for rollout in queue for groups in rollout.rounds for s in groups]
    others = next((list(s.scores) for s in scored if set(s.scores) != set(rewards)), None)
    if others is not None:
        raise CheckpointError(
            f"{path} holds rollouts that were sampled ahead and scored by {', '.join(others)}; the rewards of this run are "
            f"{', '.join(rewards)}. Resume with the rewards that the run was started with."
        )
    return queue


def as_json(value: object, shown: dict[str, Picture]) -> object:
    """Return a value as JSON holds it; of columns and extras, what a record may hold. Pictures in it are added to `shown`."""
    if isinstance(value, Picture):
        shown[value.digest] = value
        return value.digest
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in fields(value)}
        own |= {name: _told(own[name], shown) for name in ("content", "columns") if name in own}
        return {
            n: blanked(json.loads(json_text(v))) if n in ("columns", "extras") else as_json(v, shown)
            for n, v in own.items()
        }
    if isinstance(value, Mapping):
        return {name: as_json(part, shown) for name, part in value.items()}
    if isinstance(value, tuple) and any(is_dataclass(part) or isinstance(part, tuple) for part in value):
        return [as_json(part, shown) for part in value]
    return value


def _told(value: object, shown: dict[str, Picture]) -> object:
    """Return a content or columns with what stands for pictures in JSON; the pictures are added to `shown`."""
    if isinstance(value, Picture):
        shown[value.digest] = value
        return {SHOWN: value.digest}
    if isinstance(value, Mapping):
        return {name: _told(part, shown) for name, part in value.items()}
    return [_told(part, shown) for part in value] if isinstance(value, list) else value


def _seen(value: Any, pictures: Mapping[str, Picture]) -> Any:
    """Return what `_told` made JSON of."""
    if isinstance(value, dict):
        known = pictures.get(str(value.get(SHOWN))) if set(value) == {SHOWN} else None
        return {name: _seen(part, pictures) for name, part in value.items()} if known is None else known
    return [_seen(part, pictures) for part in value] if isinstance(value, list) else value


def from_json(kind: Any, value: Any, pictures: Mapping[str, Picture]) -> Any:
    """Return what JSON holds as the kind of an annotation: tuples, mappings and dataclasses of them; anything else as it is. A picture's digest stands for it."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) in (Union, types.UnionType) and len(parts) == 1:
        kind, parts = parts[0], list(get_args(parts[0]))
    if value is None:
        return None
    if kind is Picture:
        return pictures[value]
    if hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        free = {name: _seen(value[name], pictures) for name in ("content", "columns") if name in value}
        own = {n: from_json(hints[n], part, pictures) for n, part in value.items() if n not in free}
        return kind(**own, **free)
    if get_origin(kind) is tuple:
        is_deep = is_dataclass(parts[0]) or get_origin(parts[0]) is tuple
        return tuple(from_json(parts[0], part, pictures) for part in value) if is_deep else tuple(value)
    if get_origin(kind) is Mapping:
        return {name: from_json(parts[1], part, pictures) for name, part in value.items()}
    return value
