"""Rollouts that were sampled ahead, in a checkpoint: groups, scores and metrics as JSON, whose numbers are exact.

    covey/ahead<r>.json     {"ranks": 2, "rollouts": [{"number": 4, "version": 3, "engine": {}, "rounds": [[group, …]], "notes": [{…}],
                             "evidence": [[row, count, total, low, high]], "observed": {"<reward>": [[value, share]]}}],
                             "pictures": {"<digest>": {…}}}                       as `covey.vision.stored` writes them

They cannot be made anew: the weights that they were sampled with are gone. `covey.trainer.checkpoint.group_json` says what a group is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from covey.errors import CheckpointError
from covey.metrics import Ledger
from covey.runs.record.json_text import plain
from covey.score.pass_rates import Evidence
from covey.trainer.checkpoint.group_json import as_json, from_json, unreadable
from covey.trainer.scored_rollout import ScoredRollout
from covey.types import Picture, ScoredGroup
from covey.vision.stored import restored, stored


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
        raise unreadable(f"The rollouts in {path}", error) from error
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
