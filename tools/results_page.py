"""Write the tables of docs/results.md, and its curves, from the runs in docs/results/.

    python tools/results_page.py

A run is the `result.json` of a script in examples/, renamed `EXAMPLE.MODEL.WEIGHTS.SEED.json`. tests/docs/test_results.py holds the page
against the runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
RUNS = ROOT / "docs" / "results"
PICTURES = ROOT / "docs" / "pictures"

WIDTH, HEIGHT, LEFT, TOP = 640, 220, 44, 24
"""Of one picture, in pixels, with the room for its labels."""
COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
SMOOTHED = 5
"""Steps on each side of a step that its mean takes in, at most."""
NO_RUN = "No finished run is recorded yet."


@dataclass(frozen=True)
class Found:
    """One run, as its file holds it."""

    example: str
    numbers: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.numbers['model']}, {self.numbers['weights']}, seed {self.numbers['seed']}"


def read_runs(folder: Path = RUNS) -> list[Found]:
    """Return the runs of a folder, by example, model, weights and seed."""
    paths = sorted(folder.glob("*.json"))
    return [Found(path.name.split(".")[0], json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def table(runs: Iterable[Found]) -> str:
    """Return the table of one example's runs: held-out success before and after, tokens, time."""
    head = "| model | weights | seed | task | before | after | p | tokens | steps | CPU minutes |"
    lines = [head, "| --- " * head.count(" | ") + "| --- |"]
    for run in runs:
        n = run.numbers
        for task, found in n["held_out"].items():
            before, after = (interval(found[at]) for at in ("before", "after"))
            tokens = f"{found['before']['tokens']:.0f} → {found['after']['tokens']:.0f}"
            cells = [
                n["model"],
                n["weights"],
                n["seed"],
                f"{task} ({found['prompts']})",
                before,
                f"**{after}**",
            ]
            cells += [f"{found['p_value']:.1g}", tokens, len(n["steps"]["reward"]), f"{n['cpu_minutes']:.0f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def interval(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.2f} ({found['low']:.2f}–{found['high']:.2f})"


def smoothed(values: Sequence[float], reach: int = SMOOTHED) -> list[float]:
    """Return for each step the mean of the steps around it; at the ends of fewer, as many before as after."""
    reaches = [min(reach, i, len(values) - 1 - i) for i in range(len(values))]
    return [sum(values[i - r : i + r + 1]) / (2 * r + 1) for i, r in enumerate(reaches)]


def curves(runs: Sequence[Found]) -> str:
    """Return the reward by step as SVG: a dot for each step, a line for the mean of those around it."""
    longest = max(len(run.numbers["steps"]["reward"]) for run in runs)
    highest = max(max(run.numbers["steps"]["reward"]) for run in runs) or 1.0
    across, down = (WIDTH - LEFT - 12) / max(1, longest - 1), (HEIGHT - TOP - 30) / highest

    def place(step: int, value: float) -> tuple[float, float]:
        return round(LEFT + step * across, 1), round(HEIGHT - 30 - value * down, 1)

    parts = [axis(*place(0, value), f"{value:.1f}") for value in (0.0, highest / 2, highest)]
    parts.append(f'<text x="{WIDTH - 12}" y="{HEIGHT - 12}" text-anchor="end">step {longest}</text>')
    for number, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        rewards = run.numbers["steps"]["reward"]
        dots = [place(i, r) for i, r in enumerate(rewards)]
        line = " ".join(f"{x},{y}" for x, y in (place(i, r) for i, r in enumerate(smoothed(rewards))))
        parts += [f'<circle cx="{x}" cy="{y}" r="1.6" fill="{colour}" opacity="0.45"/>' for x, y in dots]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 8}" y="{TOP + 14 * number}" fill="{colour}">{run.label}</text>')
    return svg(parts)


def axis(x: float, y: float, label: str) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{WIDTH - 12}" y2="{y}" stroke="#8884"/>'
        f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{label}</text>'
    )


def svg(parts: Iterable[str]) -> str:
    style = 'font-family="system-ui, sans-serif" font-size="11" fill="#888"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>'
    return "\n".join([head, *parts, "</svg>", ""])


def by_example(runs: Iterable[Found]) -> dict[str, list[Found]]:
    groups: dict[str, list[Found]] = {}
    for run in runs:
        groups.setdefault(run.example, []).append(run)
    return groups


def page(text: str, groups: Mapping[str, Sequence[Found]]) -> str:
    """Return the page with the runs of each example between its two marks.

    Raises:
        ValueError: the page has no place for the runs of an example.
    """
    for example in groups:
        if f"<!-- runs of {example} -->" not in text:
            raise ValueError(
                f"docs/results.md has no place for the runs of {example}: write <!-- runs of {example} --> and <!-- end -->."
            )

    def filled(place: re.Match[str]) -> str:
        runs = groups.get(place[1])
        shown = f"{table(runs)}\n\n![Reward by step](pictures/{picture(place[1]).name})" if runs else NO_RUN
        return f"<!-- runs of {place[1]} -->\n\n{shown}\n\n<!-- end -->"

    return re.sub(r"<!-- runs of (\w+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL)


def picture(example: str) -> Path:
    return PICTURES / f"results-{example.replace('_', '-')}.svg"


if __name__ == "__main__":
    found = by_example(read_runs())
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    for example, runs in found.items():
        picture(example).write_text(curves(runs), encoding="utf-8")
