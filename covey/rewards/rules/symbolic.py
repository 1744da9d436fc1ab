"""The host's side of math-verify: pairs of answers go to workers that are killed when one takes too long."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from covey.rewards.sandbox.child import Child
from covey.rewards.sandbox.session import CallFailed, Session
from covey.rewards.sandbox.trusted import trusted_child

Verdict = Literal["same", "different", "unreadable", "failed"]
"""`unreadable`: the right answer is. `failed`: the comparison could not be made, which is not the answer's fault."""

Pair = tuple[str, str]
"""The right answer and the given one."""

MODULE = "covey.rewards.rules.symbolic_inside"
MEMORY_MB = 2_048
PATIENCE = 4.0
"""How much longer than its processor time a comparison may take on the clock, where others use the machine too."""
MAX_REMEMBERED = 100_000


class Symbolic:
    """Compares answers in worker processes, and remembers what it compared.

    An answer that takes more than `seconds` of processor time (or `PATIENCE` times as long on the clock), or the memory of
    its worker, is different: writing a tower of powers must not be a way out of being wrong.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._sessions = [
            Session(_child, f"from {MODULE} import compare", trusted=True) for _ in range(workers or _cores())
        ]
        self._remembered: dict[tuple[str, str, float], Verdict] = {}
        self._lock = threading.Lock()
        self.owner = os.getpid()

    def compare(self, pairs: Sequence[Pair], seconds: float) -> list[Verdict]:
        """One verdict per pair."""
        new = [pair for pair in dict.fromkeys(pairs) if (*pair, seconds) not in self._remembered]
        found = {pair: self._remembered.get((*pair, seconds)) for pair in pairs}
        found |= dict(zip(new, self._compare_new(new, seconds), strict=True))
        with self._lock:
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered |= {
                (*pair, seconds): v for pair, v in found.items() if v is not None and v != "failed"
            }
        return [found[pair] or "failed" for pair in pairs]

    def _compare_new(self, pairs: Sequence[Pair], seconds: float) -> list[Verdict]:
        """Each worker takes the next pair when it is done, so that one that hangs holds up nobody else."""
        num_workers = min(len(self._sessions), len(pairs))
        if num_workers < 2:
            return [self._compare_one(self._sessions[0], pair, seconds) for pair in pairs]
        with ThreadPoolExecutor(num_workers) as pool:
            idle = list(self._sessions[:num_workers])

            def work(pair: Pair) -> Verdict:
                session = idle.pop()
                try:
                    return self._compare_one(session, pair, seconds)
                finally:
                    idle.append(session)

            return list(pool.map(work, pairs))

    def _compare_one(self, session: Session, pair: Pair, seconds: float, is_retry: bool = False) -> Verdict:
        try:
            same = session.call("compare", *pair, seconds, seconds=PATIENCE * seconds)
        except CallFailed as failure:
            if (
                failure.ended and not is_retry
            ):  # somebody may have killed the worker, for memory that others use
                return self._compare_one(session, pair, seconds, is_retry=True)
            return "failed" if failure.verdict.status == "infrastructure" else "different"
        return "unreadable" if same is None else "same" if same else "different"


_symbolic: Symbolic | None = None
_lock = threading.Lock()


def symbolic() -> Symbolic:
    """The workers of this process, started when first used."""
    global _symbolic
    with _lock:
        if _symbolic is None or _symbolic.owner != os.getpid():
            _symbolic = Symbolic()
        return _symbolic


def _child() -> Child:
    return trusted_child((MODULE,), MEMORY_MB)


def _cores() -> int:
    return max(1, min(4, os.cpu_count() or 1))
