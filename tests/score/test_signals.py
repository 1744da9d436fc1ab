"""A run that cannot learn says so once, with the likely reasons."""

import warnings

import pytest

from covey.errors import CoveyWarning
from covey.score.signals import Signals
from covey.types import ScoredGroup


def scored(group, *totals):
    return ScoredGroup(group, {}, totals, (0.0,) * len(totals))


def said(signals, groups, totals):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        signals.check([scored(g, *t) for g, t in zip(groups, totals, strict=True)], 4)
    return [str(w.message) for w in caught]


def test_no_spread_is_said_once(group):
    signals, groups = Signals(), [group("a", "b"), group("c", "d")]
    (message,) = said(signals, groups, [(-9.0, -9.0), (3.0, 3.0)])
    assert message.startswith("Step 5: No group has any spread")
    assert said(signals, groups, [(1.0, 1.0), (2.0, 2.0)]) == []


def test_one_group_with_spread_is_enough(group):
    assert said(Signals(), [group("a", "b"), group("c", "d")], [(1.0, 1.0), (0.0, 1.0)]) == []


def test_nothing_scored_and_everything_cut(group):
    with pytest.warns(CoveyWarning, match="No reward applied"):
        Signals().check([scored(group("a", "b"), None, None)], 0)
    (message,) = said(Signals(), [group("abc", "abc", truncated=(0, 1))], [(0.0, 1.0)])
    assert "hit the limit of 3 tokens" in message


def test_a_rank_without_groups_says_nothing():
    assert said(Signals(), [], []) == []
