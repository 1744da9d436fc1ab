"""Mixtures: who applies where, what it weighs, what gates and failures do, and that a list of functions is one too."""

import asyncio
import functools
import math
import pickle
import threading
import warnings
from types import SimpleNamespace

import pytest

from covey.errors import CoveyWarning, RewardError
from covey.rewards import (
    Cosine,
    Countdown,
    Failure,
    Linear,
    Mixture,
    Reward,
    RewardBatch,
    SameAnswer,
    Steps,
    ThinkFormat,
    as_rewards,
    reward,
)
from tests.clocks import PATIENCE, eventually


def batch(completions, groups=None, **columns):
    return RewardBatch(
        prompts=[f"p{g}" for g in groups or range(len(completions))],
        completions=list(completions),
        columns={name: list(values) for name, values in columns.items()},
        group_ids=list(groups or []),
    )


def length(completions, **_):
    return [float(len(c)) for c in completions]


def ones(completions, **_):
    return [1.0] * len(completions)


def totals(table, size):
    return [table.total(row) for row in range(size)]


def statuses(table, name):
    return [score.status for score in table.scores[name]]


# --- routing ---


def test_a_plain_list_is_a_mixture_that_calls_each_function_once_with_everything():
    seen = []

    def f(completions, prompts, target):
        seen.append((completions, prompts, target))
        return [1.0, 2.0]

    table = as_rewards([f, length]).score(batch(["a", "bb"], target=["x", "y"]), {"f": 0.5, "length": 2.0})
    assert seen == [(["a", "bb"], ["p0", "p1"], ["x", "y"])]
    assert totals(table, 2) == [0.5 + 2.0, 1.0 + 4.0]
    assert isinstance(as_rewards([f]), Mixture) and [r.name for r in as_rewards([f, f])] == ["f", "f_2"]


def test_a_mixture_is_a_plain_function_and_the_sequence_of_its_rewards():
    mix = Mixture(length, ones)
    assert mix(completions=["a", "bb"], prompts=["p", "q"], target=[1, 2]) == [2.0, 3.0]
    assert [r.name for r in mix] == ["length", "ones"] and len(mix) == 2 and mix[0].name == "length"
    assert as_rewards(mix) is mix and as_rewards([mix]) is mix
    nested = Mixture(mix, reward(ones, weight=10.0))
    assert nested(completions=["a"], prompts=["p"]) == [12.0]


def test_routing_by_task_column_and_predicate():
    mix = Mixture(
        reward(length, tasks="math"),
        reward(ones, name="code_only", tasks={"code", "sql"}),
        reward(ones, name="with_gold", present="gold"),
        reward(ones, name="odd", when=lambda row: row["number"] % 2 and row["prompt"] != "p9"),
    )
    table = mix.score(
        batch(["aaa"] * 4, task=["math", "code", "sql", None], gold=[1, None, 0, None], number=[0, 1, 2, 3])
    )
    assert statuses(table, "length") == ["value", "not_applicable", "not_applicable", "not_applicable"]
    assert statuses(table, "code_only") == ["not_applicable", "value", "value", "not_applicable"]
    assert statuses(table, "with_gold") == ["value", "not_applicable", "value", "not_applicable"]
    assert statuses(table, "odd") == ["not_applicable", "value", "not_applicable", "value"]
    assert totals(table, 4) == [4.0, 2.0, 2.0, 1.0]


def test_a_routed_reward_sees_only_its_rows():
    seen = []

    def f(completions, answer):
        seen.append((list(completions), list(answer)))
        return [0.0] * len(completions)

    mix = Mixture(reward(f, tasks="b"), ones, task_column="kind")
    mix.score(batch("wxyz", kind=["a", "b", "a", "b"], answer=[1, 2, 3, 4]))
    assert seen == [(["x", "z"], [2, 4])]
    mix.score(batch("w", kind=["a"], answer=[1]))
    assert len(seen) == 1, "a reward with no rows is not called"


def test_rows_that_nothing_scores_have_no_total():
    table = Mixture(reward(ones, tasks="a")).score(batch("xy", task=["a", "b"]))
    assert totals(table, 2) == [1.0, None]


def test_routing_faults_are_named():
    with pytest.raises(
        RewardError, match=r"'ones' is routed by 'tasks', which needs the column 'task'; the rows have kind"
    ):
        Mixture(reward(ones, tasks="a")).score(batch("x", kind=["a"]))
    with pytest.raises(RewardError, match="predicate `when` raised KeyError"):
        Mixture(reward(ones, when=lambda row: row["nothing"])).score(batch("x"))


# --- gates ---


def gated_mixture(seen, **options):
    def costly(completions, **_):
        seen.append(list(completions))
        return [1.0] * len(completions)

    def form(completions, **_):
        return [
            None if c == "n" else Failure("broken") if c == "f" else float(c == "g") / 2 for c in completions
        ]

    return Mixture(reward(costly, weight=3.0, **options), form)


def test_a_gate_counts_as_zero_and_saves_the_call():
    seen = []
    table = gated_mixture(seen, requires="form").score(batch("gbg"))
    assert seen == [["g", "g"]] and statuses(table, "costly") == ["value", "gated", "value"]
    assert totals(table, 3) == [3.5, 0.0, 3.5]
    assert table.scores["costly"][1].counted == 0.0


def test_a_gate_that_does_not_apply_is_none_and_one_that_failed_fails():
    seen = []
    table = gated_mixture(seen, requires="form").score(batch("ngf"))
    assert seen == [["n", "g"]] and statuses(table, "costly") == ["value", "value", "failed"]
    assert "its gate 'form' failed: broken" in table.scores["costly"][2].error
    assert totals(table, 3) == [3.0, 3.5, None]


def test_a_gate_with_a_threshold_and_gates_behind_gates():
    seen = []
    table = gated_mixture(seen, requires=("form", 0.6)).score(batch("gb"))
    assert seen == [] and statuses(table, "costly") == ["gated", "gated"]
    mix = Mixture(
        reward(ones, name="c", requires=["b", ("a", 1.0)]),
        reward(ones, name="b", requires="a"),
        reward(length, name="a"),
    )
    table = mix.score(batch(["", "x"]))
    assert statuses(table, "c") == statuses(table, "b") == ["gated", "value"]


def test_gates_that_cannot_be():
    with pytest.raises(
        RewardError, match="requires 'nothing', which is no reward of this mixture; there are ones"
    ):
        Mixture(reward(ones, requires="nothing"))
    with pytest.raises(RewardError, match="in a circle: a, b"):
        Mixture(reward(ones, name="a", requires="b"), reward(ones, name="b", requires="a"))


# --- weights ---


def state(step, total=100):
    return SimpleNamespace(global_step=step, max_steps=total)


def test_a_gate_whose_name_two_rewards_have_is_refused():
    twice = [reward(lambda completions: [1.0], name="same") for _ in range(2)]
    with pytest.raises(RewardError, match=r"'third' requires 'same', and 2 rewards are called so"):
        Mixture(*twice, reward(lambda completions: [1.0], name="third", requires="same"))


def test_weights_by_task():
    mix = Mixture(reward(ones, weight={"a": 2.0, "*": 0.5}), reward(ones, name="only_a", weight={"a": 1.0}))
    table = mix.score(batch("xyz", task=["a", "b", None]))
    assert totals(table, 3) == [3.0, 0.5, 0.5]
    assert table.weights["ones"][:2] == [2.0, 0.5]


def test_weights_over_training():
    mix = Mixture(
        reward(ones, name="linear", weight=Linear(0.0, 1.0, until=0.5)),
        reward(ones, name="steps", weight=Steps({0.0: 10.0, 0.5: 20.0})),
        reward(ones, name="by_task", weight={"a": Linear(100.0, 200.0)}),
    )
    given = batch("x", task=["a"])
    expected = {0: 0.0 + 10 + 100, 25: 0.5 + 10 + 125, 50: 1.0 + 20 + 150, 100: 1.0 + 20 + 200}
    for step, total in expected.items():
        given.trainer_state = state(step)
        assert mix.score(given).total(0) == total
    given.trainer_state = None
    assert mix.score(given).total(0) == 110.0


def test_schedules():
    assert [Linear(1.0, 3.0, 0.2, 0.6)(p) for p in (0.0, 0.2, 0.4, 0.6, 1.0)] == pytest.approx(
        [1, 1, 2, 3, 3]
    )
    assert [Cosine(0.0, 1.0)(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.0, 0.5, 1.0])
    for wrong in (lambda: Linear(0, 1, 0.5, 0.5), lambda: Cosine(0, 1, -0.1), lambda: Steps({0.5: 1.0})):
        with pytest.raises(ValueError, match="points of training"):
            wrong()


def test_weights_given_by_the_trainer_replace_those_of_the_rewards():
    mix = Mixture(reward(ones, weight=Linear(0.0, 1.0)), reward(length, weight=2.0))
    assert mix.weights == {"ones": 0.0, "length": 2.0}
    assert mix.score(batch(["ab"]), {"ones": 5.0, "length": 1.0}).total(0) == 7.0
    assert mix.score(batch(["ab"])).total(0) == 4.0


def test_a_weight_of_zero_is_a_metric_only():
    table = Mixture(ones, reward(length, weight=0.0)).score(batch(["abc"]))
    assert table.total(0) == 1.0 and table.scores["length"][0].value == 3.0


# --- failures ---


def broken_on(bad, kind=ValueError):
    def broken(completions, **_):
        if bad in "".join(completions):
            raise kind("cannot read " + bad)
        return [1.0] * len(completions)

    return broken


def test_an_exception_stops_by_default_and_names_function_and_sample():
    with pytest.raises(
        RewardError, match=r"Reward 'broken' raised ValueError: cannot read x.*the first is 'ax'"
    ) as stopped:
        Mixture(broken_on("x")).score(batch(["ax", "b"]))
    assert isinstance(stopped.value.__cause__, ValueError)
    with pytest.raises(RewardError, match="raised SystemExit"):
        Mixture(broken_on("x", SystemExit)).score(batch(["ax", "b"]))
    with pytest.raises(KeyboardInterrupt):
        Mixture(reward(broken_on("x", KeyboardInterrupt), on_error="zero")).score(batch(["ax", "b"]))


@pytest.mark.parametrize(
    "on_error, expected", [("missing", [1.0, None, 1.0]), ("zero", [1.0, 0.0, 1.0]), (-0.5, [1.0, -0.5, 1.0])]
)
def test_a_fault_concerns_the_samples_that_caused_it(on_error, expected):
    table = Mixture(reward(broken_on("x"), on_error=on_error)).score(batch(["a", "x", "b"]))
    assert totals(table, 3) == expected
    assert "ValueError: cannot read x" in table.scores["broken"][1].error
    assert table.metrics["rewards/broken/error_share"].value == pytest.approx(1 / 3)


def test_garbage_is_a_fault_of_its_own():
    def garbage(completions, **_):
        return ["?" if c == "x" else 1.0 for c in completions]

    def short(completions, **_):
        return [1.0] * (len(completions) - ("x" in completions))

    for function in (garbage, short):
        with pytest.raises(RewardError, match=function.__name__):
            Mixture(function).score(batch("axb"))
        table = Mixture(reward(function, on_error="missing")).score(batch("axb"))
        assert totals(table, 3) == [1.0, None, 1.0]


def test_a_failed_reward_leaves_the_sample_out_unless_it_is_optional():
    def model(completions, **_):
        return [Failure("down") if c == "x" else 0.5 for c in completions]

    assert totals(Mixture(ones, model).score(batch("ax")), 2) == [1.5, None]
    assert totals(Mixture(ones, reward(model, optional=True)).score(batch("ax")), 2) == [1.5, 1.0]


def test_not_applicable_drops_out_and_is_no_failure():
    def some(completions, **_):
        return [None if c == "x" else 1.0 for c in completions]

    assert totals(Mixture(ones, some).score(batch("ax")), 2) == [2.0, 1.0]


def test_on_error_of_the_mixture_is_for_those_that_do_not_say():
    mix = Mixture(broken_on("x"), reward(broken_on("x"), name="own", on_error=7.0), on_error="zero")
    assert totals(mix.score(batch("ax")), 2) == [2.0, 7.0]


def test_the_breaker_stops_a_run_whose_reward_is_down():
    mix = Mixture(ones, reward(broken_on("x"), on_error="missing"), max_failure_rate=0.25, window=20)
    for _ in range(4):
        mix.score(batch(["a"] * 9 + ["x"]))
    mix.score(batch(["a"] * 8 + ["x"] * 2))
    mix.score(batch(["a"] * 7 + ["x"] * 3))
    with pytest.raises(
        RewardError,
        match=r"'broken' failed on 30% of the last 20 samples.*max_failure_rate=25%.*cannot read x",
    ):
        mix.score(batch(["a"] * 7 + ["x"] * 3))


def test_the_breaker_counts_failures_that_a_reward_reports():
    mix = Mixture(lambda completions: [Failure("down")] * len(completions), window=10)
    with pytest.raises(RewardError, match="failed on 100%"):
        mix.score(batch("a" * 10))


def test_the_coverage_floor():
    mix = Mixture(reward(ones, tasks="a"), min_coverage=0.5, window=10)
    mix.score(batch("xx", task=["b", "b"]))
    with pytest.raises(RewardError, match="Only 40% of the last 10 samples were scored"):
        mix.score(batch("x" * 8, task=["a"] * 4 + ["b"] * 4))


# --- groups ---


def test_group_rewards_see_the_siblings_and_nobody_else():
    seen = []

    def shortest(completions, prompts, **_):
        seen.append((list(completions), set(prompts)))
        return [float(len(c) == min(map(len, completions))) for c in completions]

    table = Mixture(reward(shortest, scope="group")).score(
        batch(["a", "bb", "cccc", "ccc"], groups=[0, 0, 1, 1])
    )
    assert [s[0] for s in seen] == [["a", "bb"], ["cccc", "ccc"]]
    assert totals(table, 4) == [1.0, 0.0, 0.0, 1.0]


def test_groups_behind_a_gate_are_called_whole():
    def rank(completions, **_):
        return [float(len(completions))] * len(completions)

    mix = Mixture(reward(rank, scope="group", requires="length"), length)
    table = mix.score(batch(["a", "", "", ""], groups=[0, 0, 1, 1]))
    assert statuses(table, "rank") == ["value", "gated", "gated", "gated"]
    assert table.scores["rank"][0].value == 2.0


def test_without_group_ids_neighbours_with_the_same_prompt_are_a_group():
    sizes = []

    def count(completions, **_):
        sizes.append(len(completions))
        return [0.0] * len(completions)

    Mixture(reward(count, scope="group"))(completions=list("abcde"), prompts=["p", "p", "q", "q", "p"])
    assert sizes == [2, 2, 1]


def test_a_fault_in_a_group_concerns_that_group():
    table = Mixture(reward(broken_on("x"), scope="group", on_error="zero")).score(
        batch("axbb", groups=[0, 0, 1, 1])
    )
    assert totals(table, 4) == [0.0, 0.0, 1.0, 1.0]


# --- once each ---


def counted(calls, **options):
    def f(completions, **_):
        calls.append(len(completions))
        return [float(len(c)) for c in completions]

    return reward(f, **options)


def test_pure_rewards_score_equal_samples_once():
    calls = []
    table = Mixture(counted(calls, pure=True)).score(
        batch(["a", "bb", "a", "a"], groups=[0, 0, 0, 0], t=[1, 1, 1, 2])
    )
    assert calls == [3] and totals(table, 4) == [1.0, 2.0, 1.0, 1.0], "another column is another sample"
    assert table.metrics["rewards/f/cached_share"].value == 0.25
    calls.clear()
    Mixture(counted(calls)).score(batch(["a", "a"], groups=[0, 0]))
    assert calls == [2], "who does not say that it is pure is asked each time"


def test_equal_samples_get_equal_extras():
    def f(completions, log_extra):
        log_extra("length", [len(c) for c in completions])
        return [0.0] * len(completions)

    table = Mixture(reward(f, pure=True)).score(batch(["a", "bb", "a"], groups=[0, 0, 0]))
    assert table.extras["length"] == [1, 2, 1]


def test_the_cache_remembers_between_batches_and_runs(tmp_path):
    calls = []
    for cache in (True, tmp_path / "scores.sqlite"):
        calls.clear()
        mix = Mixture(counted(calls, pure=True), cache=cache)
        for _ in range(2):
            assert totals(mix.score(batch(["a", "bb"], groups=[0, 0])), 2) == [1.0, 2.0]
        assert totals(mix.score(batch(["bb", "ccc"], groups=[0, 0])), 2) == [2.0, 3.0]
        assert calls == [2, 1]
    calls.clear()
    again = Mixture(counted(calls, pure=True), cache=tmp_path / "scores.sqlite")
    assert totals(again.score(batch(["a", "ccc"], groups=[0, 0])), 2) == [1.0, 3.0] and calls == []


def test_the_cache_keeps_no_failures_and_tells_settings_apart(tmp_path):
    path = tmp_path / "scores.sqlite"
    down = [True]

    def flaky(completions):
        return [Failure("down") if down[0] else None for _ in completions]

    mix = Mixture(reward(flaky, pure=True), cache=path)
    assert statuses(mix.score(batch("a")), "flaky") == ["failed"]
    down[0] = False
    assert statuses(mix.score(batch("a")), "flaky") == ["not_applicable"]

    answer = "r</think> <answer>2+3</answer>"
    given = batch([answer], nums=[[2, 3, 4]], target=[5])
    assert Mixture(reward(Countdown("subset"), name="c"), cache=path).score(given).total(0) == 1.0
    assert Mixture(reward(Countdown("all"), name="c"), cache=path).score(given).total(0) == 0.0


# --- notes and metrics ---


def test_notes_of_parts_land_on_their_rows():
    def f(completions, log_extra, log_metric):
        log_extra("said", [c.upper() for c in completions])
        log_metric("calls", 1.0)
        return [1.0] * len(completions)

    table = Mixture(reward(f, tasks="a")).score(batch("xyz", task=["a", "b", "a"]))
    assert table.extras["said"] == ["X", None, "Z"] and table.metrics["calls"].value == 1.0


def noting(what):
    def f(completions, log_extra):
        log_extra("length", [what * len(c) for c in completions])
        return [1.0] * len(completions)

    return f


def test_a_column_that_two_rewards_note_is_kept_twice():
    """Law: what one reward noted of a sample is never replaced by what another one noted."""
    batch = RewardBatch(prompts=["p", "p"], completions=["x", "yy"], columns={"task": ["a", "b"]})
    both = Mixture(reward(noting(1), name="first"), reward(noting(10), name="second")).score(batch)
    assert both.extras == {"length": [1, 2], "second/length": [10, 20]}
    assert both.metrics["length"].value == 1.5 and both.metrics["second/length"].value == 15
    parted = [reward(noting(what), name=task, tasks=task) for what, task in ((1, "a"), (10, "b"))]
    assert Mixture(*parted).score(batch).extras == {"length": [1, 20]}
    assert Mixture(*parted).score(batch).metrics["length"].value == 10.5


def test_metrics_per_reward_and_task():
    def some(completions, **_):
        return [None if c == "n" else float(len(c)) for c in completions]

    mix = Mixture(some, reward(ones, tasks="a", requires="some"))
    mix.tasks.add("b")
    metrics = mix.score(batch(["n", "bb", "", "bb"], groups=[0, 0, 1, 1], task=["a", "a", "b", "a"])).metrics
    value = {name: metric.value for name, metric in metrics.items()}
    assert value["rewards/some/applicable_share"] == 0.75 and value["rewards/ones/applicable_share"] == 0.75
    assert value["rewards/some/mean/a"] == 2.0 and value["rewards/some/mean/b"] == 0.0
    assert value["rewards/ones/gated_share"] == 0.0 and value["time/rewards/some"] >= 0.0
    assert (
        value["rewards/some/zero_std_share"] == 0.0
    )  # the first group has one value, the second two different
    assert value["rewards/ones/weight"] == 1.0
    assert not any(math.isnan(v) for v in value.values() if v is not None)


def test_a_trainer_that_takes_notes_gets_them():
    noted, extras = {}, {}
    Mixture(length)(
        completions=["ab"], prompts=["p"], log_metric=noted.__setitem__, log_extra=extras.__setitem__
    )
    assert (
        noted["length/mean"] == 2.0 and noted["length/applicable_share"] == 1.0 and "length/seconds" in noted
    )


# --- side by side ---


def test_coroutines_run_side_by_side_and_meanwhile_inline_ones():
    """Each of them ends once all have begun."""
    started = []

    def make(name):
        async def meets(completions, **_):
            started.append(name)
            return [float(await asyncio.to_thread(eventually, lambda: len(started) == 4))] * len(completions)

        return reward(meets, name=name)

    def inline(completions, **_):
        started.append("inline")
        return [float(eventually(lambda: len(started) == 4))] * len(completions)

    assert Mixture(make("a"), inline, make("b"), make("c")).score(batch("x")).total(0) == 4.0
    assert sorted(started) == ["a", "b", "c", "inline"]


def test_coroutines_run_inside_a_running_loop():
    async def slow(completions, **_):
        await asyncio.sleep(0.01)
        return [1.0]

    async def notebook():
        return Mixture(slow).score(batch("x")).total(0)

    assert asyncio.run(notebook()) == 1.0


# --- the decorator ---


def test_a_decorated_function_stays_a_plain_function():
    @reward(weight=0.5, tasks="code", name="neat")
    def tidy(completions, **_):
        return [1.0] * len(completions)

    assert tidy(completions=["a"]) == [1.0]
    mix = Mixture(tidy, ones)
    assert [r.name for r in mix] == ["neat", "ones"] and mix[0].options.weight == 0.5
    assert mix[0].function is tidy
    twice = Mixture(tidy, reward(tidy, name="heavy", weight=5.0))
    assert [r.options.weight for r in twice] == [0.5, 5.0] and twice[1].options.tasks == {"code"}


def test_partials_objects_and_bundled_rewards_keep_their_names():
    mix = Mixture(functools.partial(length, other=1), Countdown("all"), ThinkFormat(), SameAnswer())
    assert [r.name for r in mix] == ["length", "countdown_all", "think_format", "same_answer"]
    assert mix[1].options.pure and not mix[0].options.pure


def test_missing_columns_are_those_of_all():
    mix = Mixture(Countdown(), SameAnswer("gold"), reward(lambda completions, extra: [], name="x"))
    assert mix.missing_columns(["target"]) == ["'gold'", "extra", "nums"]


def test_a_mixture_of_bundled_rewards_can_be_sent_elsewhere():
    mix = pickle.loads(pickle.dumps(Mixture(reward(Countdown(), weight=2.0), ThinkFormat(), cache=True)))
    given = dict(completions=["r</think> <answer>1+2</answer>"], prompts=["p"], nums=[[1, 2]], target=[3])
    assert mix(**given) == [3.0]


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: reward(ones, wait=1), "there is no option 'wait'"),
        (lambda: reward(ones, where="moon"), "where is one of inline, thread, process, sandbox"),
        (lambda: reward(ones, scope="all"), "scope is one of sample, group"),
        (lambda: reward(ones, on_error="ignore"), "'raise', 'missing', 'zero' or a number"),
        (lambda: reward(ones, timeout=1.0), "cannot be kept inline"),
        (lambda: reward(ones, timeout=-1.0, where="thread"), "seconds above 0"),
        (lambda: reward(ones, sample_timeout=1.0, where="thread"), "sample_timeout needs where='process'"),
        (lambda: reward(ones, sample_timeout=1.0, where="process", scope="group"), "exclude each other"),
        (lambda: reward(ones, requires=3.5), "requires=3.5|not iterable"),
        (lambda: Mixture("a/model"), "cannot be called"),
        (lambda: Mixture(ones, unscored="maybe"), "'error' or 'ignore'"),
        (lambda: Mixture(ones, max_failure_rate=2), "in \\[0, 1\\]"),
        (lambda: Mixture(ones, window=0), "at least one sample"),
        (lambda: as_rewards([]), "reward_funcs is empty"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(make, said):
    with pytest.raises((RewardError, TypeError), match=said):
        make()


def test_a_coroutine_function_has_its_place():
    async def f(completions, **_):
        return [1.0]

    with pytest.raises(RewardError, match="runs on the event loop"):
        reward(f, where="process")
    assert isinstance(reward(f, timeout=1.0), Reward)


@pytest.mark.parametrize(
    ("options", "consequence"),
    [
        (dict(on_error="zero"), "counts as 0 (on_error='zero')"),
        (dict(on_error=-0.5), "counts as -0.5"),
        (dict(on_error="missing"), "is left out of the step"),
        (dict(on_error="missing", optional=True), "counts without it (optional=True)"),
    ],
)
def test_the_first_failure_of_a_reward_is_said_once(options, consequence):
    mix = Mixture(ones, reward(broken_on("x"), name="mine", **options))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mix.score(batch("ab"))
        assert not told
        for _ in range(3):
            mix.score(batch("axx"))
    (said,) = [str(w.message) for w in told]
    assert said.startswith("Reward 'mine' failed on 2 of 3 samples: ValueError") and consequence in said, said


def test_time_outs_of_an_optional_reward_are_said():
    release = threading.Event()

    def slow(completions, **_):
        release.wait(PATIENCE)
        return [0.0] * len(completions)

    options = dict(where="thread", timeout=0.05, optional=True, on_error="missing")
    with pytest.warns(CoveyWarning, match=r"'slow' failed on 2 of 2 samples: CallTimeout.*counts without it"):
        Mixture(ones, reward(slow, **options)).score(batch("ab"))
    release.set()
