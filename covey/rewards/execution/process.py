"""Rewards in a process of their own, which is killed at the deadline."""

from __future__ import annotations

import functools
import io
import os
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import replace

from covey.errors import RewardError
from covey.rewards.batch import Notes, RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.execution.faults import CallLost, CallTimeout
from covey.rewards.execution.process_inside import shown_picture
from covey.rewards.sandbox.session import CallFailed, Session
from covey.rewards.sandbox.trusted import trusted_child
from covey.types import Picture
from covey.vision.album import Album

UNLIMITED = 86_400.0
"""Seconds, where the user sets none."""

CALLBACKS = ("log_extra", "log_metric")
"""Arguments that the process makes itself."""

CODE = "from covey.rewards.execution.held_function import load\nfrom covey.rewards.execution.process_inside import call"


Call = Callable[[RewardBatch, Notes, float], object]
"""Batch, notes and a deadline in seconds → the result of the function."""


def call_in_process(reward: Reward, batch: RewardBatch, notes: Notes) -> object:
    """Call a reward in its process, with the whole batch; or sample by sample, where it has a deadline per sample."""
    with _lock:
        worker = _workers.get(reward)
        if worker is None or worker.owner != os.getpid():
            worker = _workers[reward] = Worker(reward)
    call = functools.partial(worker.call, reward)
    if reward.options.sample_timeout is None:
        return call(batch, notes, reward.options.timeout or UNLIMITED)
    return sample_by_sample(reward, batch, notes, call)


def sample_by_sample(reward: Reward, batch: RewardBatch, notes: Notes, call: Call) -> list[object]:
    """Return one value per sample; for one that went wrong, its exception."""
    assert reward.options.sample_timeout is not None
    values: list[object] = []
    for row in range(len(batch)):
        own = Notes(1)
        try:
            values += reward.values(call(batch.select([row]), own, reward.options.sample_timeout), 1)
            notes.take(own, [[row]])
        except Exception as error:
            values.append(error)
    return values


class Worker:
    """One process that holds one reward's function. It ends with the reward, to which nothing here may refer."""

    def __init__(self, reward: Reward) -> None:
        self.owner = os.getpid()
        self._session = Session(
            trusted_child,
            CODE,
            trusted=True,
            setup=("load", pickled_function(reward.function, f"Reward {reward.name!r}")),
        )
        self._pictures: frozenset[str] = frozenset()
        """Digests of those that the process has."""
        weakref.finalize(reward, self._session.close)

    def call(self, reward: Reward, batch: RewardBatch, notes: Notes, seconds: float) -> object:
        """Return the result of the function for a batch; raise what it raised, CallTimeout or CallLost."""
        arguments = reward.arguments(batch, notes, opens=False)
        callbacks = [name for name in CALLBACKS if arguments.pop(name, None) is not None]
        if (state := arguments.get("trainer_state")) is not None:  # without the need to import the trainer
            kept = {k: v for k, v in vars(state).items() if isinstance(v, int | float | str | bool | None)}
            arguments["trainer_state"] = types.SimpleNamespace(**kept)
        try:
            pickled = self._answer(arguments, batch, callbacks, seconds)
        except CallFailed as failure:
            if failure.verdict.status == "timeout":
                raise CallTimeout(f"killed after {seconds} s") from None
            raise CallLost(f"its process ended: {failure.verdict.detail}") from None
        result, extras, metrics, error = pickle.loads(pickled)
        if error is not None:
            raise error
        for column, values in extras.items():
            notes.log_extra(column, values)
        for name, value in metrics:
            notes.log_metric(name, value)
        return result

    def _answer(
        self, arguments: dict[str, object], batch: RewardBatch, callbacks: list[str], seconds: float
    ) -> bytes:
        """Return what the process answers. A picture crosses once, as it is encoded, however many completions show it: the process
        keeps those of its last call."""
        written = io.BytesIO()
        shown = WithoutPictures(written, batch.album)
        shown.dump(arguments)
        for known in (self._pictures, frozenset[str]()):  # a new process has none of them
            new = {digest: p for digest, p in shown.pictures.items() if digest not in known}
            call = written.getvalue(), len(batch), callbacks, pickle.dumps(new), list(shown.pictures)
            if answer := bytes(self._session.call("call", *call, seconds=seconds)):
                break
        self._pictures = frozenset(shown.pictures)
        return answer


class WithoutPictures(pickle.Pickler):
    """Writes values down with the digest of each picture in its place, and collects the pictures."""

    def __init__(self, file: io.BytesIO, album: Album) -> None:
        super().__init__(file)
        self.album = album
        self.pictures: dict[str, Picture] = {}

    def reducer_override(self, value: object) -> tuple[Callable[[str], object], tuple[str, ...]]:
        if not isinstance(value, Picture):
            return NotImplemented
        # An image loses what its file says when it is written down.
        if not isinstance(value.source, bytes | str):
            value = replace(value, source=self.album(value))
        self.pictures[value.digest] = value
        return shown_picture, (value.digest,)


_workers: weakref.WeakKeyDictionary[Reward, Worker] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def pickled_function(function: Callable[..., object], who: str) -> bytes:
    """Pickle a function by its import path where that works, by value where it was defined in a script or a function.

    Args:
        who: whose function it is, for the error.
    """
    try:
        if getattr(function, "__module__", None) != "__main__":
            return pickle.dumps(function)
    except Exception:
        pass  # dill has another try
    try:
        import dill

        return bytes(dill.dumps(function, recurse=True))
    except Exception as error:
        raise RewardError(
            f"{who} cannot be sent to a process of its own ({type(error).__name__}: {error}). Define it at "
            "the top of a module, or use where='thread'."
        ) from error
