"""VESPO (arXiv:2602.10693): the weight by the ratio of the whole completion."""

import math

import pytest
import torch

from covey.update.losses.vespo import Vespo, soft_weight
from tests.terms import gradient, tensor, terms


@pytest.mark.parametrize(
    ("log_w", "positive", "negative"),
    [(0.0, 1.0, 1.0), (0.4, 0.508915, 1.241538), (-0.4, 1.208089, None), (1.5, 0.000584, 0.085147)],
)
def test_weights(log_w, positive, negative):
    assert soft_weight(tensor(log_w), 2.0, 3.0).item() == pytest.approx(positive, abs=1e-6)
    if negative is not None:
        assert soft_weight(tensor(log_w), 3.0, 2.0).item() == pytest.approx(negative, abs=1e-6)


def test_tokens_share_the_weight_of_their_completion():
    # log w = 0.4 for both completions, (k, λ) by the sign of the advantage
    t = terms([[0.3, 0.1], [0.4]], [1.0, -1.0], new=[[-2.0, -1.0], [-0.5]])
    losses, _ = Vespo()(t)
    assert losses.tolist() == pytest.approx([0.508915 * 2, 0.508915, -1.241538 * 0.5], abs=1e-6)
    assert gradient(losses, t) == pytest.approx([-0.508915, -0.508915, 1.241538], abs=1e-6)


def test_compares_with_the_sampler_or_with_the_trainer():
    t = terms([[0.0]], [1.0], new=[[-1.0]], sampled=[[-1.4]])
    assert Vespo(against_sampler=True)(t)[0].item() == pytest.approx(0.508915, abs=1e-6)
    assert Vespo(against_sampler=False)(t)[0].item() == pytest.approx(1.0)


def test_far_apart_is_finite():
    for gap in (-1000.0, -50.0, 50.0, 1000.0):
        losses, _ = Vespo()(terms([[gap, gap]], [1.0]))
        assert torch.isfinite(losses).all()
    assert soft_weight(tensor(-1000.0), 2.0, 3.0).item() == pytest.approx(
        math.exp(3) * 1e-16, rel=1e-6, abs=0
    )
