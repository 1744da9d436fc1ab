"""DPPO (arXiv:2602.04879): tokens are masked by the difference of probabilities."""

import math

import pytest

from covey.update.losses.clipped import Clip
from covey.update.losses.dppo import Dppo
from tests.terms import gradient, terms


def token(p, b, advantage):
    return terms([[0.0]], [advantage], new=[[math.log(p)]], sampled=[[math.log(b)]])


@pytest.mark.parametrize(
    ("p", "b", "advantage", "ratio"),
    [
        (0.9, 0.6, 1.0, None),  # 0.3 up, and the advantage pushes up: masked
        (0.9, 0.6, -1.0, 1.5),
        (0.3, 0.6, -1.0, None),
        (0.3, 0.6, 1.0, 0.5),
        (2e-4, 1e-4, 1.0, 2.0),  # doubled, and hardly moved
    ],
)
def test_masked_by_the_difference(p, b, advantage, ratio):
    t = token(p, b, advantage)
    losses, metrics = Dppo(Clip(), kl_coef=0.0)(t)
    expected = 0.0 if ratio is None else -advantage * ratio
    assert losses.item() == pytest.approx(expected)
    assert gradient(losses, t) == pytest.approx([expected])
    assert metrics["dppo/masked_share"].value == float(ratio is None)


def test_every_token_is_held_near_the_sampler():
    for advantage in (1.0, 0.0):
        t = token(0.9, 0.6, advantage)  # masked, or of no advantage
        losses, _ = Dppo(kl_coef=1e-3)(t)
        assert losses.item() == pytest.approx(1e-3 * math.log(1.5) ** 2)
        assert gradient(losses, t) == pytest.approx([2e-3 * math.log(1.5)])


def test_bounds_are_those_of_the_sign():
    clip = Clip(low=0.05, high=0.5)
    assert Dppo(clip, 0.0)(token(0.9, 0.6, 1.0))[0].item() == pytest.approx(-1.5)
    assert Dppo(clip, 0.0)(token(0.5, 0.6, -1.0))[0].item() == 0.0
