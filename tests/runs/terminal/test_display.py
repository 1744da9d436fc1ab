"""The live terminal shows the numbers it is given, fits its window, and obeys no completion."""

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from covey.runs.record.group_statistics import group_statistics
from covey.runs.terminal.display import Display
from covey.types import Completion, Score
from tests.runs.synthetic import HOSTILE, WEIGHTS, Story, batch, metrics, with_advantages

STORY = Story(steps=300)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def terminal(width=110, height=36):
    return Console(
        width=width, height=height, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )


def run(display, clock, steps, seconds=2.0, first=1):
    for step in range(first, first + steps):
        groups = batch(STORY, step)
        clock.now += seconds
        statistics = group_statistics(groups, [g.group.prompt.columns["task"] for g in groups])
        display.update(step, metrics(STORY, step, groups, statistics), groups)


def picture(display, width=110, height=36):
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(display.render(width, height))
    return console.file.getvalue()


def test_a_prompt_that_shows_pictures_says_which():
    pytest.importorskip("PIL", reason="pictures need the extra `vision`")
    from tests.runs.pictured import asked, painting, pictured

    for prompt in (asked(), "<image> What is it?"):
        scored = pictured({"prompt": prompt, "images": [painting(), painting(1, (50, 20))]})
        display = Display("", 300, console=terminal(), clock=Clock())
        display.update(1, {"reward": 1.0, "step_time": 1.0}, [scored])
        first, second = (p.digest[:4] for p in scored.group.prompt.pictures)
        words = f"[picture 400×300 {first}] [picture 50×20 {second}] "
        assert words in picture(display, 140) and "What is it?" in picture(display, 140)


def test_everything_that_is_promised_is_on_the_screen():
    clock = Clock()
    display = Display("", 300, name="quickstart", rewards=list(WEIGHTS), console=terminal(), clock=clock)
    run(display, clock, 30)
    display.hint("KL runs away")
    shown = picture(display)
    for part in (
        "quickstart", "step 30/300", "9 min 00 s left", "reward", *WEIGHTS, "task countdown", "task code", "length",
        "cut off at the limit", "groups without spread", "KL to reference", "entropy", "clipped tokens", "tokens/s",
        "sample", "score", "update", "peak 2.2 GB", "KL runs away", "advantage", "<think>",
    ):  # fmt: skip
        assert part in shown, part
    assert any(bar in shown for bar in "▂▃▄▅▆▇█")


@pytest.mark.parametrize(("height", "samples"), [(45, 2), (18, 1), (12, 0)])
def test_two_groups_are_shown_where_there_is_room(height, samples):
    clock = Clock()
    display = Display("", 300, console=terminal(110, height), clock=clock)
    run(display, clock, 3)
    assert picture(display, 110, height).count("advantage") == samples


@pytest.mark.parametrize(("width", "height"), [(200, 60), (110, 36), (96, 24), (80, 24), (60, 40), (40, 50)])
def test_no_line_is_wider_than_the_window(width, height):
    clock = Clock()
    display = Display("", 300, console=terminal(width, height), clock=clock)
    run(display, clock, 12)
    assert all(len(line) <= width for line in picture(display, width, height).splitlines())
    if width >= 96:
        assert len(picture(display, width, height).splitlines()) <= height


def test_a_terminal_never_sees_an_escape_code_of_a_completion():
    clock, console = Clock(), terminal()
    display = Display("", 300, console=console, clock=clock)
    for step, text in enumerate((*HOSTILE, "\x1b]0;owned\x07\x1b[2J[bold red]markup[/]"), 1):
        group = batch(STORY, step)[0].group
        prompt = replace(group.prompt, content=text)
        group = replace(group, prompt=prompt, completions=(Completion((1,), (-1.0,), text, "stop"),) * 2)
        clock.now += 100
        scores = {"accuracy": [Score(1.0), Score(0.0)]}
        display.update(step, {"reward": 1.0}, [with_advantages(group, scores)])
        display.hint(text)
        shown = picture(display)
        assert not {"\x1b", "\x07", "\u202e", "\u2066", "\u200b", "\ud800"} & set(shown)
    assert "[bold red]markup" in picture(display)
    written = console.file.getvalue()
    assert "\x1b]0;owned" not in written and "\x1b[31mred" not in written


def test_without_a_terminal_each_step_is_one_short_line():
    clock = Clock()
    console = Console(file=io.StringIO(), width=40)
    display = Display("prompts per step   6", 300, console=console, clock=clock)
    run(display, clock, 3)
    display.hint("something\nelse")
    display.close()
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "prompts per step   6"
    assert [line.split("  ")[0] for line in lines[1:4]] == ["step 1/300", "step 2/300", "step 3/300"]
    assert "reward" in lines[1] and "accuracy" in lines[1] and "left" in lines[1]
    assert lines[4] == "hint: something"


def test_time_left_follows_the_last_steps_and_a_resumed_run_starts_in_the_middle():
    clock = Clock()
    display = Display("", 300, console=terminal(), clock=clock)
    run(display, clock, 10, seconds=4.0, first=251)
    assert display._pace.left(300) == pytest.approx(40 * 4.0)
    run(display, clock, 25, seconds=1.0, first=261)
    assert display._pace.left(300) == pytest.approx(15 * 1.0)
    assert "left" not in Display("", None, console=terminal(), clock=clock).line()


def test_drawing_takes_at_most_its_budget(monkeypatch):
    clock = Clock()
    display = Display("", 300, console=terminal(), clock=clock)
    drawn = []
    real = display.render

    def slow_render(*arguments):
        clock.now += 0.02
        drawn.append(clock.now)
        return real(*arguments)

    monkeypatch.setattr(display, "render", slow_render)
    begin = clock.now
    run(display, clock, 200, seconds=0.05)
    assert drawn and len(drawn) * 0.02 <= 0.011 * (clock.now - begin) + 0.02


def test_a_display_of_a_long_run_does_not_grow():
    display = Display("", 100_000, console=terminal())
    for step in range(1, 3000):
        display.update(step, {"reward": float(step), "kl": 0.1})
    assert max(len(c.points()) for c in display._curves.values()) <= 129
    assert len(display._pace._marks) <= 22


def test_updating_is_cheap():
    display = Display("", 300, console=terminal())
    groups = batch(STORY, 1)
    found = metrics(STORY, 1, groups, group_statistics(groups, ["x"] * len(groups)))
    begin = time.process_time()
    for step in range(1, 101):
        display.update(step, found, groups)
    # Budget of one step of 1 s would be 20 ms; drawing is paced, so almost all updates only take in numbers.
    assert (time.process_time() - begin) / 100 < 0.02
