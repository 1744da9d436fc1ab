"""Unequal draws: each prompt as often as its chance says, none twice that does not have to, and sums that are weighed are exact."""

import itertools

import numpy as np
import pytest

from covey.sample.unequal_draw import chances, drawn, generator_of, weights


class Given:
    """A generator whose numbers are told."""

    def __init__(self, order, start):
        self.order, self.start = order, start

    def permutation(self, values):
        return np.asarray(self.order) if isinstance(values, int) else values

    def random(self):
        return self.start


def test_each_prompt_is_drawn_as_often_as_its_chance_says():
    """Systematic sampling is exact for every order: integrated over its only random number."""
    chance = chances(np.array([0.0, 1.0, 2.0, 5.0, 0.5]), 2, 0.2)
    grid = 4000
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        counts = np.zeros(5)
        for start in range(grid):
            for place in drawn(chance, 2, Given(order, (start + 0.5) / grid)):
                counts[place] += 1 / grid
        assert counts == pytest.approx(chance, abs=2 / grid)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_no_prompt_comes_twice_where_there_are_enough(size):
    chance = chances(np.array([9.0, 1e-9, 3.0, 1.0, 0.0, 7.0]), size, 0.1)
    assert chance.sum() == pytest.approx(size) and chance.max() <= 1 + 1e-12
    for seed in range(50):
        places = drawn(chance, size, generator_of(seed))
        assert len(places) == size == len(set(places))


def test_with_too_few_prompts_all_come_alike():
    chance = chances(np.array([9.0, 0.0, 3.0]), 7, 0.1)
    assert chance == pytest.approx(7 / 3)
    assert sorted(np.bincount(drawn(chance, 7, generator_of(0)), minlength=3).tolist()) == [2, 2, 3]


def test_the_floor_bounds_chances_and_weights():
    values = np.zeros(50)
    values[7] = 1.0
    chance = chances(values, 4, 0.2)
    assert chance[7] == 1.0
    assert chance.min() >= 0.2 * 4 / 50
    assert weights(chance, 4).max() <= 1 / 0.2
    assert chances(np.zeros(5), 2, 0.2) == pytest.approx(0.4)


def test_a_sum_that_is_weighed_is_on_average_that_of_equal_chances():
    """Over every order of four prompts, and the random start in cells between all breakpoints: exact, no Monte Carlo."""
    chance = chances(np.array([0.1, 4.0, 1.0, 2.0]), 2, 0.15)
    gradient = np.array([[1.0, -2.0], [0.3, 5.0], [-4.0, 0.0], [2.0, 2.0]])
    mean, unweighed = np.zeros(2), np.zeros(2)
    orders = list(itertools.permutations(range(4)))
    for order in orders:
        cuts = np.unique(np.concatenate([[0.0, 1.0], np.cumsum(chance[list(order)]) % 1.0]))
        for low, high in itertools.pairwise(cuts):
            places = drawn(chance, 2, Given(order, (low + high) / 2))
            share = (high - low) / len(orders)
            mean += share * (weights(chance, 2)[places, None] * gradient[places]).mean(0)
            unweighed += share * gradient[places].mean(0)
    assert mean == pytest.approx(gradient.mean(0), abs=1e-12)
    assert unweighed != pytest.approx(gradient.mean(0), abs=0.1)
