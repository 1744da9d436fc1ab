"""The page of a study of learning: a table and plots for each task, in one file that needs nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from learning_numbers import Point, overall

Runs = Mapping[str, Mapping[int, Sequence[Point]]]
"""Points by arm and seed."""
COLOURS = ("#555", "#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#0a7ea4", "#bc4c00")
WIDTH, HEIGHT, MARGIN = 460, 260, 44
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1f2328}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border-bottom:1px solid #ddd;padding:.3rem .8rem;text-align:left}"
    "svg{margin-right:1rem;font-size:11px}code{background:#f3f4f6}"
)


def page(
    tables: Mapping[str, Sequence[Mapping[str, str]]],
    runs: Mapping[str, Runs],
    arms: Mapping[str, Any],
    options: Mapping[str, Any],
) -> str:
    """Return the page.

    Args:
        tables: rows of text by task.
        runs: points by task, arm and seed.
        arms: the settings of each.
    """
    parts = [f"<!doctype html><meta charset=utf-8><title>A study of learning</title><style>{STYLE}</style>"]
    parts += ["<h1>A study of learning</h1>", _settings(arms, options)]
    for task, rows in tables.items():
        parts += [f"<h2>{html.escape(task)}</h2>", _table(rows), _legend(list(runs[task]))]
        names = sorted(
            {name for arm in runs[task].values() for ps in arm.values() for name in ps[0]["success"]}
        )
        for axis, unit in (("tokens", "sampled tokens"), ("seconds", "seconds of training")):
            parts.append(_plot(runs[task], axis, unit, [], "all held-out problems"))
        parts += [_plot(runs[task], "tokens", "sampled tokens", [n], n) for n in names if len(names) > 1]
    parts.append(
        "<p>Thick lines: means over seeds; thin: seeds. Ratios are by plain GRPO's, in pairs of the same seed: geometric means with 95 % "
        "intervals (Student's t over seeds). “of mean curves”: one ratio, of the curves of means, with the interval of "
        "resampled pairs of seeds, which is too narrow for few. “≥”: some seeds did not arrive, and count with all that they used. “mean success, more”: the "
        "difference of the areas below the curves, over the tokens of plain GRPO.</p>"
    )
    return "\n".join(parts)


def _settings(arms: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    shown = {n: options[n] for n in ("steps", "rows", "held_out", "every", "seeds") if n in options}
    lines = [
        f"<li><b>{html.escape(n)}</b> <code>{html.escape(json.dumps(s))}</code>" for n, s in arms.items()
    ]
    return f"<ul><li><code>{html.escape(json.dumps(shown))}</code>{''.join(lines)}</ul>"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return "<p>No run yet.</p>"
    head = "".join(f"<th>{html.escape(name)}" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(v)}" for v in row.values()) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _legend(names: Sequence[str]) -> str:
    marks = (f'<b style="color:{_colour(n)}">■</b> {html.escape(name)}' for n, name in enumerate(names))
    return f"<p>{' &nbsp; '.join(marks)}</p>"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _plot(runs: Runs, axis: str, unit: str, tasks: Sequence[str], title: str) -> str:
    """Return curves of success: thin ones of the seeds, thick ones of their means at shared places."""
    every = [p for arm in runs.values() for points in arm.values() for p in points]
    right = max((p[axis] for p in every), default=0) or 1
    top = max((overall(p, tasks) for p in every), default=0) or 1

    def path(pairs: Sequence[tuple[float, float]], colour: str, width: float, opacity: float) -> str:
        at = " ".join(
            f"{MARGIN + x / right * (WIDTH - MARGIN - 8):.1f},{HEIGHT - MARGIN - y / top * (HEIGHT - MARGIN - 24):.1f}"
            for x, y in pairs
        )
        style = f'fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"'
        return f'<polyline points="{at}" {style}/>'

    lines = []
    for number, arm in enumerate(runs.values()):
        curves = [[(p[axis], overall(p, tasks)) for p in points] for points in arm.values()]
        lines += [path(curve, _colour(number), 1, 0.35) for curve in curves]
        shared = list(zip(*curves, strict=False))
        means = [tuple(sum(v) / len(v) for v in zip(*points, strict=True)) for points in shared]
        lines.append(path(means, _colour(number), 2.5, 1))  # type: ignore[arg-type]
    ends = (
        f'<text x="{MARGIN}" y="{HEIGHT - 26}">0</text><text x="{WIDTH - 8}" y="{HEIGHT - 26}" text-anchor="end">{right:,.0f} {unit}</text>'
        f'<text x="{MARGIN - 4}" y="30" text-anchor="end">{top:.2f}</text>'
        f'<text x="{MARGIN - 4}" y="{HEIGHT - MARGIN}" text-anchor="end">0</text><text x="{MARGIN}" y="14">{html.escape(title)}</text>'
        f'<path d="M{MARGIN} 24V{HEIGHT - MARGIN}H{WIDTH - 8}" fill="none" stroke="#999"/>'
    )
    return f'<svg width="{WIDTH}" height="{HEIGHT}">{ends}{"".join(lines)}</svg>'
