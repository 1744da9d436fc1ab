"""docs/results.md says what the runs in docs/results/ found, and the runs there hold what the page needs."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import results_page
from results_page import Found

from covey.runs.statistics import wilson_interval

RUNS = results_page.read_runs()


def run(rewards, before=(0.25, 0.1, 0.5), after=(0.5, 0.3, 0.7)):
    sides = {
        at: {**dict(zip(("mean", "low", "high"), values, strict=True)), "tokens": 9.6, "cut_off": 0.0}
        for at, values in (("before", before), ("after", after))
    }
    return Found(
        "sums",
        {
            "model": "M", "weights": "LoRA", "seed": 3, "cpu_minutes": 7.4, "steps": {"reward": rewards},
            "held_out": {"sums": {"prompts": 16, "p_value": 0.0421, **sides}},
        },
    )  # fmt: skip


def test_the_page_and_its_curves_are_made_from_the_runs():
    groups = results_page.by_example(RUNS)
    text = results_page.PAGE.read_text(encoding="utf-8")
    assert text == results_page.page(text, groups), "run python tools/results_page.py"
    for example, runs in groups.items():
        path = results_page.picture(example)
        assert path.read_text(encoding="utf-8") == results_page.curves(runs), (
            "run python tools/results_page.py"
        )


def test_a_table_says_the_intervals_the_test_and_the_tokens_of_a_run():
    row = results_page.table([run([0.1, 0.2])]).splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "M", "LoRA", "3", "sums (16)", "0.25 (0.10–0.50)", "**0.50 (0.30–0.70)**", "0.04", "10 → 10", "2", "7",
    ]  # fmt: skip


def test_a_smoothed_curve_is_a_mean_of_as_many_steps_before_as_after():
    assert results_page.smoothed([0, 3, 6, 0, 0], reach=1) == [0, 3, 3, 2, 0]
    rising = [float(i) for i in range(30)]  # a straight line stays where it is, also at its ends
    assert results_page.smoothed(rising) == pytest.approx(rising)


def test_a_curve_rises_where_the_reward_rises():
    drawn = results_page.curves([run([0.0, 0.5, 1.0])])
    heights = [float(y) for y in re.findall(r'cy="([0-9.]+)"', drawn)]
    assert heights == sorted(heights, reverse=True) and len(set(heights)) == 3


def test_a_page_shows_the_runs_of_an_example_in_its_place_and_says_where_there_are_none():
    empty = "A\n<!-- runs of sums -->\nold\n<!-- end -->\nB\n<!-- runs of code --><!-- end -->\nC"
    text = results_page.page(empty, {"sums": [run([0.0])]})
    first, rest = text.split("\nB\n")
    assert (
        first.startswith("A\n<!-- runs of sums -->") and first.endswith("<!-- end -->") and "old" not in first
    )
    assert results_page.table([run([0.0])]) in first and "(pictures/results-sums.svg)" in first
    assert results_page.NO_RUN in rest and rest.endswith("C")
    assert results_page.page(text, {"sums": [run([0.0])]}) == text


def test_a_page_without_a_place_for_a_run_is_an_error():
    with pytest.raises(ValueError, match="<!-- runs of sums -->"):
        results_page.page("# Results\n", {"sums": [run([0.0])]})


@pytest.mark.parametrize("path", sorted(results_page.RUNS.glob("*.json")), ids=lambda path: path.stem)
def test_a_run_is_whole_and_says_nothing_of_the_machine(path):
    text = path.read_text(encoding="utf-8")
    numbers = json.loads(text)
    assert not re.search(r'"/|\\\\Users|/home/|/root/|/tmp/', text)
    assert len({len(series) for series in numbers["steps"].values()}) == 1
    for found in numbers["held_out"].values():
        for at in ("before", "after"):
            side = found[at]
            whole = wilson_interval(round(side["mean"] * found["prompts"]), found["prompts"])
            assert (side["low"], side["high"]) == pytest.approx((whole.low, whole.high), abs=1e-3)


def test_what_is_shown_was_run_with_two_seeds():
    seeds = {}
    for found in RUNS:
        name = (found.example, found.numbers["model"], found.numbers["weights"])
        seeds.setdefault(name, set()).add(found.numbers["seed"])
    assert {example for (example, *_), drawn in seeds.items() if len(drawn) >= 2} == {f.example for f in RUNS}
