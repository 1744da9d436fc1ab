"""CISPO (arXiv:2506.13585): both conventions of the bound, and a gradient for every token."""

import math

import pytest

from covey.update.losses.cispo import Cispo
from tests.terms import gradient, terms


@pytest.mark.parametrize(
    ("r", "bound", "high", "weight", "value"),
    [
        (7.0, "absolute", 5.0, 5.0, 10.0),
        (7.0, "relative", 5.0, 6.0, 12.0),
        (0.3, "absolute", 5.0, 0.3, 0.6),
        (0.3, "relative", 5.0, 0.8, 1.6),
    ],
)
def test_two_conventions(r, bound, high, weight, value):
    t = terms([[math.log(r)]], [1.0], new=[[-2.0]])
    losses, metrics = Cispo(0.2, high, bound)(t)
    assert losses.item() == pytest.approx(value)
    assert gradient(losses, t) == pytest.approx([-weight])
    assert metrics["cispo_clip_ratio"].value == float(not math.isclose(weight, r))


def test_the_weight_of_a_sequence():
    t = terms([[0.2, -0.1, 0.05, 0.25]], [-1.0])
    losses, _ = Cispo(0.2, 5.0, "absolute", "sequence")(t)
    assert gradient(losses, t) == pytest.approx([1.105171] * 4, abs=1e-6)
