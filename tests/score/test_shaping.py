"""What a truncated completion is worth."""

import numpy as np

from covey.score.shaping import Shaping, shaped_totals

NAN = float("nan")
TOTALS, CUT = [1.0, 0.5, NAN, 0.0], [False, True, True, False]


def shaped(shaping, penalties=None):
    return np.nan_to_num(shaped_totals(TOTALS, CUT, shaping, penalties), nan=99).tolist()


def test_nothing_changes_by_itself():
    assert shaped(Shaping()) == [1.0, 0.5, 99, 0.0]


def test_a_reward_of_its_own_where_something_scored_it():
    assert shaped(Shaping(truncated_reward=-1.0)) == [1.0, -1.0, 99, 0.0]


def test_out_of_the_baseline_is_as_if_nothing_had_scored_it():
    assert shaped(Shaping(truncated_in_baseline=False)) == [1.0, 99, 99, 0.0]


def test_penalties_come_off_last():
    assert shaped(Shaping(truncated_reward=-1.0), [0.25, 0.5, 1.0, 0.0]) == [0.75, -1.5, 99, 0.0]
