"""What a reward takes is what its outermost callable takes; what it returns is waited for, whatever kind of function it is."""

import asyncio
import functools
import operator
from concurrent.futures import ThreadPoolExecutor

import pytest

from covey.errors import RewardError
from covey.rewards import Mixture, Reward, RewardBatch, get_soft_overlong_punishment, reward

BATCH = RewardBatch(
    prompts=["p", "q"],
    completions=["a", "bb"],
    completion_ids=[[1], [2, 3]],
    columns={"answer": ["a", "b"], "gold": ["x", "y"]},
)


def per_sample(text, judge_path):
    return float(len(text))


def narrow(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def passing_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@functools.wraps(per_sample)
def over_samples(completions, **columns):
    return [per_sample(c, "x") for c in completions]


@functools.wraps(per_sample)
def over_samples_by_keyword(**columns):
    return [per_sample(c, "x") for c in columns["completions"]]


@functools.wraps(per_sample)
def over_samples_by_anything(*args, **columns):
    return [per_sample(c, "x") for c in columns["completions"]]


@functools.wraps(narrow)
def over_columns(prompts, completions, **columns):
    assert columns["gold"] == ["x", "y"] and len(prompts) == 2
    return [float(len(c)) for c in completions]


@functools.wraps(narrow)
def over_columns_by_keyword(**columns):
    assert columns["gold"] == ["x", "y"]
    return [float(len(c)) for c in columns["completions"]]


class Wrapped:
    """An object whose class has a wrapped __call__, and a wrapped method."""

    def inner(self, text):
        return float(len(text))

    @functools.wraps(inner)
    def __call__(self, completions, **columns):
        return [self.inner(c) for c in completions]

    @functools.wraps(inner)
    def method(self, completions):
        return [self.inner(c) for c in completions]


class Passed:
    """The same with wrappers that only hand on."""

    @passing_on
    def __call__(self, completions, answer):
        return [float(len(c)) for c in completions]

    @passing_on
    def method(self, completions, answer):
        return [float(len(c)) for c in completions]


def weighted(completions, w):
    return [w * len(c) for c in completions]


LENGTHS = {
    "over samples": over_samples,
    "over samples, by keyword": over_samples_by_keyword,
    "over samples, by anything": over_samples_by_anything,
    "over columns": over_columns,
    "over columns, by keyword": over_columns_by_keyword,
    "object": Wrapped(),
    "method": Wrapped().method,
    "object that hands on": Passed(),
    "method that hands on": Passed().method,
    "partial": functools.partial(over_samples, w=1),
    "partial by position": functools.partial(lambda w, completions: [float(len(c)) for c in completions], 2),
    "hands on a partial": passing_on(functools.partial(weighted, w=1)),
    "partial of what hands on": functools.partial(passing_on(weighted), w=1),
    "twice": passing_on(passing_on(lambda completions, answer: [float(len(c)) for c in completions])),
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_the_outermost_callable_says_what_it_takes(kind):
    part = Reward(LENGTHS[kind], "r")
    assert part.missing_columns(["answer", "gold"]) == []
    assert [s.value for s in Mixture(part).score(BATCH).scores["r"]] == [1.0, 2.0]


def test_what_only_hands_on_still_names_the_column_that_is_missing():
    for function in (passing_on(narrow), passing_on(passing_on(narrow))):
        assert Reward(function, "r").missing_columns(["gold"]) == ["answer"]


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_wrapper_is_asked_in_every_place(where):
    table = Mixture(reward(over_samples, where=where, name="r")).score(BATCH)
    assert [s.value for s in table.scores["r"]] == [1.0, 2.0]


def test_the_sandbox_runs_the_source_of_the_wrapper_and_not_of_what_it_wraps():
    @functools.wraps(narrow)
    def outer(completions):
        return narrow(completions, completions)

    with pytest.raises(RewardError, match="it uses narrow from outside"):
        Mixture(reward(outer, where="sandbox", name="r")).score(BATCH)


# --- what is no reward ---


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (compute_score, ("compute_score(text, ...)", "`completions`", "data_source")),
        (lambda answer: answer, ("lambda", "`completions`")),
        (lambda *completions: completions, ("lambda", "`completions`")),
        (get_soft_overlong_punishment, ("If get_soft_overlong_punishment returns a reward, call it",)),
        (
            functools.partial(get_soft_overlong_punishment, max_completion_len=8, soft_punish_cache=2),
            ("call it",),
        ),
        (Wrapped, ("is a class", "Wrapped(...)")),
        (operator.itemgetter(0), ("itemgetter", "completions")),
        (max, ("max", "completions")),
        (5, ("cannot be called",)),
    ],
)
def test_what_is_no_reward_is_told_what_one_is(function, words):
    with pytest.raises(RewardError) as error:
        Mixture(function)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_decorated_class_gives_its_terms_to_its_objects():
    @reward(weight=0.5)
    class Long:
        def __init__(self, least):
            self.least = least

        def __call__(self, completions):
            return [float(len(c) >= self.least) for c in completions]

    (part,) = Mixture(Long(2))
    assert part.options.weight == 0.5 and part(completions=["a", "bb"]) == [0.0, 1.0]


# --- what must be waited for ---


async def judge(completions, **_):
    await asyncio.sleep(0)
    return [float(len(c)) for c in completions]


async def stream(completions, **_):
    for c in completions:
        await asyncio.sleep(0)
        yield float(len(c))


async def one(text):
    await asyncio.sleep(0)
    return float(len(text))


class Client:
    def __call__(self, completions, **_):
        return judge(completions)


async def twice(completions, **_):
    return judge(completions)


def task_of_a_loop(completions, **_):
    return asyncio.new_event_loop().create_task(judge(completions))


POOL = ThreadPoolExecutor(1)
AWAITED = {
    "coroutine": judge,
    "wrapper": lambda **given: judge(**given),
    "hands on": passing_on(judge),
    "object": Client(),
    "partial": functools.partial(Client(), w=1),
    "wraps a lambda": passing_on(lambda completions, **_: judge(completions)),
    "coroutine of a coroutine": twice,
    "asynchronous generator": stream,
    "returns an asynchronous generator": lambda completions: stream(completions),
    "list of coroutines": lambda completions: [one(c) for c in completions],
    "some of them": lambda completions: [1.0, one(completions[1])],
    "future of a pool": lambda completions: POOL.submit(lambda: [float(len(c)) for c in completions]),
    "futures of a pool": lambda completions: [POOL.submit(lambda c=c: float(len(c))) for c in completions],
    "task of a loop": task_of_a_loop,
    "a Reward": Reward(lambda completions: judge(completions), "inner"),
    "plain": lambda completions: [float(len(c)) for c in completions],
}


def test_whatever_a_reward_returns_is_waited_for_side_by_side():
    table = Mixture(*(reward(f, name=name) for name, f in AWAITED.items())).score(BATCH)
    for name in AWAITED:
        assert [s.value for s in table.scores[name]] == [1.0, 2.0], name


@pytest.mark.parametrize("where", ["thread", "process"])
def test_it_is_waited_for_in_every_place(where):
    table = Mixture(reward(lambda completions: judge(completions), where=where, name="r")).score(BATCH)
    assert [s.value for s in table.scores["r"]] == [1.0, 2.0]


def test_it_is_waited_for_inside_a_running_loop_and_its_own_tasks_are_refused():
    async def notebook():
        made = Mixture(lambda completions, **_: judge(completions))(prompts=["p"], completions=["abc"])
        own = Mixture(lambda completions, **_: asyncio.ensure_future(judge(completions)))
        with pytest.raises(RewardError, match="Return the coroutine"):
            own(prompts=["p"], completions=["abc"])
        return made

    assert asyncio.run(notebook()) == [3.0]


def test_a_deadline_holds_for_a_coroutine_that_a_thread_returned():
    async def slow(completions):
        await asyncio.sleep(60)

    mix = Mixture(reward(lambda completions: slow(completions), where="thread", timeout=0.1, on_error="zero"))
    assert mix(prompts=["p"], completions=["a"]) == [0.0]


def test_what_a_coroutine_raises_names_the_reward():
    async def broken(completions):
        raise KeyError("gold")

    with pytest.raises(RewardError, match=r"Reward 'lambda' raised KeyError: 'gold'"):
        Mixture(lambda completions: broken(completions)).score(BATCH)
