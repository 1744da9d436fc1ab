"""Runs in a reward's own process: holds its function and calls it."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from covey.rewards.batch import Notes

_function: Any = None


def load(payload: bytes) -> str:
    """Keep a function; what went wrong, empty where nothing did."""
    global _function
    try:
        _function = pickle.loads(payload)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def call(arguments: bytes, size: int) -> bytes:
    """(result, extras, metrics, error) of a call, pickled."""
    notes = _Recorded(size)
    try:
        keywords = pickle.loads(arguments)
        outcome: Any = (_called(keywords, notes), notes.extras, notes.told, None)
    except (Exception, SystemExit) as error:
        error.add_note("In the reward's own process:\n" + traceback.format_exc())
        outcome = (None, {}, [], error)
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        told = outcome[3] or error
        text = "".join(traceback.format_exception_only(type(told), told)).strip()
        return pickle.dumps((None, {}, [], RuntimeError(text)))


def _called(keywords: dict[str, Any], notes: _Recorded) -> Any:
    import inspect

    parameters = inspect.signature(_function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    tools = {"log_extra": notes.log_extra, "log_metric": notes.log_metric}
    keywords |= {name: tool for name, tool in tools.items() if takes_all or name in parameters}
    result = _function(**keywords)
    return (
        result.tolist()
        if hasattr(result, "tolist")
        else list(result)
        if inspect.isgenerator(result)
        else result
    )


class _Recorded(Notes):
    """Notes that also remember each metric as it was told."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.told: list[tuple[str, float]] = []

    def log_metric(self, name: str, value: float) -> None:
        self.told.append((name, float(value)))
