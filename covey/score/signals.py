"""Says once, and loudly, what keeps a run from learning anything at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.errors import warn
from covey.score.advantages import has_spread
from covey.types import ScoredGroup

NO_SPREAD = (
    "No group has any spread: within each prompt all completions got the same reward, so there is nothing to learn from. "
    "Usual reasons: the task is too hard or too easy for the policy, the reward is constant, or all completions are the same."
)
ALL_CUT = (
    "Every completion hit the limit of {limit} tokens. If rewards need a finished answer, raise max_completion_length, or "
    "check that the model ends its answers with one of its end-of-sequence tokens."
)
NOTHING_SCORED = "No reward applied to any completion of this round: all of them returned None, or failed. The step changes nothing."


class Signals:
    """Remembers what has been said; a message comes at most once in a run."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def check(self, scored: Sequence[ScoredGroup], step: int) -> None:
        """Look at one round of sampling."""
        if not scored:
            return
        totals = [[np.nan if t is None else t for t in s.totals] for s in scored]
        if np.isnan(np.concatenate(totals)).all():
            self._say(NOTHING_SCORED, step)
        elif not any(has_spread(np.asarray(t, dtype=np.float64)) for t in totals):
            self._say(NO_SPREAD, step)
        completions = [c for s in scored for c in s.group.completions]
        if all(c.is_truncated for c in completions):
            self._say(ALL_CUT.format(limit=max(len(c.ids) for c in completions)), step)

    def _say(self, message: str, step: int) -> None:
        if message not in self.said:
            self.said.add(message)
            warn(f"Step {step + 1}: {message}")
