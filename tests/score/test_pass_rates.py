"""The memory of pass rates: worked Beta numbers, evidence that ages, and rewards that are no verdicts."""

import numpy as np
import pytest

from covey.score.pass_rates import Evidence, PassRates, teaching


def mean(memory, number=0):
    passes, failures = memory.posterior(number)
    return passes / (passes + failures)


def test_evidence_moves_its_row_and_through_the_pool_the_others():
    memory = PassRates([3, 5, 9], ["a", "a", "b"], half_life=10)
    memory.learn(0, [Evidence(5, 8, 6.0, 0.0, 1.0)])
    passes, failures = memory.posterior(0)
    # pool a: (1 + 6) / (2 + 8) = 0.7, worth one completion; pool b has shown nothing: 0.5
    assert passes.tolist() == pytest.approx([0.7, 6.7, 0.5])
    assert failures.tolist() == pytest.approx([0.3, 2.3, 0.5])
    assert memory.seen.tolist() == [False, True, False]


def test_what_is_known_is_halved_every_half_life_and_widens_towards_the_pool():
    memory = PassRates([0, 1], ["", ""], half_life=4)
    memory.learn(0, [Evidence(0, 8, 0.0, 0.0, 0.0)])
    memory.learn(4, [Evidence(1, 8, 8.0, 1.0, 1.0)])
    passes, failures = memory.posterior(4)  # the pool: (1 + 8) / (2 + 4 + 8)
    assert passes[0] == pytest.approx(9 / 14) and failures[0] == pytest.approx(5 / 14 + 4)
    young, old = (teaching(*memory.posterior(n), 8)[0] for n in (4, 40))
    assert old > young + 0.05  # a hard prompt comes back


def test_evidence_of_one_row_adds_up_whatever_came_between():
    one, two = (PassRates([0], [""], half_life=3) for _ in range(2))
    one.learn(0, [Evidence(0, 4, 2.0, 0.0, 1.0)])
    one.learn(6, [Evidence(0, 4, 4.0, 1.0, 1.0), Evidence(0, 4, 0.0, 0.0, 0.0)])
    two.learn(6, [Evidence(0, 9, 4.5, 0.0, 1.0)])  # 8 of now, and a quarter of 4
    assert one.posterior(6)[0] == pytest.approx(two.posterior(6)[0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (-1.0, 1.0)])
def test_a_reward_that_is_no_verdict_counts_by_its_place_in_its_pools_range(low, high):
    memory = PassRates([0, 1, 2], ["text", "text", "code"], half_life=1e9)
    memory.learn(0, [Evidence(0, 2, low + high, low, high), Evidence(1, 4, 4 * high, high, high)])
    passes, failures = memory.posterior(0)
    rate = (1 + 5) / (2 + 6)
    assert passes[:2].tolist() == pytest.approx([rate + 1, rate + 4])
    assert failures[:2].tolist() == pytest.approx([(1 - rate) + 1, 1 - rate])
    assert mean(memory)[2] == 0.5  # another pool has another range


def test_rows_that_are_not_there_teach_nothing():
    memory = PassRates([0, 2], ["", ""], half_life=1)
    memory.learn(0, [Evidence(1, 8, 8.0, 1.0, 1.0), Evidence(7, 8, 8.0, 1.0, 1.0)])
    assert not memory.seen.any()


def test_its_state_is_exact_and_that_of_another_dataset_is_not_taken():
    memory = PassRates([1, 4, 6], ["a", "b", "a"], half_life=7)
    memory.learn(2, [Evidence(4, 3, 1.1, -0.2, 1.7), Evidence(1, 8, 0.3, 0.0, 0.1)])
    memory.learn(3, [Evidence(4, 3, 0.7, 0.1, 0.3)])
    again = PassRates([1, 4, 6], ["a", "b", "a"], half_life=7)
    assert again.restore(memory.state())
    for a, b in zip(memory.posterior(9), again.posterior(9), strict=True):
        assert np.array_equal(a, b)
    other = PassRates([1, 4], ["a", "b"], half_life=7)
    assert not other.restore(memory.state()) and not other.seen.any()


@pytest.mark.parametrize("completions", [2, 8])
def test_teaching_is_the_chance_that_completions_do_not_agree(completions):
    a, b = np.array([1.0, 2.5, 9.0]), np.array([1.0, 6.0, 1.5])
    p = (np.arange(200_000) + 0.5) / 200_000
    density = p ** (a[:, None] - 1) * (1 - p) ** (b[:, None] - 1)
    disagree = 1 - p**completions - (1 - p) ** completions
    expected = (density * disagree).sum(1) / density.sum(1)
    assert teaching(a, b, completions) == pytest.approx(expected, abs=1e-5)
