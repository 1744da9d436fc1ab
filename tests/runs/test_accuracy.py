"""One evaluation has one mean, one interval, one pass@k and one paired test, whoever shows them."""

import math
from dataclasses import replace

import pytest

from covey.recipes.measure import EvalScores
from covey.recipes.measure import compare as compare_measured
from covey.runs.accuracy import compare_prompts, estimate_reward
from covey.runs.report.curves import short
from covey.runs.report.summary import RunSummary
from covey.runs.statistics import bootstrap_interval, wilson_interval
from covey.trainer.evaluation import Evaluation, summary
from covey.types import Score
from tests.runs.synthetic import Story, open_writer, scored_group, with_advantages


def test_a_mean_weighs_prompts_by_their_scored_completions():
    found = estimate_reward([[1.0, 1.0, 1.0, 1.0], [], [0.0], [0.5, 0.5]])
    assert found.interval == bootstrap_interval([1.0, 0.0, 0.5], [4, 1, 2])
    assert found.interval.estimate == pytest.approx(5 / 7)
    assert (found.prompts, found.completions, found.pass_at) == (3, 7, {})


def test_one_verdict_per_prompt_has_the_interval_of_wilson():
    assert estimate_reward([[1.0]] * 8 + [[0.0]] * 2).interval == wilson_interval(8, 10)
    assert estimate_reward([[1.0]] * 9 + [[0.5]]).method == "bootstrap over prompts"
    assert estimate_reward([[], []]) is None


def test_pass_at_k_goes_in_powers_of_two_up_to_the_smallest_group():
    assert set(estimate_reward([[1.0, 0.0] * 3, [0.0] * 7]).pass_at) == {1, 2, 4}
    assert estimate_reward([[1.0, 0.0, 0.0, 0.0], [0.0] * 4]).pass_at == {1: 1 / 8, 2: 1 / 4, 4: 1 / 2}


def test_a_comparison_leaves_out_prompts_that_one_side_has_no_value_for():
    found = compare_prompts([[0.0], [0.5, 0.0], [], [1.0]], [[1.0], [0.5, 0.5], [1.0], []])
    assert (found.before, found.after, found.test.pairs) == (0.125, 0.75, 2)
    assert math.isnan(compare_prompts([[]], [[1.0]]).before)
    with pytest.raises(ValueError, match="same prompts in the same order"):
        compare_prompts([[1.0]], [])


def evaluated(story, step):
    """Groups in which one reward failed on some completions, so that prompts have unequally many."""
    groups = [scored_group(story, step, 1000 + i, 4, "eval") for i in range(12)]
    holes = [Score(None, "failed", "ValueError"), *groups[0].scores["style_model"][1:]]
    scores = {**groups[0].scores, "style_model": holes}
    return [with_advantages(groups[0].group, scores), *(replace(g) for g in groups[1:])]


def test_log_report_and_eval_agree_to_the_digit(tmp_path):
    story = Story(failure_rate=0.1)
    writer = open_writer(tmp_path / "record", story)
    logged, measured = {}, {}
    for step in (0, 20):
        groups = evaluated(story, step)
        logged[step] = summary(groups, "task")
        measured[step] = EvalScores.of(Evaluation.of(groups), {}, "task")
        writer.evaluation("held_out", step, logged[step], groups)
    first, second = RunSummary(tmp_path / "record").data()["evaluations"]
    rows = {row.name: row for row in measured[20].rows() if row.task is None}
    names = {"reward": "total"} | {name: name for name in rows if name != "reward"}
    assert set(names.values()) == set(second["measured"]) and len(names) == 5
    for name, shown in names.items():
        key = name if name == "reward" else f"rewards/{name}"
        low, high = logged[20][f"{key}/low"], logged[20][f"{key}/high"]
        assert (rows[name].interval.low, rows[name].interval.high) == (low, high)
        assert second["measured"][shown]["mean"] == [
            short(rows[name].interval.estimate),
            short(low),
            short(high),
        ]
        passes = {k: logged[20][f"{key}/pass@{k}"] for k in rows[name].pass_at if name != "reward"}
        assert passes == ({} if name == "reward" else rows[name].pass_at)
        assert second["measured"][shown].get("pass", {}) == {
            str(k): short(v) for k, v in rows[name].pass_at.items()
        }
    tests = {t["reward"]: t for t in second["tests"]}
    for change in compare_measured(measured[0], measured[20]):
        if change.task is None:
            shown, test = tests[names[change.name]], change.comparison.test
            assert (shown["p"], shown["difference"]) == (short(test.p_value), short(test.difference))
            assert (shown["pairs"], shown["method"]) == (test.pairs, test.method)
    assert first["tests"] == [] and rows["style_model"].interval.low < rows["style_model"].interval.high
