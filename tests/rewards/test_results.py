"""Whatever converts to a finite float is a number, whatever holds one per completion in order is a result; the rest is refused by name."""

import collections
import decimal
import fractions
import itertools
import math

import numpy as np
import pandas
import pytest
import torch

from covey.errors import RewardError
from covey.rewards import Failure, Mixture, RewardBatch, reward
from covey.rewards.results import shown

VALUES = [0.25, 1.0, -2.0]
BATCH = RewardBatch(prompts=["p"] * 3, completions=["a", "b", "c"])


class Floats:
    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


def scored(result, **options):
    return Mixture(reward(lambda completions: result, name="r", **options)).score(BATCH).scores["r"]


NUMBERS = {
    "fractions": fractions.Fraction,
    "decimals": lambda v: decimal.Decimal(str(v)),
    "tensors": torch.tensor,
    "tensors of one element": lambda v: torch.tensor([v]),
    "tensors with a gradient": lambda v: torch.tensor([[v]], requires_grad=True),
    "bfloat16": lambda v: torch.tensor(v, dtype=torch.bfloat16),
    "numpy numbers": np.float32,
    "arrays": np.array,
    "arrays of one element": lambda v: np.array([v]),
    "objects with __float__": Floats,
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_whatever_converts_to_a_float_is_a_number(kind):
    assert [s.value for s in scored([NUMBERS[kind](v) for v in VALUES])] == VALUES


def test_symbols_are_numbers_where_they_have_a_value():
    sympy = pytest.importorskip("sympy")
    assert [s.value for s in scored([sympy.Float(v) for v in VALUES])] == VALUES
    with pytest.raises(RewardError, match="for completion 0"):
        scored([sympy.Symbol("x")] * 3)


def test_booleans_and_integers_are_numbers():
    assert [s.value for s in scored([True, np.bool_(False), np.int64(3)])] == [1.0, 0.0, 3.0]


CONTAINERS = {
    "tuple": tuple,
    "map": lambda v: map(float, v),
    "generator": lambda v: (x for x in v),
    "values of a dictionary": lambda v: dict(enumerate(v)).values(),
    "deque": collections.deque,
    "array": np.array,
    "tensor": torch.tensor,
    "column": lambda v: torch.tensor(v)[:, None],
    "array with one column": lambda v: np.array(v)[:, None],
    "series": pandas.Series,
}


@pytest.mark.parametrize("where", ["inline", "process"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_whatever_holds_one_number_per_completion_is_a_result(kind, where):
    if where == "process" and kind not in ("map", "column", "series"):
        pytest.skip("one of each sort is enough there")
    make = CONTAINERS[kind]
    part = reward(lambda completions: make([0.25, 1.0, -2.0]), where=where, name="r")
    assert [s.value for s in Mixture(part).score(BATCH).scores["r"]] == VALUES


def test_a_range_is_a_result_and_what_never_ends_is_read_only_so_far():
    assert [s.value for s in scored(range(3))] == [0.0, 1.0, 2.0]
    with pytest.raises(RewardError, match="returned 4 values for 3 completions"):
        scored(itertools.repeat(1.0))


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, decimal.Decimal("NaN"), 10**400, torch.tensor([math.nan])]
)
def test_what_is_not_finite_is_a_failure_and_no_number(value):
    assert [s.status for s in scored([value, 1.0, Failure("why")])] == ["failed", "value", "failed"]
    assert scored([value, 1.0, Failure("why")])[2].error == "why"


@pytest.mark.parametrize(
    "value",
    [
        "1",
        b"1",
        [1.0],
        {"reward": 1.0},
        (1.0, "why"),
        {1.0},
        1j,
        object(),
        torch.ones(2),
        np.array(["1"]),
        pandas.NA,
    ],
)
def test_what_is_no_number_is_refused_with_its_completion(value):
    with pytest.raises(RewardError, match=r"'r' returned .* for completion 1\. Return a number") as error:
        scored([1.0, value, 1.0])
    assert ("log_extra" in str(error.value)) == isinstance(value, str | bytes | list | dict | tuple | set)


@pytest.mark.parametrize(
    "result",
    [
        1.0,
        None,
        "abc",
        b"abc",
        {1.0, 2.0, 3.0},
        dict.fromkeys("abc", 1.0),
        torch.ones(3, 2),
        torch.tensor(1.0),
        np.ones((1, 3)),
    ],
)
def test_what_holds_no_number_per_completion_is_refused(result):
    with pytest.raises(
        RewardError, match=r"'r' returned .* for 3 completions\. Return a list with one number"
    ):
        scored(result)


def test_numbers_beside_something_else_are_pointed_to_log_extra():
    with pytest.raises(RewardError, match=r"returned 2 values for 3 completions.*log_extra"):
        scored(([1.0] * 3, ["why"] * 3))


def test_what_cannot_be_shown_is_named_by_its_type():
    assert shown([10**5000]) == "list"
