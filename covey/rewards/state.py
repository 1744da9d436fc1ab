"""Memory of rewards between batches, as a checkpoint keeps it.

A reward has a memory where its object has both `state_dict()`, which returns plain values and tensors, and
`load_state_dict(state)`; for a method, the object that it belongs to. The memory of a reward in a process of its own is
there, out of reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

from covey.errors import CheckpointError, warn
from covey.rewards.contract import Reward, RewardFunction


class Stateful(Protocol):
    """An object with a memory."""

    def state_dict(self) -> object: ...
    def load_state_dict(self, state: object, /) -> object: ...


def restore(rewards: Iterable[Reward], states: Mapping[str, object]) -> list[str]:
    """Give rewards their states back; return, for people, the rewards that found none and the states that nobody took."""
    owners = kept_memories(rewards)
    for name in owners.keys() & states.keys():
        try:
            owners[name].load_state_dict(states[name])
        except Exception as error:  # a reward's own code
            raise CheckpointError(
                f"Reward {name!r} cannot go on from its state in the checkpoint: load_state_dict raised "
                f"{type(error).__name__}: {error}. Resume with the reward that wrote it, or let it read older states too."
            ) from error
    new = [
        f"reward {name!r} has no state and starts without memory"
        for name in sorted(owners.keys() - states.keys())
    ]
    gone = [
        f"there is the state of a reward {name!r}, and this run has no such reward with a memory"
        for name in sorted(states.keys() - owners.keys())
    ]
    return new + gone


def warn_of_forgetting(rewards: Iterable[Reward]) -> None:
    """Warn of each reward whose memory checkpoints cannot keep."""
    rewards = list(rewards)
    kept = kept_memories(rewards)
    for reward in rewards:
        if memory_of(reward.function) is not None and reward.name not in kept:
            warn(
                f"Reward {reward.name!r} has a state_dict, and where={reward.options.where!r} keeps its state in another "
                "process: checkpoints do not have it. Run it inline or in a thread."
            )


def memory_of(function: RewardFunction) -> Stateful | None:
    """Return the object that keeps a reward's memory; None for a reward without one."""
    for candidate in (function, getattr(function, "__self__", None)):
        if all(callable(getattr(candidate, name, None)) for name in ("state_dict", "load_state_dict")):
            return cast(Stateful, candidate)
    return None


def kept_memories(rewards: Iterable[Reward]) -> dict[str, Stateful]:
    """Return the memories in this process, by the reward's name."""
    found = {r.name: memory_of(r.function) for r in rewards if r.options.where in ("inline", "thread")}
    return {name: memory for name, memory in found.items() if memory is not None}
