"""A run in a notebook's cell: its reward as a curve, or the whole page in a frame."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.runs.terminal.phrases import number
from covey.text.foreign import as_html

WIDTH, HEIGHT = 480, 96
"""Pixels of the curve."""

SHOWN = ("reward", "reward_std", "completions/mean_length", "kl")
"""Metrics of the last step that stand beside it."""


@dataclass(frozen=True)
class Cell:
    """HTML that a notebook draws."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def framed(page: str, height: int) -> Cell:
    """Return a page in a frame of its own, where its styles and scripts touch nothing of the notebook."""
    style = f"width:100%;height:{height}px;border:1px solid #ccc"
    return Cell(f'<iframe srcdoc="{html.escape(page)}" style="{style}" sandbox="allow-scripts"></iframe>')


def summary_html(title: str, rewards: Sequence[float], last: Mapping[str, float]) -> str:
    """Return the title, the last numbers, and the reward's curve over the steps with its lowest and highest value."""
    numbers = "  ".join(f"{name} {number(last[name])}" for name in SHOWN if name in last)
    head = f"<b>{as_html(title)}</b><br>{as_html(numbers)}"
    if len(rewards) < 2:
        return f"<div>{head}</div>"
    low, high = min(rewards), max(rewards)
    points = " ".join(
        f"{i * WIDTH / (len(rewards) - 1):.1f},{HEIGHT - (r - low) / ((high - low) or 1.0) * HEIGHT:.1f}"
        for i, r in enumerate(rewards)
    )
    line = f'<polyline points="{points}" fill="none" stroke="#2a7a4b" stroke-width="1.5"/>'
    box = f'<svg width="{WIDTH}" height="{HEIGHT + 4}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}">{line}</svg>'
    scale = f"reward per step, from {number(low)} to {number(high)}, {len(rewards)} steps"
    return f"<div>{head}<br>{box}<br><small>{scale}</small></div>"
