"""What if: recorded groups scored another way are what the scorer would have made of them."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from covey.errors import ConfigError, CoveyWarning, RewardError
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture
from covey.runs import RunWriter
from covey.runs.what_if import WhatIf, rescore
from covey.score.estimators import Outcomes, estimator
from covey.score.scorer import Scorer
from covey.score.shaping import Shaping
from covey.types import Completion, Group, Prompt, Score
from tests.runs.synthetic import Story, with_advantages, write_run

PLAIN = Shaping()
WEIGHTS = {"accuracy": 1.0, "length": 0.01, "code": 0.5}


def accuracy(completions, answer, **kwargs):
    return [None if a is None else float(a in _text(c)) for c, a in zip(completions, answer, strict=True)]


def length(completions, **kwargs):
    return [float(len(_text(c))) for c in completions]


def code(completions, task, **kwargs):
    return [float("def" in _text(c)) if t == "code" else None for c, t in zip(completions, task, strict=True)]


def _text(completion):
    return completion if isinstance(completion, str) else completion[-1]["content"]


FUNCTIONS = {"accuracy": accuracy, "length": length, "code": code}


def groups(step, size=4):
    random = Random(step)
    found = []
    for row in range(3):
        task = "code" if row == 2 else "math"
        columns = {"answer": None if row == 1 else str(random.randint(0, 3)), "task": task}
        content = [{"role": "user", "content": f"question {row}"}] if row else f"question {row}"
        completions = []
        for _ in range(size):
            text = random.choice(["the answer is ", "def f(): return ", ""]) + str(random.randint(0, 3))
            ids = tuple(range(random.randint(1, 9)))
            completions.append(
                Completion(ids, (-1.0,) * len(ids), text, random.choice(["stop", "stop", "length"]))
            )
        found.append(Group(Prompt(content, (1, 2, 3), columns, row), tuple(completions)))
    return found


def scored(
    step,
    weights=None,
    aggregation="sum_then_normalize",
    scale="group",
    functions=None,
    name="grpo",
    shaping=PLAIN,
):
    weights, functions = weights or WEIGHTS, functions or FUNCTIONS
    rewards = [Reward(function, name) for name, function in functions.items()]
    estimate = estimator(name, aggregation, scale)
    scorer = Scorer(Mixture(*rewards), weights, estimate, shaping=shaping)
    return scorer.add_advantages(scorer.run_rewards(groups(step))[0])[0]


def record(folder, steps=6, aggregation="sum_then_normalize", scale="group", **options):
    settings = {
        "multi_objective_aggregation": aggregation, "scale_rewards": scale, "loss_type": "dapo", "max_completion_length": 16,
    }  # fmt: skip
    writer = RunWriter.open(folder, settings=settings, rewards=WEIGHTS, environment={}, git={}, **options)
    for step in range(1, steps + 1):
        writer.groups(step, scored(step, aggregation=aggregation, scale=scale))
    writer.close()
    return folder


def expected(steps=6, **how):
    found = [s for step in range(1, steps + 1) for s in scored(step, **how)]
    totals = [np.nan if t is None else t for s in found for t in s.totals]
    return np.array(totals), np.array([a for s in found for a in s.advantages])


WAYS = [
    ("sum_then_normalize", "group"), ("sum_then_normalize", "batch"), ("sum_then_normalize", "none"), ("normalize_then_sum", "group"),
]  # fmt: skip


@pytest.mark.parametrize(("aggregation", "scale"), WAYS)
def test_with_nothing_changed_the_recorded_numbers_come_back(tmp_path, aggregation, scale):
    result = rescore(record(tmp_path / "record", aggregation=aggregation, scale=scale), WhatIf())
    totals, advantages = expected(aggregation=aggregation, scale=scale)
    for scoring in (result.before, result.after):
        np.testing.assert_allclose(scoring.totals, totals, rtol=1e-12)
        np.testing.assert_allclose(scoring.advantages, advantages, rtol=1e-9, atol=1e-12)
    assert result.summary()["flips"] == 0 and len(result.flips) == 6 * 3 * 4


@pytest.mark.parametrize(("aggregation", "scale"), WAYS)
def test_another_estimator_gives_what_the_scorer_gives_with_it(tmp_path, aggregation, scale):
    folder = record(tmp_path / "record")
    result = rescore(folder, WhatIf(multi_objective_aggregation=aggregation, scale_rewards=scale))
    _, advantages = expected(aggregation=aggregation, scale=scale)
    np.testing.assert_allclose(result.after.advantages, advantages, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["rloo", "leave_one_out", "maxrl", "pass_at_k", "opo", "reinforce_pp"])
def test_another_baseline_gives_what_the_scorer_gives_with_it(tmp_path, name):
    result = rescore(record(tmp_path / "record"), WhatIf(advantage_estimator=name))
    _, advantages = expected(name=name)
    np.testing.assert_allclose(result.after.advantages, advantages, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shaping", [Shaping(-1.0, True), Shaping(None, False), Shaping(0.0, False)])
def test_another_judgement_of_truncated_completions_gives_what_the_scorer_gives_with_it(tmp_path, shaping):
    how = WhatIf(
        truncated_reward=shaping.truncated_reward, truncated_in_baseline=shaping.truncated_in_baseline
    )
    result = rescore(record(tmp_path / "record"), how)
    _, advantages = expected(shaping=shaping)
    np.testing.assert_allclose(result.after.advantages, advantages, rtol=1e-9, atol=1e-12)


def test_weights_that_the_record_names_by_group_are_where_a_change_starts(tmp_path, recwarn):
    """As multipliers of bounds are: 3 in the first step, -2 in the second; the head of the record names another one."""
    writer = RunWriter.open(
        tmp_path / "record", settings={}, rewards={"a": 1.0, "b": 0.0}, environment={}, git={}
    )
    scores = {"a": [Score(v) for v in (1.0, 0.0, 0.5, 0.0)], "b": [Score(v) for v in (0.0, 1.0, 1.0, 0.0)]}
    for step, weight in ((1, 3.0), (2, -2.0)):
        used = {"a": 1.0, "b": weight}
        writer.groups(step, [replace(with_advantages(groups(step)[0], scores, used), weights=used)])
    writer.close()
    changed = rescore(tmp_path, WhatIf(weights={"a": 2.0}))
    np.testing.assert_allclose(changed.before.totals, [1.0, 3.0, 3.5, 0.0, 1.0, -2.0, -1.5, 0.0])
    np.testing.assert_allclose(changed.after.totals, [2.0, 3.0, 4.0, 0.0, 2.0, -2.0, -1.0, 0.0])
    changed = rescore(tmp_path, WhatIf(weights={"b": 1.0}, multi_objective_aggregation="normalize_then_sum"))
    np.testing.assert_allclose(changed.after.totals, [1.0, 1.0, 1.5, 0.0] * 2)
    np.testing.assert_allclose(changed.after.advantages[:4], changed.after.advantages[4:])
    kept = rescore(tmp_path, WhatIf(multi_objective_aggregation="normalize_then_sum"))
    assert (
        kept.after.advantages[1] > 0 > kept.after.advantages[5]
    )  # paid for b in the first step, and charged in the second
    assert not list(recwarn)


def test_weights_that_vary_by_task_stay_as_they_were_and_a_change_of_them_warns(tmp_path):
    # The recorded totals give code three times the weight that the record names.
    writer = RunWriter.open(
        tmp_path / "record", settings={}, rewards={"a": 1.0, "b": 1.0}, environment={}, git={}
    )  # fmt: skip
    scores = {"a": [Score(v) for v in (1.0, 0.0, 0.5, 0.0)], "b": [Score(v) for v in (0.0, 1.0, 1.0, 0.0)]}
    recorded = with_advantages(groups(1)[0], scores, {"a": 1.0, "b": 3.0})
    writer.groups(1, [recorded])
    writer.close()
    unchanged = rescore(tmp_path, WhatIf())
    np.testing.assert_allclose(unchanged.after.totals, recorded.totals)
    np.testing.assert_allclose(unchanged.after.advantages, recorded.advantages)
    with pytest.warns(CoveyWarning, match="vary by task or over time"):
        changed = rescore(tmp_path, WhatIf(weights={"a": 2.0}))
    np.testing.assert_allclose(changed.after.totals, [2.0, 3.0, 4.0, 0.0])


def test_a_penalty_that_is_not_recorded_is_said(tmp_path):
    RunWriter.open(
        tmp_path / "record", settings={"kl_in_reward": True}, rewards={}, environment={}, git={}
    ).close()
    with pytest.warns(CoveyWarning, match="took a divergence off its rewards"):
        rescore(tmp_path, WhatIf())


def test_other_weights_give_what_the_scorer_gives_with_them(tmp_path):
    folder = record(tmp_path / "record")
    weights = {"accuracy": 1.0, "length": -0.05, "code": 0.5}
    result = rescore(folder, WhatIf(weights={"length": -0.05}))
    totals, advantages = expected(weights=weights)
    np.testing.assert_allclose(result.after.totals, totals)
    np.testing.assert_allclose(result.after.advantages, advantages, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(result.flips, expected()[1] * advantages < 0)
    assert 0 < result.flips.sum() < len(result.flips)


def test_the_opposite_weights_turn_every_sign(tmp_path):
    folder = record(tmp_path / "record")
    result = rescore(folder, WhatIf(weights={name: -w for name, w in WEIGHTS.items()}))
    np.testing.assert_allclose(result.after.advantages, -result.before.advantages, atol=1e-12)
    assert result.flips.sum() == (result.before.advantages != 0).sum() > 0


def shorter(completions, **kwargs):
    return [-float(len(_text(c))) for c in completions]


async def exact(completions, answer):
    return [
        None if a is None else float(_text(c).endswith(a)) for c, a in zip(completions, answer, strict=True)
    ]


def test_a_changed_function_is_run_on_the_recorded_texts_columns_and_messages(tmp_path):
    folder = record(tmp_path / "record")
    functions = {"accuracy": exact, "length": shorter, "code": code}
    result = rescore(folder, WhatIf(rewards={"length": shorter, "accuracy": exact}))
    totals, advantages = expected(functions=functions)
    np.testing.assert_allclose(result.after.totals, totals)
    np.testing.assert_allclose(result.after.advantages, advantages, rtol=1e-9, atol=1e-12)


def test_a_new_function_stands_beside_the_recorded_rewards(tmp_path):
    folder = record(tmp_path / "record")
    result = rescore(folder, WhatIf(rewards={"brevity": shorter}, weights={"brevity": 0.5}))
    _, advantages = expected(functions=FUNCTIONS | {"brevity": shorter}, weights=WEIGHTS | {"brevity": 0.5})
    np.testing.assert_allclose(result.after.advantages, advantages, rtol=1e-9, atol=1e-12)


def test_gated_and_failed_scores_count_as_they_did(tmp_path):
    story = Story(steps=8, failure_rate=0.2, evaluate_every=0)
    frame = rescore(write_run(tmp_path / "record", story), WhatIf()).frame()
    from covey.runs import open as open_run

    recorded = open_run(tmp_path).completions()
    np.testing.assert_allclose(frame["totals_after"], recorded["total"])
    np.testing.assert_allclose(frame["advantages_after"], recorded["advantage"], atol=1e-9)
    assert {"gated", "failed"} <= set(recorded["status/style_model"])


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_a_gated_score_is_a_0_and_a_failed_sample_is_in_no_mean(tmp_path, aggregation):
    gated, failed = Score(None, "gated"), Score(None, "failed", "x")
    scores = {"a": [Score(1.0), gated, gated, Score(0.5)], "b": [Score(4.0), Score(3.0), Score(2.0), failed]}
    writer = RunWriter.open(
        tmp_path / "record", settings={}, rewards={"a": 1.0, "b": 1.0}, environment={}, git={}
    )
    recorded = with_advantages(groups(1)[0], scores, {"a": 1.0, "b": 1.0})
    only_gated = with_advantages(groups(1)[0], {"a": [gated, gated, Score(1.0), Score(1.0)]}, {"a": 1.0})
    writer.groups(1, [recorded, only_gated])
    writer.close()
    result = rescore(tmp_path, WhatIf(multi_objective_aggregation=aggregation)).after
    np.testing.assert_allclose(result.totals, [5.0, 3.0, 2.0, np.nan, 0.0, 0.0, 1.0, 1.0])
    values = np.array(
        [[1, 4], [0, 3], [0, 2], [np.nan, np.nan], [0, np.nan], [0, np.nan], [1, np.nan], [1, np.nan]]
    )
    estimate = estimator("grpo", aggregation, "group")
    outcomes = Outcomes(values, np.ones_like(values), result.totals, np.repeat([0, 1], 4), np.ones(8))
    np.testing.assert_allclose(result.advantages, estimate(outcomes))
    assert result.advantages[3] == 0


def test_a_failure_of_an_optional_reward_takes_nothing_out(tmp_path):
    group = groups(1)[0]
    scores = {
        "a": [Score(1.0), Score(0.0), Score(0.5), Score(0.25)],
        "b": [Score(None, "failed", "x"), *[Score(1.0)] * 3],
    }
    lenient = with_advantages(group, scores, {"a": 1.0, "b": 1.0})
    lenient = replace(lenient, totals=(1.0, *lenient.totals[1:]))  # as recorded where b is optional
    writer = RunWriter.open(
        tmp_path / "record", settings={}, rewards={"a": 1.0, "b": 1.0}, environment={}, git={}
    )
    writer.groups(1, [lenient])
    writer.close()
    np.testing.assert_allclose(rescore(tmp_path, WhatIf()).after.totals, [1.0, 1.0, 1.5, 1.25])


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo", "prompt_mean", "luspo"])
def test_the_loss_is_that_of_a_first_pass(tmp_path, loss_type):
    result = rescore(record(tmp_path / "record", steps=1), WhatIf(loss_type=loss_type))
    a, n = result.after.advantages, result.keys["tokens"]
    slow = {
        "grpo": -np.mean(a),
        "dapo": -np.sum(n * a) / np.sum(n),
        "bnpo": -np.sum(n * a) / np.sum(n),  # one micro-batch
        "dr_grpo": -np.sum(n * a) / (len(a) * 16),
        "prompt_mean": -np.mean([np.sum((n * a)[g : g + 4]) / np.sum(n[g : g + 4]) for g in (0, 4, 8)]),
        "luspo": -np.sum(n * a) / len(a),
    }[loss_type]
    assert result.after.loss.sum() == pytest.approx(slow)
    np.testing.assert_allclose(result.after.pulls, np.abs(result.after.loss))
    assert result.summary()["loss_after"] == pytest.approx(slow)


def test_filters_leave_out_what_they_name(tmp_path):
    folder = record(tmp_path / "record")
    plain = rescore(folder, WhatIf(loss_type="dapo"))
    masked = rescore(folder, WhatIf(loss_type="dapo", mask_truncated_completions=True))
    from covey.runs import open as open_run

    cut = (open_run(folder).completions()["finish"] == "length").to_numpy()
    assert cut.any() and (masked.after.pulls[cut] == 0).all()
    np.testing.assert_allclose(masked.after.advantages, plain.after.advantages)  # they stay in the baseline
    dropped = rescore(folder, WhatIf(weights={"length": 0.0}, drop_groups_without_spread=True))
    kept = rescore(folder, WhatIf(weights={"length": 0.0}))
    assert np.abs(dropped.after.loss).sum() > np.abs(kept.after.loss).sum() > 0  # fewer tokens share the step
    assert ((dropped.after.pulls == 0) == (kept.after.pulls == 0)).all()


def test_steps_and_frame(tmp_path):
    frame = rescore(record(tmp_path / "record"), WhatIf(weights={"length": -1.0}), steps=range(2, 4)).frame()
    assert sorted(set(frame["step"])) == [2, 3] and len(frame) == 24
    assert {"totals_before", "advantages_after", "pulls_after", "flips", "row"} <= set(frame.columns)


def test_texts_that_were_not_recorded_are_skipped_and_counted(tmp_path):
    folder = record(tmp_path / "record", record_completions="none")
    result = rescore(folder, WhatIf(rewards={"length": shorter}))
    assert result.summary()["skipped"] == 72 and len(result.flips) == 0
    assert len(rescore(folder, WhatIf(weights={"length": 1.0})).flips) == 72  # numbers need no texts


def test_mistakes_are_named(tmp_path):
    folder = record(tmp_path / "record")
    with pytest.raises(ConfigError, match="has no reward 'acuracy'; it has: accuracy, length, code"):
        rescore(folder, WhatIf(weights={"acuracy": 1.0}))
    with pytest.raises(ConfigError, match="scale_rewards is 'groups'"):
        rescore(folder, WhatIf(scale_rewards="groups"))
    with pytest.raises(ConfigError, match="loss_type is 'ppo'"):
        rescore(folder, WhatIf(loss_type="ppo"))
    with pytest.raises(RewardError, match="completion_ids, which are not recorded"):
        rescore(folder, WhatIf(rewards={"length": lambda completion_ids: [0.0]}))
    with pytest.raises(RewardError, match=r"the column 'target'.*They have: answer, task"):
        rescore(folder, WhatIf(rewards={"length": lambda completions, target: [0.0]}))
