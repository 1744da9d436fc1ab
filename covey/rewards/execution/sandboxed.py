"""A user's function in the sandbox: its source runs in a locked process, so that hostile text meets it there.

For scoring functions that feed completions to something with a history: a parser, a solver, a regular expression. The
source must stand alone: what it needs is imported inside it, from the standard library.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import textwrap
import threading
import weakref

from covey.errors import RewardError
from covey.rewards.batch import Notes, RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.execution.faults import CallLost, CallTimeout
from covey.rewards.execution.process import sample_by_sample
from covey.rewards.sandbox.inside.codec import Opaque
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.sandbox import Sandbox
from covey.rewards.sandbox.session import CallFailed, Session

DEFAULT_SECONDS = 4.0
NOT_CARRIED = ("trainer_state", "log_extra", "log_metric")


_sessions: weakref.WeakKeyDictionary[Reward, tuple[int, Session]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def call_in_sandbox(reward: Reward, batch: RewardBatch, notes: Notes) -> object:
    """Call a reward's source in a locked process, with the whole batch; or sample by sample.

    Each call has a process of its own: a completion that takes it over gains nothing beyond its batch, or beyond itself.
    """
    with _lock:
        owner, session = _sessions.get(reward, (0, None))
        if session is None or owner != os.getpid():
            seconds = reward.options.sample_timeout or reward.options.timeout or DEFAULT_SECONDS
            limits = Limits(cpu_seconds=math.ceil(seconds), wall_seconds=seconds, memory_mb=512)
            session = Session(Sandbox(limits=limits).child, source_of(reward))
            _sessions[reward] = (os.getpid(), session)
    call = functools.partial(_call, session, reward)
    if reward.options.sample_timeout is None:
        return call(batch, notes, reward.options.timeout or DEFAULT_SECONDS)
    return sample_by_sample(reward, batch, notes, call)


def _call(session: Session, reward: Reward, batch: RewardBatch, notes: Notes, seconds: float) -> object:
    arguments = reward.arguments(batch, notes)
    carried = {name: value for name, value in arguments.items() if name not in NOT_CARRIED}
    try:
        return session.call(reward.function.__name__, seconds=seconds, **carried)
    except Opaque as error:
        raise RewardError(
            f"Reward {reward.name!r} runs in the sandbox, and one of its columns holds what cannot cross: {error}. Only "
            "numbers, text, lists and dictionaries can."
        ) from None
    except CallFailed as failure:
        if failure.verdict.status == "timeout":
            raise CallTimeout(f"killed: {failure.verdict.detail}") from None
        raise CallLost(str(failure)) from None
    finally:
        session.close()


def source_of(reward: Reward) -> str:
    """Return the source of a reward's function, without its decorators.

    Raises:
        RewardError: it is no function with a source, or it needs something from around it.
    """
    function = reward.function
    try:
        if not inspect.isfunction(function) or function.__name__ == "<lambda>":
            raise TypeError("it is no plain function")
        source = textwrap.dedent(inspect.getsource(function.__code__))  # not of what it wraps
    except (OSError, TypeError) as error:
        raise RewardError(
            f"Reward {reward.name!r} cannot run in the sandbox: {error}. There, a function's source is run; write it as a "
            "function in a file."
        ) from None
    outer = sorted(inspect.getclosurevars(function).nonlocals) + sorted(
        inspect.getclosurevars(function).globals
    )
    if outer:
        raise RewardError(
            f"Reward {reward.name!r} cannot run in the sandbox: it uses {', '.join(outer)} from outside of itself. Move that "
            "into the function."
        )
    start = source.find("def ")
    return "from __future__ import annotations\n" + source[max(source.rfind("\n", 0, start) + 1, 0) :]
