"""Code of a tool's own process: holds its function and calls it."""

from __future__ import annotations

import pickle

from covey.rewards.execution import held_function
from covey.rewards.execution.loop import awaited
from covey.tools.result_text import message_of


def call(arguments: bytes) -> bytes:
    """Call the function; return (value, exception), pickled. What cannot be pickled comes as its text."""
    outcome: tuple[object, BaseException | None]
    try:
        outcome = (awaited(held_function.held(**pickle.loads(arguments))), None)
    except (Exception, SystemExit) as error:
        outcome = (None, error)
    try:
        return pickle.dumps(outcome)
    except Exception:
        value, error_ = outcome
        plain = None if error_ is None else RuntimeError(message_of(error_))
        return pickle.dumps((str(value) if plain is None else None, plain))
