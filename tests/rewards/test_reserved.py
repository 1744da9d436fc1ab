"""Names that rewards choose never meet those of Covey: in metrics an error says so, in the files both are there."""

import decimal
import fractions
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from transformers import TrainerState

from covey.errors import RewardError
from covey.metrics import Total
from covey.rewards import Mixture, RewardBatch, reward
from covey.rewards.check.trial import batch_of
from covey.rewards.reserved import is_reserved
from covey.runs.record.completions_jsonl import CompletionLog, completion_rows
from covey.types import Completion, Group, Prompt, Score, ScoredGroup

BATCH = RewardBatch(prompts=["p", "q"], completions=["a", "bb"])
DOCUMENTED = re.findall(r"^\| `([^`]+)`", Path("docs/metrics.md").read_text(), re.M)


def logging(name, value=1.0):
    def noisy(completions, log_metric):
        log_metric(name, value)
        return [1.0, 0.0]

    return noisy


@pytest.mark.parametrize(
    "name", [*DOCUMENTED, "step", "total_flos", "train_loss", "train_runtime", "eval_reward", "rewards/new"]
)
def test_every_name_that_covey_logs_is_refused(name):
    assert is_reserved(name)
    with pytest.raises(
        RewardError,
        match=re.escape(f"Reward 'noisy' raised ValueError: log_metric({name!r}, ...): that is the name"),
    ):
        Mixture(logging(name)).score(BATCH)


def test_the_documented_names_were_found():
    assert len(DOCUMENTED) > 60 and "reward" in DOCUMENTED and "rewards/<name>/mean" in DOCUMENTED


@pytest.mark.parametrize(
    "name", ["accuracy", "code/timeout_share", "golds/unreadable_share", "my/reward", "rewarded", "losses"]
)
def test_other_names_are_free_and_several_rewards_may_share_one(name):
    table = Mixture(logging(name, 1.0), reward(logging(name, 4.0), name="other")).score(BATCH)
    assert table.metrics[name].value == 2.5


@pytest.mark.parametrize("where", ["thread", "process"])
def test_they_are_refused_in_every_place(where):
    with pytest.raises(RewardError, match="log_metric"):
        Mixture(reward(logging("loss"), where=where, name="r")).score(BATCH)


def test_what_is_not_finite_leaves_the_mean_of_the_others():
    table = Mixture(logging("a", float("nan")), reward(logging("a", 3.0), name="second")).score(BATCH)
    assert table.metrics["a"].value == 3.0


def test_a_column_with_the_name_of_a_metric_changes_no_metric_of_coveys():
    def noisy(completions, log_extra):
        log_extra("num_tokens", [1, 3])
        log_extra("score", [1, float("nan")])
        return [1.0, 0.0]

    table = Mixture(noisy).score(BATCH)
    assert table.extras["num_tokens"] == [1, 3]
    assert table.metrics["extra/num_tokens"].value == 2.0 and "num_tokens" not in table.metrics
    assert table.metrics["score"].value == 1.0


@pytest.mark.parametrize("inner", ["reward", "completions", "length"])
def test_a_mixture_inside_another_one_takes_no_name_of_coveys(inner):
    def part(completions):
        return [1.0, 0.0]

    outer = Mixture(Mixture(reward(part, name=inner), name="inside"), reward(part, name=inner))
    metrics = outer.score(BATCH).metrics
    own = Mixture(reward(part, name=inner)).score(BATCH).metrics
    assert {n: type(m) for n, m in own.items()}.items() <= {n: type(m) for n, m in metrics.items()}.items()
    assert metrics[f"rewards/{inner}/applicable_share"].count == 2, "the outer one's alone"
    assert metrics[f"{inner}/mean" if inner == "length" else f"inside/{inner}/mean"].value == 0.5
    assert not any(isinstance(m, Total) for n, m in metrics.items() if not is_reserved(n))


NAMES = ["step", "group", "prompt", "completion", "reward", "advantage", "finish", "tokens", "plain"]


def test_every_line_of_completions_has_both_whatever_rewards_and_columns_are_called():
    group = ScoredGroup(
        group=Group(Prompt("the prompt", (1,)), (Completion((1, 2), (-1.0, -1.0), "the text", "stop"),)),
        scores={name: (Score(0.25 + i),) for i, name in enumerate(NAMES)},
        totals=(7.0,),
        advantages=(0.5,),
        extras={name: (f"extra {name}",) for name in NAMES},
    )
    (row,) = completion_rows(3, [group])
    assert (
        row
        | {
            "step": 3,
            "group": 0,
            "prompt": "the prompt",
            "completion": "the text",
            "reward": 7.0,
            "advantage": 0.5,
            "finish": "stop",
            "tokens": 2,
            "plain": 8.25,
            "extra/plain": "extra plain",
        }
        == row
    )
    for i, name in enumerate(NAMES[:-1]):
        assert row[f"rewards/{name}"] == 0.25 + i and row[f"extra/{name}"] == f"extra {name}"
    json.dumps(row)


def test_the_state_of_a_check_has_what_that_of_a_run_has():
    """`check_rewards` calls a reward as the run does."""
    stand_in = vars(batch_of([({"prompt": "p"}, "c")]).trainer_state)
    real = vars(TrainerState())
    assert set(stand_in) == set(real)
    for name, value in stand_in.items():
        assert real[name] is None or type(value) in (type(real[name]), int, dict), name


def test_metrics_and_columns_take_numbers_of_all_kinds_and_nothing_else():
    def noisy(completions, log_metric, log_extra):
        log_metric("a", fractions.Fraction(1, 4))
        log_extra("b", [np.float32(1), None])
        log_extra("c", [decimal.Decimal(1), "text"])
        return [1.0, 0.0]

    metrics = Mixture(noisy).score(BATCH).metrics
    assert metrics["a"].value == 0.25 and metrics["b"].value == 1.0 and "c" not in metrics
    with pytest.raises(RewardError, match=r"log_metric\('a', \.\.\.\) got NoneType \(None\); give a number"):
        Mixture(logging("a", None)).score(BATCH)


def test_a_line_of_completions_is_json_whatever_was_logged(tmp_path):
    values = [math.nan, np.float32(0.5), {1, 2}, np.array([1.0, math.inf]), fractions.Fraction(1, 2)]
    group = ScoredGroup(
        group=Group(Prompt("p", (1,)), tuple(Completion((1,), (-1.0,), "t", "stop") for _ in values)),
        scores={},
        totals=(1.0,) * len(values),
        advantages=(0.0,) * len(values),
        extras={"kept": tuple(values)},
    )
    CompletionLog(tmp_path / "completions.jsonl").write(1, [group])
    lines = (tmp_path / "completions.jsonl").read_text().splitlines()
    kept = [json.loads(line, parse_constant=lambda text: pytest.fail(text))["kept"] for line in lines]
    assert kept == [None, 0.5, [1, 2], [1.0, None], "1/2"]
