"""Changes of totals before advantages are worked out. The totals themselves stay as they were scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from covey.score.advantages import Floats


@dataclass(frozen=True)
class Shaping:
    """Treatment of completions that hit the length limit."""

    truncated_reward: float | None = None
    """Their reward, in place of the total; None: the total. A completion that nothing scored stays unscored."""
    truncated_in_baseline: bool = True
    """False: they are out of mean and spread of their group, and get an advantage of exactly 0."""


def shaped_totals(
    totals: ArrayLike, is_truncated: ArrayLike, shaping: Shaping, penalties: ArrayLike | None = None
) -> Floats:
    """Return the rewards that advantages are worked out from. Shape (completions,).

    Args:
        totals: weighted sum of the scores, NaN where nothing scored the completion. Shape (completions,).
        is_truncated: whether the completion hit the length limit. Shape (completions,).
        penalties: taken off each reward, such as a divergence to the reference. Shape (completions,).
    """
    totals, cut = np.asarray(totals, dtype=np.float64), np.asarray(is_truncated, dtype=bool)
    if shaping.truncated_reward is not None:
        totals = np.where(cut & ~np.isnan(totals), shaping.truncated_reward, totals)
    if penalties is not None:
        totals = totals - np.asarray(penalties, dtype=np.float64)
    return totals if shaping.truncated_in_baseline else np.where(cut, np.nan, totals)
