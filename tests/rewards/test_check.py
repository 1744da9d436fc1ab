"""`check_rewards` finds each planted defect, and nothing in rewards that have none."""

import itertools
import json
import math
import re
import threading
import time

import pytest

from covey.errors import DatasetError
from covey.rewards import (
    AssertTests,
    CallTests,
    Countdown,
    ExactMatch,
    Failure,
    JsonFormat,
    Mixture,
    MultipleChoice,
    NumberMatch,
    SameAnswer,
    StdioTests,
    ThinkFormat,
    check_rewards,
    reward,
)
from covey.rewards.check.probes import NUM_THREADS
from covey.rewards.check.run import read_completions, spread_rows
from tests.clocks import PATIENCE

ROWS = [
    {"prompt": f"What is {a} + {b}?", "target": str(a + b), "nums": [a, b], "task": "sum"}
    for a, b in itertools.product(range(2, 6), range(6, 9))
]


def found(report, check):
    return [f for f in report.findings if f.check == check]


def fine(completions, target, **_):
    return [float(f"<answer>{t}</answer>" in c) for c, t in zip(completions, target, strict=True)]


BUNDLED = {
    "countdown": (Countdown("all"), ROWS),
    "same_answer": (SameAnswer(), ROWS),
    "number": (NumberMatch(), ROWS),
    "exact": (ExactMatch(), ROWS),
    "think": (ThinkFormat(), ROWS),
    "choice": (
        MultipleChoice(),
        [{"prompt": "A or B?", "answer": "B"}, {"prompt": "A or C?", "answer": "A"}],
    ),
    "json": (JsonFormat(), ROWS),
    "calls": (
        CallTests(),
        [
            {
                "prompt": "Square x.",
                "solution": "def f(x):\n    return x * x",
                "entry_point": "f",
                "tests": '[{"args": [3], "expected": 9}]',
            }
        ],
    ),
    "stdio": (
        StdioTests(),
        [
            {
                "prompt": "Double it.",
                "solution": "print(int(input()) * 2)",
                "tests": '[{"input": "2", "output": "4"}]',
            }
        ],
    ),
    "asserts": (
        AssertTests(),
        [{"prompt": "Square x.", "code": "def f(x):\n    return x * x", "tests": ["assert f(3) == 9"]}],
    ),
}


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_rewards_pass_their_own_check(name, monkeypatch):
    monkeypatch.setattr(
        "covey.rewards.check.probes.SLOW_ATTACK_SECONDS", math.inf
    )  # others use this machine too
    bundled, rows = BUNDLED[name]
    report = check_rewards(bundled, rows, num_rows=6)
    assert report.exit_code == 0, str(report)
    assert not found(report, "attack") and not found(report, "threads"), str(report)
    statistics = next(iter(report.rewards.values()))
    assert statistics.num_rows == min(6, len(rows))
    assert statistics.gold_share == (None if name in ("think", "json") else 1.0)
    assert statistics.seconds_p50 is not None and statistics.seconds_max > 0


def test_rows_that_nothing_scores_are_an_error():
    rows = [*ROWS, {"prompt": "Write a poem.", "task": "poem"}]
    report = check_rewards(Mixture(reward(fine, tasks="sum")), rows)
    (finding,) = found(report, "coverage")
    assert finding.severity == "error" and "1 of 13 rows are scored by nothing (poem: 1)" in finding.text
    assert report.exit_code == 1
    assert check_rewards(Mixture(reward(fine, tasks="sum"), unscored="ignore"), rows).exit_code == 0
    assert report.rewards["fine"].rows_by_task == {"sum": 12}


def test_golds_that_do_not_score_full_marks():
    wrong = [{**row, "target": "a + b"} if i % 3 == 0 else row for i, row in enumerate(ROWS)]
    report = check_rewards(NumberMatch(), wrong)
    assert report.rewards["number_match"].gold_share == 1.0 and found(report, "coverage")
    (finding,) = found(check_rewards(Countdown("all"), [{**ROWS[0], "target": 99}, ROWS[1]]), "gold") or [
        None
    ]
    assert finding is None, "a puzzle without a solution has no right answer to check"

    def never(completions, target):
        return [0.5] * len(completions)

    (finding,) = found(check_rewards(never, ROWS), "gold")
    assert finding.severity == "error" and "12 of 12 rows" in finding.text and "gets 0.5" in finding.text


def test_missing_columns():
    report = check_rewards([Countdown(), fine], [{"prompt": "p", "target": 1}])
    (finding,) = found(report, "columns")
    assert "needs the column nums; the rows have prompt, target" in finding.text and report.exit_code == 1


def test_chance_is_found():
    toss = itertools.cycle([0.0, 1.0, 1.0])

    def random_reward(completions, **_):
        return [next(toss) for _ in completions]

    assert found(check_rewards(random_reward, ROWS), "determinism")


def test_dependence_on_order_and_on_company_is_found():
    def first_wins(completions, **_):
        return [float(i == 0) for i, _ in enumerate(completions)]

    def beats_the_mean(completions, **_):
        mean = sum(map(len, completions)) / len(completions)
        return [float(len(c) > mean) for c in completions]

    assert found(check_rewards(first_wins, ROWS), "order")
    (finding,) = found(check_rewards(beats_the_mean, ROWS), "company")
    assert finding.severity == "warning" and "scope='group'" in finding.text
    assert not found(check_rewards(reward(beats_the_mean, scope="group"), ROWS), "company")


def test_thread_trouble_is_found():
    """Several threads meet in the middle of their calls."""
    shared, middle = {}, threading.Barrier(NUM_THREADS, timeout=PATIENCE)

    def not_safe(completions, **_):
        shared["now"] = mine = object()
        if threading.current_thread() is not threading.main_thread():
            middle.wait()
        return [float(shared["now"] is mine)] * len(completions)

    assert found(check_rewards(not_safe, ROWS), "threads")


def test_faults_are_counted():
    def reads_numbers(completions, **_):
        return [float(len(c.split()[0])) for c in completions]

    report = check_rewards(reads_numbers, ROWS)
    assert any("IndexError" in f.text and "'empty'" in f.text for f in found(report, "attack"))

    def broken(completions, **_):
        raise KeyError("gold")

    assert "KeyError" in found(check_rewards(broken, ROWS), "fault")[0].text


def test_attacks_that_pay_or_take_long(monkeypatch):
    def likes_length(completions, **_):
        return [len(c) / 1000 for c in completions]

    def likes_quiet(completions, **_):
        return [float(not c.strip()) for c in completions]

    def slow(completions, **_):
        time.sleep(0.1 * any(len(c) > 50_000 for c in completions))
        return [0.0] * len(completions)

    monkeypatch.setattr("covey.rewards.check.probes.SLOW_ATTACK_SECONDS", math.inf)
    paid = {f.text for f in found(check_rewards(likes_length, ROWS), "attack")}
    assert any("pays 100 for the attack 'long'" in text for text in paid)
    blank = found(check_rewards(likes_quiet, ROWS), "attack")
    assert {f.severity for f in blank} == {"error"} and any("'empty'" in f.text for f in blank)
    monkeypatch.setattr("covey.rewards.check.probes.SLOW_ATTACK_SECONDS", 0.1)
    takes = [f.text for f in found(check_rewards(slow, ROWS[:1]), "attack")]
    assert any(re.fullmatch(r"takes \d+\.\d s for the attack 'long'\.", text) for text in takes), takes


def test_constants_count_for_real_completions_only(tmp_path):
    def constant(completions, **_):
        return [0.3] * len(completions)

    assert not found(check_rewards(constant, ROWS), "constant")
    path = tmp_path / "completions.jsonl"
    lines = [{"row": i, "completion": f"text {i} {j}"} for i in range(3) for j in range(2)]
    path.write_text("\n".join(map(json.dumps, lines)))
    report = check_rewards(constant, ROWS[:3], completions=path)
    assert report.source == "file" and found(report, "constant")


def test_completions_of_a_file_find_their_rows(tmp_path):
    path = tmp_path / "c.jsonl"
    chat = {"prompt": [{"role": "user", "content": "hi"}]}
    rows = [ROWS[0], ROWS[1], chat]
    entries = [
        {"prompt": ROWS[1]["prompt"], "completion": "b"},
        {"row": 0, "completion": "a"},
        {"prompt": chat["prompt"], "completion": [{"role": "assistant", "content": "c"}]},
        {"prompt": "unknown", "completion": "d"},
    ]
    path.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    assert [(row is rows[i], c) for i, (row, c) in enumerate(read_completions(path, rows))] == [
        (True, "a"),
        (True, "b"),
        (True, [{"role": "assistant", "content": "c"}]),
    ]
    path.write_text("not json")
    with pytest.raises(DatasetError, match="line 1"):
        read_completions(path, rows)
    path.write_text('{"prompt": "x", "completion": "y"}')
    with pytest.raises(DatasetError, match="no completion belongs"):
        read_completions(path, rows)


def test_sampled_completions():
    def sample(rows, count):
        return [
            [f"<answer>{int(p[8]) + int(p[12])}</answer>" for _ in range(count)]
            for p in (r["prompt"] for r in rows)
        ]

    report = check_rewards(fine, ROWS, sample=sample, group_size=3)
    assert report.source == "model" and report.rewards["fine"].mean == 1.0


def test_a_slice_is_spread_over_the_dataset():
    rows = [{"prompt": str(i)} for i in range(100)]
    assert [r["prompt"] for r in spread_rows(rows, 4)] == ["0", "25", "50", "75"]
    assert len(spread_rows(rows[:3], 4)) == 3 and len(spread_rows(iter(rows), 4)) == 4
    with pytest.raises(DatasetError, match="no rows"):
        check_rewards(fine, [])


def test_the_report_for_people_and_for_machines():
    report = check_rewards([SameAnswer(), fine], ROWS, num_rows=4)
    text, data = str(report), json.loads(report.as_json())
    assert "same_answer" in text and "gold" in text and text.endswith("notes")
    assert data["exit_code"] == report.exit_code and set(data["rewards"]) == {"same_answer", "fine"}
    assert data["rewards"]["same_answer"]["gold_share"] == 1.0


def test_the_method_of_a_mixture():
    assert check_rewards(Mixture(SameAnswer()), ROWS, num_rows=3).num_rows == 3


def test_a_failure_that_explains_itself_is_a_warning_and_a_bare_nan_an_error():
    def takes_short(completions, **_):
        return [Failure("longer than 256 tokens") if len(c) > 256 else 0.0 for c in completions]

    def breaks(completions, **_):
        return [math.nan if len(c) > 256 else 0.0 for c in completions]

    (warning,) = found(check_rewards(takes_short, ROWS), "attack")
    assert warning.severity == "warning" and "longer than 256 tokens" in warning.text, warning
    assert warning.text.startswith("failed") and "'long'" in warning.text and "'open boxes'" in warning.text
    assert {f.severity for f in found(check_rewards(breaks, ROWS), "attack")} == {"error"}

    def never(completions, **_):
        return [Failure("no answer")] * len(completions)

    assert [f.severity for f in found(check_rewards(never, ROWS), "fault")] == ["error"]


def test_rounding_is_no_dependence_on_company_and_a_small_difference_is_shown():
    def model_like(completions, **_):
        return [-7.53155 * (1 + 1e-7 * len(completions)) for _ in completions]

    def dependent(completions, **_):
        return [-7.53155 - 1e-3 / len(completions) for _ in completions]

    assert not found(check_rewards(model_like, ROWS), "company")
    (told,) = found(check_rewards(dependent, ROWS), "company")
    one, other = (
        told.text.split("batch. Use scope='group' if on its group: ")[1]
        .split(", for ")[0]
        .split(" and then ")
    )
    assert one != other


def test_the_same_fault_is_said_once_and_attacks_of_the_same_fault_together():
    def broken(completions, **_):
        raise RuntimeError("the judge is out")

    findings = check_rewards(broken, ROWS).findings
    assert sum("the judge is out" in f.text for f in findings) == 1

    def breaks_on_attacks(completions, **_):
        return [1.0 / (len(c) < 200) for c in completions]

    findings = found(check_rewards(breaks_on_attacks, ROWS), "attack")
    (fault,) = (f for f in findings if "ZeroDivisionError" in f.text)
    assert "'long', 'one long word', 'open tags'" in fault.text


def test_a_check_calls_a_reward_as_the_run_does():
    def needs_the_run(completions, target, trainer_state, log_extra, log_metric, **_):
        share = trainer_state.global_step / trainer_state.max_steps
        log_metric("share", share)
        log_extra("length", [len(c) for c in completions])
        assert trainer_state.is_world_process_zero and not trainer_state.log_history
        return [share + f for f in fine(completions, target)]

    report = check_rewards(needs_the_run, ROWS)
    assert report.exit_code == 0 and not found(report, "fault"), str(report)
