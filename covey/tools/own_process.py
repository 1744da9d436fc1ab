"""Tools in a process of their own, which is killed at the deadline."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from covey.rewards.execution.faults import CallLost, CallTimeout
from covey.rewards.execution.process import UNLIMITED
from covey.rewards.sandbox.session import CallFailed, Session
from covey.rewards.sandbox.trusted import trusted_child

CODE = (
    "from covey.rewards.execution.held_function import load\nfrom covey.tools.own_process_inside import call"
)


def new_session(payload: bytes) -> Session:
    """Return a process that holds a function; it starts at its first call, and anew after it was killed."""
    return Session(trusted_child, CODE, trusted=True, setup=("load", payload))


def call_in(session: Session, arguments: Mapping[str, Any], seconds: float | None) -> object:
    """Return what the function of a process returns.

    Raises:
        CallTimeout: it took longer, and was killed.
        CallLost: its process ended.
        Exception: what it raised.
    """
    try:
        pickled = session.call("call", pickle.dumps(dict(arguments)), seconds=seconds or UNLIMITED)
    except CallFailed as failure:
        if failure.verdict.status == "timeout":
            raise CallTimeout(f"no result within {seconds} s: killed") from None
        raise CallLost(f"its process ended: {failure.verdict.detail}") from None
    value, error = pickle.loads(pickled)
    if error is not None:
        raise error
    return value
