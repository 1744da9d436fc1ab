"""Quotas of tasks: shares to within a prompt at every place, every row of a task once in each of its epochs."""

from collections import Counter
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from covey.sample.task_quota import TaskQuota, task_order

ROWS = {"math": range(0, 7), "code": range(7, 10), "text": range(10, 30)}
SHARES = {"math": 0.5, "code": 0.3, "text": 0.2}


def fractions(*shares):
    exact = [Fraction(str(s)) for s in shares]
    return [s / sum(exact) for s in exact]


def test_the_order_of_three_tasks_worked_by_hand():
    """Shares 1/2, 3/10, 1/5: ε = 1/4. Begins (j - 3/4) / s: 1/2, 5/2, 9/2, ...; 5/6, 25/6, ...; 5/4, 25/4, ...
    Due (j - 1/4) / s: 3/2, 7/2, 11/2, 15/2, 19/2; 5/2, 35/6, 55/6; 15/4, 35/4."""
    assert list(islice(task_order(fractions(0.5, 0.3, 0.2)), 10)) == [0, 1, 0, 2, 0, 1, 0, 2, 1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_no_task_is_ever_a_whole_prompt_away_from_its_share(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 9))
    shares = fractions(*generator.integers(1, 60, count).tolist())
    drawn, slack = Counter(), Fraction(1, 2 * count - 2)
    for place, task in enumerate(islice(task_order(shares), 600), 1):
        drawn[task] += 1
        assert max(abs(drawn[k] - share * place) for k, share in enumerate(shares)) <= 1 - slack


def test_a_large_task_does_not_keep_small_ones_waiting_together():
    """Nine tenths for one, a hundredth for each of ten others: they come one by one, ten prompts apart."""
    order = list(islice(task_order(fractions(0.9, *[0.01] * 10)), 300))
    places = [n for n, task in enumerate(order) if task]
    assert max(b - a for a, b in zip([0, *places], places, strict=False)) <= 20
    assert Counter(order)[0] == 270


def test_one_task_has_all():
    assert list(islice(task_order(fractions(3)), 4)) == [0, 0, 0, 0]


def draws(quota, numbers, size=4, rounds=0):
    return [quota.draw(number, size, rounds) for number in numbers]


def task_of(row):
    return next(name for name, rows in ROWS.items() if row in rows)


def test_what_a_rollout_has_too_much_of_the_next_ones_have_less():
    rollouts = draws(TaskQuota("task", ROWS, SHARES, 1), range(50))
    for stop in range(1, 51):
        counts = Counter(task_of(row) for rollout in rollouts[:stop] for row in rollout)
        assert all(abs(counts[name] - share * 4 * stop) < 1 for name, share in SHARES.items())
    counts = Counter(task_of(row) for rollout in rollouts for row in rollout)
    assert counts == {"math": 100, "code": 60, "text": 40}


def test_each_task_goes_through_its_rows_by_itself_in_another_order_each_time():
    flat = [row for rollout in draws(TaskQuota("task", ROWS, SHARES, 1), range(50)) for row in rollout]
    for name, rows in ROWS.items():
        own = [row for row in flat if row in rows]
        epochs = [own[i : i + len(rows)] for i in range(0, len(own) - len(rows) + 1, len(rows))]
        assert all(sorted(epoch) == list(rows) for epoch in epochs), name
        assert len({tuple(epoch) for epoch in epochs}) > 1


def test_a_rollout_is_a_function_of_the_seed_and_its_number():
    whole = draws(TaskQuota("task", ROWS, SHARES, 1), range(30), rounds=2)
    assert draws(TaskQuota("task", ROWS, SHARES, 1), [17, 3, 29], rounds=2) == [
        whole[17],
        whole[3],
        whole[29],
    ]
    assert draws(TaskQuota("task", ROWS, SHARES, 2), range(30), rounds=2) != whole
    plain = [row for rollout in draws(TaskQuota("task", ROWS, SHARES, None), range(10)) for row in rollout]
    assert [row for row in plain if row < 7] == [n % 7 for n in range(20)], "the order of the dataset"


def test_refills_are_other_rows_of_the_same_tasks():
    quota = TaskQuota("task", ROWS, SHARES, 1)
    for number in range(20):
        rows = quota.draw(number, 4, 2)
        own, fresh = rows[:4], rows[4:]
        asked, given, there = (Counter(map(task_of, part)) for part in (own, fresh, set(own)))
        assert not set(own) & set(fresh) and len(set(fresh)) == len(fresh)
        assert all(given[name] == min(2 * n, len(ROWS[name]) - there[name]) for name, n in asked.items())


def test_shares_are_in_proportion_and_nothing_leaves_a_task_out():
    quota = TaskQuota("task", ROWS, {"math": 5, "code": 3, "text": 2}, 1)
    assert draws(quota, range(9)) == draws(TaskQuota("task", ROWS, SHARES, 1), range(9))
    without = TaskQuota("task", ROWS, {**SHARES, "text": 0}, 1)
    assert without.kept == list(range(10))
    assert {task_of(row) for rollout in draws(without, range(20)) for row in rollout} == {"math", "code"}
