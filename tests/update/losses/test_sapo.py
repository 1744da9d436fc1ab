"""SAPO (arXiv:2511.20347): value and slope of the gate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.update.losses.sapo import Sapo, soft_gate
from tests.terms import gradient, tensor, terms


@pytest.mark.parametrize(
    ("r", "advantage", "gate", "slope"),
    [
        (1.0, 1.0, 2.0, 1.0),
        (1.5, 1.0, 2.489837, 0.940015),
        (0.5, 1.0, 1.510163, 0.940015),
        (1.0, -1.0, 1.904762, 1.0),
        (1.5, -1.0, 2.393585, 0.934140),
    ],
)
def test_value_and_slope(r, advantage, gate, slope):
    t = terms([[math.log(r)]], [advantage])
    losses, _ = Sapo()(t)
    assert losses.item() == pytest.approx(-advantage * gate, abs=1e-6)
    assert gradient(losses, t) == pytest.approx([-advantage * slope * r], abs=1e-6)


def test_temperatures_are_those_of_the_sign():
    losses, _ = Sapo(2.0, 4.0)(terms([[0.0], [0.0]], [1.0, -1.0]))
    assert losses.tolist() == pytest.approx([-1.0, 0.5])


@given(st.floats(0.01, 20), st.floats(0.1, 10))
def test_the_gate_is_bounded(r, temperature):
    assert 0 <= soft_gate(tensor(r), tensor(temperature)).item() <= 4 / temperature
