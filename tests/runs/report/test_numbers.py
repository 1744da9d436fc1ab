"""What the page is told: curves with intervals, evaluations with tests, failures by kind."""

import math

import numpy as np
import pytest

from covey.runs.report.curves import MAX_POINTS, curves, short
from covey.runs.report.evaluations import compare, measured
from covey.runs.report.failures import failures
from covey.runs.report.summary import RunSummary
from covey.runs.statistics import pass_at_k
from tests.runs.synthetic import Story, open_writer, record_evaluation, record_step, write_run

STORY = Story(steps=20, prompts_per_step=4, group_size=4, evaluate_every=10, eval_prompts=8)


def lines(count, **metrics):
    return [
        {"step": i + 1, "time": 100.0 + i, "metrics": {n: f(i) for n, f in metrics.items()}}
        for i in range(count)
    ]


def test_curves_have_one_value_per_step_and_none_where_there_is_none():
    found = curves([*lines(3, a=float), {"step": 4, "time": 104.0, "metrics": {"b": 1.0}}], {})
    assert found["steps"] == [1, 2, 3, 4] and found["stride"] == 1
    assert found["metrics"] == {"a": [0.0, 1.0, 2.0, None], "b": [None, None, None, 1.0]}


def test_very_long_runs_are_thinned_by_means_and_keep_their_last_step():
    found = curves(lines(5_001, a=float), {})
    assert len(found["steps"]) <= MAX_POINTS and found["steps"][-1] == 5_001 and found["stride"] == 3
    assert found["metrics"]["a"][0] == 1.0  # mean of 0, 1, 2


def test_standard_errors_have_the_degrees_of_freedom_of_their_groups():
    statistics = {1: {"reward/se": 0.1, "reward/groups": 4}, 2: {"reward/groups": 1}}
    assert curves(lines(3, reward=float), statistics)["errors"]["reward"] == {
        "se": [0.1, None, None],
        "degrees": [3, None, None],
    }
    assert curves(lines(3, reward=float), {})["errors"] == {}


def test_errors_shrink_when_steps_are_averaged_and_degrees_add_up():
    numbers = {"reward/se": 0.1, "reward/groups": 4}
    many = curves(lines(2 * MAX_POINTS, reward=float), dict.fromkeys(range(1, 2 * MAX_POINTS + 1), numbers))
    assert many["errors"]["reward"]["se"][0] == pytest.approx(0.1 / math.sqrt(2), rel=1e-5)
    assert many["errors"]["reward"]["degrees"][0] == pytest.approx(
        6
    )  # Welch and Satterthwaite with equal variances
    unequal = {1: numbers, 2: {"reward/se": 1e-6, "reward/groups": 4}}
    unequal |= dict.fromkeys(range(3, 2 * MAX_POINTS + 1), numbers)
    found = curves(lines(2 * MAX_POINTS, reward=float), unequal)["errors"]["reward"]
    assert found["degrees"][0] == pytest.approx(3, rel=1e-3)  # one of them decides


def test_short_numbers_keep_six_digits_and_drop_what_is_not_finite():
    assert short(1 / 3) == 0.333333 and short(float("nan")) is None and short(None) is None


def test_what_an_evaluation_measured():
    outcomes = {0: [1.0, 0.0, 0.0, 1.0], 1: [0.0] * 4, 2: [1.0] * 4}
    found = measured(outcomes)
    assert found["mean"][0] == pytest.approx(0.5) and found["prompts"] == 3 and found["completions"] == 12
    assert set(found["pass"]) == {"1", "2", "4"}
    assert found["pass"]["2"] == pytest.approx((pass_at_k(4, 2, 2) + 0 + 1) / 3, abs=1e-5)
    single = measured({i: [float(i < 8)] for i in range(10)})
    assert single["method"] == "Wilson" and single["mean"] == pytest.approx([0.8, 0.49016, 0.94332], abs=1e-5)
    assert "pass" not in measured({0: [0.5, 0.7], 1: [0.2, 0.1]})


def test_checkpoints_are_compared_on_the_prompts_that_both_were_asked():
    before = {i: [0.0] for i in range(10)} | {99: [1.0]}
    after = {i: [float(i < 9)] for i in range(10)} | {98: [0.0]}
    found = compare(before, after)
    assert (found["pairs"], found["better"], found["worse"], found["method"]) == (10, 9, 0, "mcnemar")
    assert found["p"] == pytest.approx(2 / 2**9, abs=1e-6) and found["difference"] == pytest.approx(0.9)


def test_each_evaluation_is_tested_against_the_first_the_previous_and_the_best(tmp_path):
    folder = write_run(
        tmp_path / "record", Story(steps=30, prompts_per_step=2, group_size=2, evaluate_every=10)
    )
    found = RunSummary(folder).data()["evaluations"]
    assert [e["step"] for e in found] == [0, 10, 20, 30] and found[0]["tests"] == []
    mine = [t for t in found[3]["tests"] if t["reward"] == "accuracy"]
    roles = {role: t["against"] for t in mine for role in t["roles"]}
    assert roles["first"] == 0 and roles["previous"] == 20 and roles["best"] in (10, 20)
    assert found[3]["measured"]["accuracy"]["prompts"] == 12  # half of the 24 prompts are countdown


def test_failures_of_one_kind_are_one_entry():
    def event(step, error, count=1, reward="judge", void=False):
        return {
            "kind": "reward_failure",
            "step": step,
            "void": void,
            "details": {"reward": reward, "error": error, "count": count, "group": 2, "index": 1},
        }

    found = failures([
        event(1, "Traceback\nTimeoutError: no answer from '10.0.0.1' within 5.0 s", 3),
        event(2, "Traceback\nTimeoutError: no answer from '10.0.0.2' within 7 s", 2),
        event(3, "ValueError: bad json at 0x7f3a"),
        event(4, "ValueError: bad json at 0x11", reward="other"),
        event(5, "ValueError: bad json at 0x11", 50, void=True),
        {"kind": "hint", "step": 1, "void": False, "details": {}},
    ])  # fmt: skip
    assert [(f["reward"], f["count"], f["steps"]) for f in found] == [
        ("judge", 5, [[1, 3], [2, 2]]), ("judge", 1, [[3, 1]]), ("other", 1, [[4, 1]]),
    ]  # fmt: skip
    assert found[0]["title"].startswith("TimeoutError") and "Traceback" in found[0]["error"]


def comparable(data):
    return {k: v for k, v in data.items() if k != "state"}


def test_a_summary_that_follows_a_run_says_what_a_fresh_one_says(tmp_path):
    writer = open_writer(tmp_path / "record", STORY)
    following = RunSummary(tmp_path / "record")
    for step in range(1, 21):
        record_step(writer, STORY, step)
        if step % 5 == 0:
            record_evaluation(writer, STORY, step)
        if step % 3 == 0:
            following.data()
    writer.close()
    assert comparable(following.data()) == comparable(RunSummary(tmp_path / "record").data())


def test_a_summary_that_follows_a_run_notices_a_resume(tmp_path):
    writer = open_writer(tmp_path / "record", STORY)
    for step in range(1, 13):
        record_step(writer, STORY, step)
    following = RunSummary(tmp_path / "record")
    assert following.data()["curves"]["steps"][-1] == 12
    writer = open_writer(tmp_path / "record", STORY, resume_step=6)
    for step in range(7, 16):
        record_step(writer, STORY, step)
    assert following.data()["curves"]["steps"] == list(range(1, 16))
    assert comparable(following.data()) == comparable(RunSummary(tmp_path / "record").data())
    assert np.isfinite(following.data()["curves"]["metrics"]["reward"]).all()
