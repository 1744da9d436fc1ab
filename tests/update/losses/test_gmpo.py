"""GMPO (arXiv:2507.20673): the exponential of the mean of log-ratios that are clipped on one side."""

import math

import pytest

from covey.update.losses.clipped import Clip
from covey.update.losses.gmpo import Gmpo, one_sided
from tests.terms import gradient, tensor, terms

LOSS = Gmpo(Clip(0.4, 0.4))


@pytest.mark.parametrize(("advantage", "mean_ratio"), [(1.0, 1.142631), (-1.0, 1.221403)])
def test_three_tokens(advantage, mean_ratio):
    losses, _ = LOSS(terms([[0.6, -0.1, 0.1]], [advantage]))
    assert losses.tolist() == pytest.approx([-advantage * mean_ratio] * 3, abs=1e-6)


def test_a_clipped_token_has_no_gradient_and_the_others_share_it():
    t = terms([[0.6, -0.1, 0.1]], [1.0])
    losses, metrics = LOSS(t)
    assert gradient(losses, t) == pytest.approx([0.0, -1.142631, -1.142631], abs=1e-6)
    assert metrics["clip_ratio/high_mean"].value == pytest.approx(1 / 3)


def test_shares_of_clipped_tokens_are_counted_at_the_bounds_of_the_log_ratio():
    # -0.45 is below -0.4 and above log(1 - 0.4); 0.38 is above log(1 + 0.4) and below 0.4
    _, metrics = LOSS(terms([[-0.3, -0.45], [0.38, 0.45]], [-1.0, 1.0]))
    assert metrics["clip_ratio/low_mean"].value == metrics["clip_ratio/high_mean"].value == 0.25


def test_the_clip_is_on_the_side_of_the_advantage():
    gaps = tensor(0.6, -0.6, 0.6, -0.6)
    assert one_sided(gaps, tensor(1.0, 1.0, -1.0, -1.0), 0.3, 0.4).tolist() == [0.4, -0.6, 0.6, -0.3]


def test_at_the_start_it_is_the_policy_gradient():
    t = terms([[0.0, 0.0]], [2.0])
    losses, _ = LOSS(t)
    assert gradient(losses, t) == pytest.approx([-2.0, -2.0])
    assert math.isclose(losses[0].item(), -2.0)
