"""Metrics add up: any way of cutting the samples gives the same number, and nothing gives NaN."""

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.metrics import Evenness, Largest, Ledger, Mean, Smallest, Spread, Total, merge

numbers = st.lists(st.floats(-1e6, 1e6), max_size=20)


@given(numbers, st.integers(0, 20))
def test_cutting_the_samples_changes_no_number(values, at):
    left, right = values[:at], values[at:]
    for kind in (Mean, Spread, Largest, Smallest):
        whole, parts = kind.of(values).value, kind.of(left).merge(kind.of(right)).value
        if whole is None:
            assert parts is None
        else:
            assert parts == pytest.approx(whole, rel=1e-9, abs=1e-6)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_spread_is_the_sample_deviation_of_the_standard_library(values):
    assert Spread.of(values).value == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)


def test_a_mean_of_unequal_parts_is_not_a_mean_of_means():
    assert merge({"x": Mean.of([1, 1, 1])}, {"x": Mean.of([0])})["x"].value == 0.75


def test_what_nothing_applied_to_is_logged_as_its_last_number_and_never_as_nan():
    ledger = Ledger()
    ledger.add({"a": Mean.of([2.0]), "b": Mean.of([])})
    assert ledger.reduce([ledger.drain()]) == {"a": 2.0, "b": 0.0}
    ledger.add({"b": Mean.of([5.0])})
    assert ledger.reduce([ledger.drain()]) == {"a": 2.0, "b": 5.0}
    ledger.add({"a": Mean(math.nan)})
    assert ledger.reduce([ledger.drain()]) == {"a": 2.0, "b": 5.0}


def test_parts_of_all_ranks_are_reduced_together():
    assert Ledger().reduce([{"a": Mean.of([1, 1]), "n": Total(2)}, {"a": Mean.of([4]), "n": Total(1)}]) == {
        "a": 2.0,
        "n": 3.0,
    }


def test_a_ledger_that_is_saved_in_between_logs_the_same_numbers():
    def feed(ledger):
        ledger.add({"a": Mean.of([1.0, 2.0]), "s": Spread.of([1.0, 5.0]), "m": Largest.of([3.0])})
        ledger.add({"e": Evenness(2.0, 3.0, 5.0)})

    one, two = Ledger(), Ledger()
    feed(one)
    two.restore(json.loads(json.dumps(one.state())))
    feed(one)
    feed(two)
    assert one.reduce([one.drain()]) == two.reduce([two.drain()])
