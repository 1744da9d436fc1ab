"""Groups that may be trained on again, in a checkpoint: as JSON (`covey.trainer.checkpoint.group_json`).

    covey/replay<r>.json    {"ranks": 2, "rewards": ["…"], "rollouts": [{"number": 4, "seen": 8, "informative": 5, "places": [0, 3],
                             "own": {"3": group}}], "pictures": {}}

They cannot be made anew: the weights that they were sampled with are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.errors import CheckpointError
from covey.runs.record.json_text import plain
from covey.score.replay_buffer import KeptRollout, ReplayBuffer
from covey.trainer.checkpoint.group_json import as_json, from_json, unreadable
from covey.types import Picture, ScoredGroup
from covey.vision.stored import restored, stored


def save_kept(folder: Path, rank: int, ranks: int, buffer: ReplayBuffer, rewards: Sequence[str]) -> None:
    """Write the groups that a process holds, and what it knows of those of the others."""
    rollouts, shown = [], dict[str, Picture]()
    for rollout in buffer.rollouts:
        own = {place: as_json(scored, shown) for place, scored in rollout.own.items()}
        rollouts.append({**vars(rollout), "own": own})
    state = {"ranks": ranks, "rewards": rewards, "rollouts": rollouts, "pictures": stored(shown.values())}
    (folder / f"replay{rank}.json").write_text(json.dumps(state, default=plain), encoding="utf-8")


def load_kept(
    folder: Path, rank: int, ranks: int, buffer: ReplayBuffer | None, rewards: Sequence[str]
) -> None:
    """Read the groups that a process held into its buffer; nothing where this run, or the one that was stopped, has none.

    Raises:
        CheckpointError: they cannot be read, or are those of another number of processes or of other rewards; or a picture has changed.
    """
    path = folder / f"replay{rank}.json"
    if buffer is None or not any(folder.glob("replay*.json")):
        return
    try:
        buffer.rollouts[:] = _kept(path, {"ranks": ranks, "rewards": list(rewards)})
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise unreadable(f"The groups in {path}", error) from error


def _kept(path: Path, expected: Mapping[str, object]) -> list[KeptRollout]:
    """Return the rollouts in a file; raise a CheckpointError where processes or rewards are not those that are expected."""
    state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if {name: state.get(name) for name in expected} != expected:
        said = " and ".join(f"{name}={value!r}" for name, value in expected.items())
        raise CheckpointError(
            f"{path.parent} holds groups to train on again, of other processes or scored by other rewards than {said}. Resume with the "
            "processes and rewards that the run was started with."
        )
    pictures, rollouts = restored(state["pictures"]), []
    for entry in state["rollouts"]:
        own = {int(place): from_json(ScoredGroup, group, pictures) for place, group in entry["own"].items()}
        rollouts.append(KeptRollout(**{**entry, "own": own}))
    return rollouts
