"""The live terminal: what a run does right now, drawn with rich; plain lines where there is no terminal.

    display = Display(plan_text, max_steps=300, rewards=["accuracy", "format"])
    display.update(step, metrics, groups)
    display.hint("No group has spread: …")
    display.close()

It draws as often as its cost allows: at most `BUDGET` of the wall time goes into drawing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from covey.metrics import PHASES
from covey.rewards.text import last_text_of
from covey.runs.record.episodes import turn_entries
from covey.runs.terminal.phrases import duration, number, percent
from covey.runs.terminal.sparkline import Curve, sparkline
from covey.runs.transcript import Part, transcript
from covey.text.foreign import clean, excerpt, fit
from covey.types import ScoredGroup
from covey.vision.marks import told

BUDGET = 0.01
"""Share of the wall time that drawing may take."""

MAX_HINT = 2_000
"""Characters of a hint that are shown; it may name what the dataset named."""

WIDE = 96
"""Columns from which two columns of numbers fit side by side."""

_STYLES = {"sample": "cyan", "score": "magenta", "update": "blue"}

_PROCESS_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("length", "completions/mean_length", number),
    ("cut off at the limit", "completions/clipped_ratio", percent),
    ("turns", "episodes/turns/mean", number),
    ("calls per completion", "tools/call_frequency", number),
    ("calls that fail", "tools/failure_frequency", percent),
    ("groups without spread", "frac_reward_zero_std", percent),
    ("KL to reference", "kl", number),
    ("entropy", "entropy", number),
    ("clipped tokens", "clip_ratio/region_mean", percent),
    ("gradient norm", "grad_norm", number),
)


class Display:
    """Shows a run while it goes on. Fed with the same numbers as the record."""

    def __init__(
        self,
        plan_text: str = "",
        max_steps: int | None = None,
        *,
        name: str = "covey",
        rewards: Sequence[str] = (),
        is_live: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Print the plan and begin.

        Args:
            plan_text: printed once, before the first step.
            max_steps: optimizer steps of the run, None if not known.
            name: stands in the first line.
            rewards: names of the rewards, in the order in which they are shown; others follow as they appear.
            is_live: whether to draw where there is a terminal; without, a line is printed per update.
            console: where to draw; by default the standard output.
            clock: seconds, for tests.
        """
        self.console = console or Console(highlight=False)
        self.max_steps = max_steps
        self.name = name
        self._rewards = list(rewards)
        self._curves: dict[str, Curve] = {}
        self._metrics: dict[str, float] = {}
        self._groups: Sequence[ScoredGroup] = ()
        self._hint: str | None = None
        self._step = 0
        self._clock = clock
        self._pace = _Pace(clock())
        self._next_draw = 0.0
        self._live: Live | None = None
        if plan_text:
            self.console.print(Text(clean(plan_text)), soft_wrap=True)
        if is_live and self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(
                console=self.console, auto_refresh=False, transient=False, vertical_overflow="crop"
            )
            self._live.start()

    def update(self, step: int, metrics: Mapping[str, float], groups: Sequence[ScoredGroup] = ()) -> None:
        """Take in the metrics of a step, and the groups of which completions are shown."""
        self._pace.tick(self._clock(), step)
        self._step = step
        # num_tokens counts those of the whole run.
        tokens = max(0.0, metrics.get("num_tokens", 0.0) - self._metrics.get("num_tokens", 0.0))
        self._metrics |= {"num_tokens/step": tokens, **metrics}
        means = [m for m in metrics if m.startswith("rewards/") and m.endswith("/mean")]
        tasks = [m for m in metrics if m.startswith("tasks/") and m.endswith("/reward")]
        shown = ["reward", *means, *tasks, *(name for _, name, _ in _PROCESS_ROWS)]
        for name in (name for name in shown if name in metrics):
            self._curves.setdefault(name, Curve()).add(metrics[name])
        self._groups = groups or self._groups
        if self._live is None:
            self.console.print(Text(self.line()), soft_wrap=True)
        else:
            self._draw()

    @property
    def is_live(self) -> bool:
        """Whether it draws; if not, it prints lines."""
        return self._live is not None

    def evaluated(self, step: int, means: Mapping[str, float]) -> None:
        """Print what an evaluation found; above the picture, where it is drawn."""
        parts = [f"{clean(name.removeprefix('eval_'))} {number(value)}" for name, value in means.items()]
        self.say("  ".join([f"evaluation at step {step}", *parts]))

    def say(self, text: str) -> None:
        """Print a sentence; above the picture, where it is drawn."""
        self.console.print(Text(clean(text)), soft_wrap=True)

    def hint(self, text: str) -> None:
        """Show what a rule found; it stays until the next one."""
        self._hint = fit(text, MAX_HINT)
        if self._live is None:
            self.console.print(Text(f"hint: {self._hint}"), soft_wrap=True)
        else:
            self._draw(now=True)

    def close(self) -> None:
        """Draw the last state once more and give the terminal back."""
        if self._live is not None:
            self._draw(now=True)
            self._live.stop()
            self._live = None

    def line(self) -> str:
        """Return the last step in one short line."""
        of = f"/{self.max_steps}" if self.max_steps else ""
        parts = [f"step {self._step}{of}"]
        rewards = ((excerpt(r, 40), f"rewards/{r}/mean") for r in self._reward_names()[:4])
        for label, name in (
            ("reward", "reward"),
            *rewards,
            ("length", "completions/mean_length"),
            ("calls", "tools/call_frequency"),
            ("kl", "kl"),
            ("loss", "loss"),
        ):
            if name in self._metrics:
                parts.append(f"{label} {number(self._metrics[name])}")
        if "step_time" in self._metrics:
            parts.append(duration(self._metrics["step_time"]))
        left = self._pace.left(self.max_steps)
        return "  ".join(parts + ([f"{duration(left)} left"] if left is not None else []))

    def render(self, width: int | None = None, height: int | None = None) -> RenderableType:
        """Return the whole picture for a terminal of that size."""
        width = width or self.console.width
        height = height or self.console.height
        parts = [self._headline(width), Text(), self._numbers(width), Text(), self._phases(width)]
        if self._hint:
            row = Table.grid(padding=(0, 2))
            row.add_column(style="bright_black")
            row.add_row("hint", Text(self._hint, style="yellow"))
            parts += [Text(), row]
        used = sum(len(self.console.render_lines(p, self.console.options.update(width=width))) for p in parts)
        parts += self._samples(width, height - used - 2)
        return Group(*parts)

    def _draw(self, now: bool = False) -> None:
        """Draw if the last drawing was long enough ago for what it cost."""
        begin = self._clock()
        if self._live is None or (begin < self._next_draw and not now):
            return
        self._live.update(self.render(), refresh=True)
        self._next_draw = self._clock() + (self._clock() - begin) / BUDGET

    def _reward_names(self) -> list[str]:
        found = [
            n.removeprefix("rewards/").removesuffix("/mean")
            for n in self._metrics
            if n.startswith("rewards/") and n.endswith("/mean")
        ]
        return list(dict.fromkeys([*(r for r in self._rewards if r in found), *found]))

    def _headline(self, width: int) -> RenderableType:
        bar = Text()
        share = min(1.0, self._step / self.max_steps) if self.max_steps else 0.0
        if self.max_steps:
            room = max(8, min(40, width - 64))
            done = round(share * room)
            bar.append("━" * done, "green").append("━" * (room - done), "bright_black")
        left = self._pace.left(self.max_steps)
        of = f"/{self.max_steps}" if self.max_steps else ""
        line = Table.grid(padding=(0, 2))
        line.add_row(
            Text(excerpt(self.name, 24), style="bold"),
            Text(f"step {self._step}{of}"),
            bar,
            Text(f"{share:.0%}" if self.max_steps else ""),
            Text(f"{duration(left)} left" if left is not None else "", style="bold"),
        )
        return line

    def _numbers(self, width: int) -> RenderableType:
        wide = width >= WIDE
        # Label, number and gaps of a column leave this much for its curve.
        spark = max(6, min(32, (width // 2 if wide else width) - 36))
        rewards, process = _rows(), _rows()
        self._row(rewards, "reward", "reward", number, spark, "bold green")
        for name in self._reward_names():
            self._row(rewards, name, f"rewards/{name}/mean", number, spark, "green")
        for metric in (m for m in self._curves if m.startswith("tasks/")):
            self._row(rewards, f"task {metric.split('/')[1]}", metric, number, spark, "cyan")
        for label, metric, form in _PROCESS_ROWS:
            self._row(process, label, metric, form, spark, "bright_black")
        if not wide:
            return Group(rewards, Text(), process)
        both = Table.grid(expand=True, padding=(0, 2))
        both.add_column(ratio=1)
        both.add_column(ratio=1)
        both.add_row(rewards, process)
        return both

    def _row(
        self, rows: Table, label: str, metric: str, form: Callable[[float], str], spark: int, style: str
    ) -> None:
        curve = self._curves.get(metric)
        if curve is None or curve.last is None:
            return
        weight = "bold" if "bold" in style else ""
        line = sparkline(curve.points(), spark)
        rows.add_row(
            Text(excerpt(label, 22), style=weight),
            Text(form(curve.last), style=weight),
            Text(line, style=style),
        )

    def _phases(self, width: int) -> RenderableType:
        seconds = {p: self._metrics.get(f"time/{p}", 0.0) for p in PHASES}
        total = max(self._metrics.get("step_time", 0.0), sum(seconds.values()))
        if not total:
            return Text()
        room = max(10, min(48, width - 40))
        bar, words = Text(), Text()
        for phase, spent in seconds.items():
            bar.append("━" * round(room * spent / total), _STYLES[phase])
            words.append("■ ", _STYLES[phase]).append(f"{phase} {duration(spent)}")
            if spent and self._metrics.get("num_tokens/step") and phase != "score":
                speed = number(self._metrics["num_tokens/step"] / spent)
                words.append(f" · {speed} tokens/s", "bright_black")
            words.append("   ")
        tail = Text(f"{duration(total)} a step", style="bold")
        if "memory/peak_mb" in self._metrics:
            tail.append(f" · peak {self._metrics['memory/peak_mb'] / 1024:.1f} GB", "bright_black")
        first = Table.grid(padding=(0, 2))
        first.add_row(bar, tail)
        return Group(first, words)

    def _samples(self, width: int, room: int) -> list[RenderableType]:
        """Return the best completion of each of two groups, or of one where there is little room."""
        count = min(2 if room >= 8 else 1 if room >= 3 else 0, len(self._groups))
        apart = len(self._groups) // 2
        parts: list[RenderableType] = []
        for n in range(count):
            group = self._groups[(self._step + n * apart) % len(self._groups)]
            best = max(range(len(group.advantages)), key=lambda i: group.advantages[i])
            total = group.totals[best]
            prompt = group.group.completions[best].own_prompt or told(group.group.prompt)
            question = excerpt(last_text_of(prompt), max(10, width - 50))
            facts = f"  reward {'none' if total is None else number(total)}, advantage {group.advantages[best]:+.2f}"
            head = Text.assemble(("sample  ", "bright_black"), question, (facts, "bold"))
            head.truncate(width, overflow="ellipsis")
            parts += [Text(), head, _completion(group, best, width - 2, room // count - 2)]
        return parts


class _Pace:
    """Seconds per step, from the last steps: what is slow once (an evaluation, a save) does not count for ever."""

    def __init__(self, now: float) -> None:
        self._marks: list[tuple[int, float]] = [(0, now)]

    def tick(self, now: float, step: int) -> None:
        if step > self._marks[-1][0] + 1 and len(self._marks) == 1:
            self._marks = [(step - 1, self._marks[0][1])]  # a resumed run begins in the middle
        self._marks = [*self._marks[-20:], (step, now)]

    def left(self, max_steps: int | None) -> float | None:
        steps = self._marks[-1][0] - self._marks[0][0]
        if not max_steps or steps < 1:
            return None
        per_step = (self._marks[-1][1] - self._marks[0][1]) / steps
        return max(0.0, (max_steps - self._marks[-1][0]) * per_step)


def _rows() -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(min_width=22)
    rows.add_column(justify="right", min_width=9)
    rows.add_column()
    return rows


def _completion(group: ScoredGroup, index: int, width: int, count: int) -> Text:
    """Return the beginning of a completion; of an episode a line per part, in grey what the policy did not write."""
    completion = group.group.completions[index]
    if not completion.messages:
        return Text(_lines(completion.text, width, count))
    parts = transcript(completion.messages, turn_entries(group, index))
    if len(parts) > count:  # the end says most: the answer
        left = len(parts) - count + 1
        parts = [*parts[: (count - 1) // 2], Part("", f"… {left} more"), *parts[len(parts) - count // 2 :]]
    lines = [
        Text(
            f"  {excerpt(f'{part.speaker}: {part.text}' if part.speaker else part.text, width)}",
            "bright_black" if part.is_injected else "",
        )
        for part in parts
    ]
    return Text("\n").join(lines[:count])


def _lines(text: str, width: int, count: int) -> str:
    """Return the first lines of a text, each cut to the width."""
    kept = [line.expandtabs(4) for line in clean(text[: 8 * width * count]).split("\n") if line.strip()]
    cut = [line if len(line) <= width else line[: width - 1] + "…" for line in kept[:count]]
    return "\n".join(f"  {line}" for line in cut)
