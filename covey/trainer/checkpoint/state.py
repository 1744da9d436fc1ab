"""The state that Covey adds to a checkpoint of `transformers.Trainer`, so that a resumed run is the same run.

    covey/rank<r>.json, .pt     the rollout that was unfinished: its micro-batches, and how many had been handed out
    covey/run<r>.json           numbers that were not logged yet, the coefficient of the entropy bonus where it adapts, how
                                many steps in a row were not finite, the moment that chat templates take for the present
    covey/rewards<r>.pt         what rewards remember: their state_dict, the mixture's cache and breaker
    covey/ahead<r>.json         rollouts that were sampled ahead; see `covey.trainer.checkpoint.ahead`
    covey/replay<r>.json        groups that may be trained on again; see `covey.trainer.checkpoint.kept`
    covey/curriculum.json       what is known of each prompt, where a curriculum draws them
    covey/constraints.json      the multipliers of rewards with a bound
    covey/reference.pt          the reference, where it moves; reference<r>.pt where it is sharded

What is sampled needs no state: its random numbers depend on the seed, the step, the prompt and the index.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from covey.errors import CheckpointError, RewardError, warn
from covey.metrics import Ledger
from covey.rewards.mixture import Mixture, MixtureState
from covey.sample.chat import Clock
from covey.sample.given_data import is_map_style
from covey.score.constraints import Multipliers
from covey.score.pass_rates import PassRates
from covey.score.replay_buffer import ReplayBuffer
from covey.trainer.checkpoint.ahead import load_ahead, save_ahead
from covey.trainer.checkpoint.kept import load_kept, save_kept
from covey.trainer.nonfinite import NonfiniteGuard
from covey.trainer.scored_rollout import ScoredRollout
from covey.update.entropy import EntropyBonus
from covey.update.reference import Reference
from covey.update.rollout_buffer import RolloutBuffer

PASS_RATES = "curriculum.json"
MULTIPLIERS = "constraints.json"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object, such as a picture in a prompt: another one in every process."""


@dataclass(frozen=True)
class RunState:
    """Everything that changes while a run goes on, beside model, optimizer and scheduler."""

    rollout: RolloutBuffer
    position: int
    """Micro-batches that the present rollout has handed out at this point of the run."""
    ledgers: Mapping[str, Ledger]
    bonus: EntropyBonus
    nonfinite: NonfiniteGuard
    rewards: Mixture
    reference: Reference | None
    """None where it does not move."""
    clock: Clock
    settings: Mapping[str, object]
    """Settings that a round of sampling was made with, and may not change inside it; and the learning rate."""
    dataset: str
    """Digest of the training set, to know another one by."""
    queue: list[ScoredRollout]
    """Rollouts that were sampled ahead, all of them made."""
    next_rollout: int
    """The rollout that is due next."""
    ranks: int
    multipliers: Multipliers
    """Of the rewards with a bound, the same in every process."""
    eyes: str = ""
    """What makes pixels of pictures, by name; empty: the policy is shown none."""
    pass_rates: PassRates | None = None
    """What is known of each prompt, the same in every process; None without a curriculum."""
    replay: ReplayBuffer | None = None
    """Groups that may be trained on again; None without replay."""

    @property
    def reward_names(self) -> list[str]:
        return [reward.name for reward in self.rewards]


def save_state(checkpoint: str | Path, rank: int, state: RunState) -> None:
    """Write this process's share into a checkpoint; a RewardError where a reward's state is more than tensors and plain values."""
    folder = Path(checkpoint) / "covey"
    folder.mkdir(parents=True, exist_ok=True)
    state.rollout.save(folder / f"rank{rank}")
    save_ahead(folder, rank, state.ranks, state.queue)
    if state.replay is not None:
        save_kept(folder, rank, state.ranks, state.replay, state.reward_names)
    run = {
        "ledgers": {name: ledger.state() for name, ledger in state.ledgers.items()},
        "entropy": None if state.bonus.adaptation is None else state.bonus.state(),
        "nonfinite_in_a_row": state.nonfinite.in_a_row,
        "clock": state.clock.start.isoformat(),
        "settings": dict(state.settings),
        "dataset": state.dataset,
        "eyes": state.eyes,
    }
    (folder / f"run{rank}.json").write_text(json.dumps(run), encoding="utf-8")
    torch.save(checked_reward_states(state.rewards), folder / f"rewards{rank}.pt")
    if state.pass_rates is not None and rank == 0:
        (folder / PASS_RATES).write_text(json.dumps(state.pass_rates.state()), encoding="utf-8")
    if state.multipliers.bounds and rank == 0:
        (folder / MULTIPLIERS).write_text(json.dumps(state.multipliers.state()), encoding="utf-8")
    if state.reference is not None and (state.reference.sharded or rank == 0):
        name = f"reference{rank}.pt" if state.reference.sharded else "reference.pt"
        torch.save(state.reference.state(), folder / name)


def load_state(checkpoint: str | Path, rank: int, state: RunState) -> dict[str, Any]:
    """Read this process's share of a checkpoint into the parts of a run; return the settings that it was written with.

    Raises:
        CheckpointError: something that this point of the run needs is missing, or belongs to another run.
    """
    folder = Path(checkpoint) / "covey"
    file = folder / f"run{rank}.json"
    run = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    )  # none is left by another number of processes
    check_settings(run, state, any((folder / f"{name}{rank}.json").exists() for name in ("rank", "ahead")))
    state.rollout.load(folder / f"rank{rank}", state.position)
    state.queue[:] = load_ahead(folder, rank, state.ranks, state.next_rollout, state.reward_names)
    load_kept(folder, rank, state.ranks, state.replay, state.reward_names)
    for name, ledger in state.ledgers.items():
        if name in run.get("ledgers", {}):
            ledger.restore(run["ledgers"][name])
    if "clock" in run:
        state.clock.start = datetime.fromisoformat(run["clock"])
    state.nonfinite.in_a_row = int(run.get("nonfinite_in_a_row", 0))
    if state.bonus.adaptation is not None:
        if not run.get("entropy"):
            raise CheckpointError(
                f"{folder} does not say what the coefficient of the entropy bonus had adapted to. Resume with the settings "
                "that the run was started with."
            )
        state.bonus.restore(run["entropy"])
    if state.pass_rates is not None:
        if not (folder / PASS_RATES).exists():
            raise CheckpointError(
                f"{folder / PASS_RATES} is missing: what was known of the prompts cannot be made anew. Resume with the curriculum that the "
                "run was started with."
            )
        if not state.pass_rates.restore(json.loads((folder / PASS_RATES).read_text(encoding="utf-8"))):
            warn(
                f"What {folder / PASS_RATES} knows of the prompts is left out: other rows may be drawn than when it was written, or their tasks are "
                "others. To go on with it, resume with the same train_dataset, task_column, max_prompt_length and overlong_prompts."
            )
    load_multipliers(folder / MULTIPLIERS, state.multipliers)
    rewards = folder / f"rewards{rank}.pt"
    if rewards.exists():
        state.rewards.load_state_dict(read_tensors(rewards))
    if state.reference is not None:
        own, shared = folder / f"reference{rank}.pt", folder / "reference.pt"
        if not own.exists() and not shared.exists():
            raise CheckpointError(f"{shared} is missing: the reference had moved, and cannot be made anew.")
        state.reference.restore(read_tensors(own if own.exists() else shared))
    return dict(run.get("settings", {}))


def load_multipliers(path: Path, multipliers: Multipliers) -> None:
    """Take over the multipliers of a checkpoint; raise a CheckpointError where they are those of other rewards than have a bound now."""
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not multipliers.restore(saved):
        raise CheckpointError(
            f"{path} has multipliers of {', '.join(saved) or 'no reward'}, and the rewards with a bound are {', '.join(multipliers.bounds) or 'none'}. "
            "What they had come to cannot be made anew: resume with the rewards that the run was started with."
        )


def read_tensors(path: Path) -> Any:
    """Return what a file of tensors and plain values holds, without running code from it.

    Raises:
        CheckpointError: it holds something else, or is damaged.
    """
    try:
        return torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {str(error).splitlines()[0]}). It was damaged or exchanged: go on "
            "from another checkpoint."
        ) from error


def check_settings(saved: Mapping[str, Any], state: RunState, is_inside: bool) -> None:
    """Compare the settings of a run with those that its checkpoint was written with.

    Args:
        is_inside: whether the checkpoint was written inside a round of sampling, which goes on as it was planned, or holds rounds
            that were sampled ahead.

    Raises:
        CheckpointError: inside a round, a setting that it was made with is another one; or pictures become other pixels.
    """
    before = saved.get("settings", {})
    changed = {
        n: v for n, v in state.settings.items() if n in before and before[n] != v and n != "learning_rate"
    }
    if is_inside and changed:
        listed = ", ".join(f"{name}={value!r} (it was {before[name]!r})" for name, value in changed.items())
        raise CheckpointError(
            f"The checkpoint stopped inside a round of sampling, or holds rounds that were sampled ahead, which were made with other "
            f"settings: {listed}. Resume with the "
            "settings that the run was started with, or from a checkpoint between two rounds."
        )
    if (seen_by := saved.get("eyes", state.eyes)) != state.eyes:
        raise CheckpointError(
            f"The run was started with another processor of pictures: {seen_by or 'none'}; now it is {state.eyes or 'none'}. They make other "
            "pixels of one picture. Resume with the processor that the run was started with, as processing_class, and with the same "
            "min_pixels, max_pixels and use_images; or begin a run of its own from the model in that folder."
        )
    if saved.get("dataset", state.dataset) != state.dataset:
        warn(
            "train_dataset is another one than the checkpoint was written with: from here on it is another run. Resume with the "
            "rows that the run was started with, or begin a run of its own."
        )


def dataset_digest(dataset: Any) -> str:
    """Return a digest of how many rows a dataset has, its columns, and the prompts of its first and last row; of a stream, of nothing."""
    if dataset is None or not is_map_style(dataset) or not len(dataset):
        return ""
    ends: Any = dataset[0], dataset[len(dataset) - 1]
    known = [len(dataset), *(ADDRESS.sub("", f"{sorted(row)}{row.get('prompt')!r}") for row in ends)]
    return hashlib.blake2b(repr(known).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def checked_reward_states(rewards: Mixture) -> MixtureState:
    """Return what rewards remember, each of which can be read back without running code from the file.

    Raises:
        RewardError: the state of a reward holds what a file of tensors and plain values cannot.
    """
    states = rewards.state_dict()
    for name, state in states["rewards"].items():
        buffer = io.BytesIO()
        try:
            torch.save(state, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise RewardError(
                f"The state of reward {name!r} cannot be saved: {str(error).splitlines()[0]}. state_dict() gives numbers, "
                "strings, lists, dictionaries and tensors; turn arrays into lists or tensors."
            ) from error
    return states
