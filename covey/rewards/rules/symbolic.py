"""Comparison of answers by math-verify, in workers that are killed when one takes too long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from covey.rewards.rules.workers import workers
from covey.rewards.sandbox.session import CallFailed

Verdict = Literal["same", "different", "unreadable", "failed"]
"""`unreadable`: the right answer is. `failed`: the comparison could not be made, which is not the answer's fault."""

Pair = tuple[str, str]
"""The right answer and the given one."""

MODULE = "covey.rewards.rules.symbolic_inside"
MAX_REMEMBERED = 100_000

_remembered: dict[tuple[str, str, float], Verdict] = {}
_lock = threading.Lock()


def compare(pairs: Sequence[Pair], seconds: float) -> list[Verdict]:
    """Return one verdict per pair; verdicts are remembered.

    An answer that takes more than `seconds` of processor time, or the memory of its worker, is different: writing a
    tower of powers must not be a way out of being wrong.
    """
    unique = dict.fromkeys(pairs)
    found = {pair: verdict for pair in unique if (verdict := _remembered.get((*pair, seconds)))}
    new = [pair for pair in unique if pair not in found]
    if new:
        for pair, value in zip(new, workers(MODULE, "compare").map(new, seconds), strict=True):
            if isinstance(value, CallFailed):
                found[pair] = "failed" if value.verdict.status == "infrastructure" else "different"
            else:
                found[pair] = "unreadable" if value is None else "same" if value is True else "different"
    with _lock:
        if len(_remembered) > MAX_REMEMBERED:
            _remembered.clear()
        _remembered.update({(*pair, seconds): v for pair, v in found.items() if v != "failed"})
    return [found[pair] for pair in pairs]
