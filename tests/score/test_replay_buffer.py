"""The buffer of groups that may be trained on again: who stays, who is drawn, what it weighs."""

import math

import numpy as np
import pytest

from covey.score.replay_buffer import ReplayBuffer, effective_share, is_informative, spread_places, weighed
from covey.types import Completion, Group, Prompt, ScoredGroup


def scored(advantages, row=0, turns=None):
    completions = tuple(Completion((1,), (-1.0,), "", "stop") for _ in advantages)
    group = Group(Prompt("say", (1,), row=row, seed_key=(row, 0)), completions)
    return ScoredGroup(group, {}, (1.0,) * len(advantages), tuple(advantages), turn_advantages=turns)


@pytest.mark.parametrize(
    ("weights", "share"),
    [
        ([1, 1, 1, 1], 1.0),
        ([7, 7], 1.0),  # a common factor does not count
        ([1, 2], 0.9),  # 3² / (2 · 5)
        ([1, 1, 1, 9], 144 / (4 * 84)),
        ([1, 0, 0, 0], 0.25),
        ([3, 1, 0, 0], 16 / (4 * 10)),
    ],
)
def test_the_effective_sample_size_by_hand(weights, share):
    """Kish (1965), section 11.7: (Σw)² / (n Σw²)."""
    gaps = [math.log(w) if w else -math.inf for w in weights]
    assert effective_share(gaps) == pytest.approx(share)
    assert effective_share([g - 2000 for g in gaps]) == pytest.approx(
        share
    )  # no weight of a long one is lost to 0


def test_a_group_teaches_where_any_completion_or_turn_has_an_advantage():
    assert is_informative(scored([1.0, -1.0])) and is_informative(scored([0.0, 1.0, -1.0]))
    assert not is_informative(scored([0.0, 0.0]))
    assert is_informative(scored([0.0, 0.0], turns=((0.0, 0.5), (0.0, -0.5))))


def test_what_is_drawn_weighs_the_share_of_groups_that_taught_something():
    buffer = ReplayBuffer(2)
    assert buffer.share == 0.0
    buffer.keep(0, 4, [1], {1: scored([1.0, -1.0])})
    buffer.keep(1, 4, [0, 2], {})
    assert buffer.share == 3 / 8
    buffer.drop([(0, 1)])
    assert buffer.share == 3 / 8  # of what was sampled, whoever is still there
    assert buffer.draw(2, 9, np.random.default_rng(0)) and not buffer.held([(0, 1)])
    buffer.draw(3, 9, np.random.default_rng(0))
    assert buffer.share == 2 / 4  # rollout 0 has left


def test_groups_stay_for_their_age_and_none_is_drawn_twice():
    buffer = ReplayBuffer(2)
    for number in range(4):
        buffer.keep(number, 3, [0, 2], {0: scored([1.0, -1.0], row=number)})
    keys = buffer.draw(4, 9, np.random.default_rng(0))
    assert sorted(keys) == [(2, 0), (2, 2), (3, 0), (3, 2)]
    assert set(buffer.held(keys)) == {(2, 0), (3, 0)}  # the others lie on another process
    assert buffer.draw(4, 3, np.random.default_rng(1)) != buffer.draw(4, 3, np.random.default_rng(2))


def test_all_are_drawn_alike():
    buffer, counts = ReplayBuffer(3), np.zeros(6)
    for number, places in enumerate([[0], [0, 1, 2], [1, 3]]):
        buffer.keep(number, 4, places, {})
    order = {key: n for n, key in enumerate(buffer.draw(3, 6, np.random.default_rng(0)))}
    for seed in range(3000):
        for key in buffer.draw(3, 2, np.random.default_rng(seed)):
            counts[order[key]] += 1
    assert counts / 3000 == pytest.approx(np.full(6, 1 / 3), abs=0.05)


def test_advantages_are_scaled_and_the_prompt_is_told_from_a_fresh_one():
    again = weighed(scored([2.0, -2.0], row=5, turns=((1.0,), (-1.0,))), 0.25, 7)
    assert again.advantages == (0.5, -0.5) and again.turn_advantages == ((0.25,), (-0.25,))
    assert again.group.prompt.seed_key == (5, 0, 7)
    assert again.totals == (1.0, 1.0)


@pytest.mark.parametrize(
    ("count", "shift", "places"),
    [
        (1, 7, [7]),
        (2, 0, [0, 4]),
        (2, 5, [1, 5]),
        (3, 0, [0, 2, 5]),
        (4, 1, [1, 3, 5, 7]),
        (0, 3, []),
    ],
)
def test_places_lie_far_apart(count, shift, places):
    assert spread_places(count, 8, shift) == places
