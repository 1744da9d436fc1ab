"""Code of a reward's own process: holds its function and calls it."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from covey.rewards.batch import Notes
from covey.rewards.execution.loop import awaited
from covey.rewards.results import listed, number

_function: Any = None


class RecordedNotes(Notes):
    """Notes that also keep each metric as it was logged."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.logged: list[tuple[str, float]] = []

    def log_metric(self, name: str, value: float) -> None:
        self.logged.append((name, number(value)))


def load(payload: bytes) -> str:
    """Keep a function; return what went wrong, empty where nothing did."""
    global _function
    try:
        _function = pickle.loads(payload)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def call(arguments: bytes, size: int, callbacks: list[str]) -> bytes:
    """Call the function, with those callbacks that it asks for; return (result, extras, metrics, error), pickled."""
    notes = RecordedNotes(size)
    outcome: tuple[object, dict[str, list[Any]], list[tuple[str, float]], BaseException | None]
    try:
        keywords = pickle.loads(arguments)
        keywords |= {name: getattr(notes, name) for name in callbacks}
        result = awaited(_function(**keywords))
        values = listed(result, size)
        result = result if values is None else values
        outcome = (result, notes.extras, notes.logged, None)
    except (Exception, SystemExit) as error:
        error.add_note("In the reward's own process:\n" + traceback.format_exc())
        outcome = (None, {}, [], error)
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        reported = outcome[3] or error
        text = "".join(traceback.format_exception_only(type(reported), reported)).strip()
        return pickle.dumps((None, {}, [], RuntimeError(text)))
