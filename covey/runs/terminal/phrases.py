"""Numbers as people read them: short, without digits that mean nothing."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Return about three digits: 0.0041, 0.812, 12.4, 1,284, 3.2e-07."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 1e9 or 0 < size < 1e-4:
        return f"{value:.1e}"
    if size >= 100:
        return f"{value:,.0f}"
    digits = 0 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
    return f"{value:.{min(digits, 6)}f}"


def percent(share: float) -> str:
    """Return a share in [0, 1] as text: 0 %, <0.1 %, 0.4 %, 12 %."""
    value = 100 * share
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def duration(seconds: float) -> str:
    """Return two units at most: 0.82 s, 14 s, 3 min 20 s, 2 h 05 min, 4 d 3 h."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
