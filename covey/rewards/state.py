"""What rewards remember between batches: what a checkpoint keeps of them.

A reward has a memory where its object has both `state_dict()`, which gives plain values and tensors, and
`load_state_dict(state)`; for a method, the object that it belongs to. The memory of a reward in a process of its own is
there, out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from covey.errors import warn
from covey.rewards.contract import Reward


def states_of(rewards: Iterable[Reward]) -> dict[str, Any]:
    """The state of each reward that has a memory, by name."""
    return {name: keeper.state_dict() for name, keeper in _keepers(rewards).items()}


def restore(rewards: Iterable[Reward], states: Mapping[str, Any]) -> list[str]:
    """Give rewards their states back; returns, for people, those that found none and those that nobody took."""
    keepers = _keepers(rewards)
    for name in keepers.keys() & states.keys():
        keepers[name].load_state_dict(states[name])
    new = [
        f"reward {name!r} has no state and starts without memory"
        for name in sorted(keepers.keys() - states.keys())
    ]
    gone = [
        f"there is the state of a reward {name!r}, and this run has no such reward with a memory"
        for name in sorted(states.keys() - keepers.keys())
    ]
    return new + gone


def warn_of_forgetting(rewards: Iterable[Reward]) -> None:
    """Say which rewards have a memory that checkpoints cannot keep."""
    for reward in rewards:
        if keeper_of(reward.function) is not None and not _is_in_reach(reward):
            warn(
                f"Reward {reward.name!r} has a state_dict, and where={reward.options.where!r} keeps its state in another "
                "process: checkpoints do not have it. Run it inline or in a thread."
            )


def _keepers(rewards: Iterable[Reward]) -> dict[str, Any]:
    found = {r.name: keeper_of(r.function) for r in rewards if _is_in_reach(r)}
    return {name: keeper for name, keeper in found.items() if keeper is not None}


def _is_in_reach(reward: Reward) -> bool:
    return reward.options.where in ("inline", "thread")


def keeper_of(function: Callable[..., Any]) -> Any:
    """The object that keeps a reward's memory; None for a reward without one."""
    for candidate in (function, getattr(function, "__self__", None)):
        if callable(getattr(candidate, "state_dict", None)) and callable(
            getattr(candidate, "load_state_dict", None)
        ):
            return candidate
    return None
