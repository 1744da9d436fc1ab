"""A reward may change whatever it is given: no other sample, reward, record, evaluation or dataset holds the same object."""

import asyncio
import collections

import pytest

from covey.rewards import Mixture, RewardBatch, reward
from covey.rewards.own import own

ROW = {
    "tests": ["x", "y"],
    "nested": {"a": [{"b": [1]}]},
    "pair": (1, [2]),
    "kinds": {1, 2},
    "count": collections.Counter("aab"),
    "queue": collections.deque([1]),
    "prompts": [{"role": "user", "content": "hi"}],
    "completions": [{"role": "assistant", "content": "a"}],
    "completion_ids": [1, 2],
}


def spoil(value):
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for key in list(value):
            spoil(value[key])
        value.clear()
    elif isinstance(value, list | tuple):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.clear()
    elif isinstance(value, set | collections.deque):
        value.clear()


def spoils(seen):
    def spoiling(**given):
        columns = {name: given[name] for name in ROW}
        for i in range(len(given["completions"])):
            seen.append({name: own(values[i]) for name, values in columns.items()})
            for values in columns.values():
                spoil(values[i])
        for values in columns.values():
            values.clear()
        return [1.0] * 4

    return spoiling


def batch():
    """Two groups of two; siblings share the very same objects, as they come out of a dataset."""
    rows = [row for row in (own(ROW), own(ROW)) for _ in range(2)]
    columns = {name: [row[name] for row in rows] for name in ROW}
    inputs = {name: columns.pop(name) for name in ("prompts", "completions", "completion_ids")}
    return RewardBatch(**inputs, columns=columns, group_ids=[0, 0, 1, 1])


def in_a_coroutine(function):
    async def coroutine(**given):
        await asyncio.sleep(0)
        return function(**given)

    return coroutine


PLACES = {
    "inline": lambda f: reward(f, name="r"),
    "thread": lambda f: reward(f, name="r", where="thread"),
    "coroutine": lambda f: reward(in_a_coroutine(f), name="r"),
    "some rows": lambda f: reward(f, name="r", when=lambda row: True, tasks=None),
    "nested": lambda f: Mixture(f, name="r"),
}


@pytest.mark.parametrize("place", PLACES)
def test_each_sample_of_each_reward_gets_objects_of_its_own(place):
    given, seen = batch(), []
    Mixture(PLACES[place](spoils(seen)), reward(spoils(seen), name="second")).score(given)
    assert seen == [ROW] * 8
    assert [{**{n: v[i] for n, v in given.columns.items()}} for i in range(4)] == [
        {n: v for n, v in ROW.items() if n in given.columns}
    ] * 4
    assert given.prompts == [ROW["prompts"]] * 4 and given.completions == [ROW["completions"]] * 4
    assert given.completion_ids == [[1, 2]] * 4


def test_a_predicate_may_change_the_row_that_it_sees():
    """Also where several rewards have the same one."""
    given, seen, rows = batch(), [], []

    def when(row):
        rows.append(own(row))
        spoil(row)
        return True

    Mixture(*(reward(spoils(seen), name=name, when=when) for name in ("first", "second"))).score(given)
    assert seen == [ROW] * 8
    assert rows == [{**{n: ROW[n] for n in given.columns}, "prompt": ROW["prompts"]}] * 8


def test_siblings_share_nothing_in_a_process_either():
    def lengths(completions, tests):
        found = []
        for t in tests:
            found.append(len(t))
            t.pop()
        return found

    table = Mixture(reward(lengths, where="process", name="r")).score(batch())
    assert [s.value for s in table.scores["r"]] == [2.0] * 4


def test_what_a_reward_logged_is_not_changed_by_what_it_does_later():
    kept = [["a"], ["b"]]

    def notes(completions, log_extra):
        log_extra("why", kept)
        kept[0].append("later")
        return [1.0, 1.0]

    table = Mixture(notes).score(RewardBatch(prompts=["p", "p"], completions=["x", "y"]))
    assert table.extras["why"] == [["a"], ["b"]]


def test_texts_and_foreign_objects_are_not_copied_and_a_class_stays():
    text, thing = "x" * 1_000_000, object()
    value = {"text": text, "list": [thing, text], "ordered": collections.OrderedDict(a=[thing])}
    copied = own(value)
    assert copied == value and copied is not value
    assert copied["text"] is text and copied["list"][0] is thing and copied["list"] is not value["list"]
    assert (
        type(copied["ordered"]) is collections.OrderedDict
        and copied["ordered"]["a"] is not value["ordered"]["a"]
    )


def test_what_holds_itself_is_copied():
    value = [1]
    value.append(value)
    copied = own(value)
    assert copied is not value and copied[1] is copied
