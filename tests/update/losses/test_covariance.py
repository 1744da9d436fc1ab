"""Clip-Cov and KL-Cov (arXiv:2505.22617): what happens to the chosen tokens."""

import math

import pytest
import torch

from covey.update.losses.clip_cov import ClipCov
from covey.update.losses.clipped import Clip, Clipped
from covey.update.losses.kl_cov import KlCov
from tests.terms import gradient, terms

CHOSEN = torch.tensor([False, True, False])


def test_clip_cov_stops_the_chosen_tokens():
    t = terms([[0.1, -0.1], [0.5]], [1.0, 1.0], is_covariant=CHOSEN)
    losses, metrics = ClipCov(Clip())(t)
    plain, _ = Clipped(Clip())(t)
    assert losses.tolist() == [plain[0].item(), 0.0, plain[2].item()]
    assert gradient(losses, t)[1] == 0.0
    assert metrics["covariance/chosen_share"].value == pytest.approx(1 / 3)


def test_kl_cov_holds_the_chosen_tokens_and_clips_none():
    t = terms([[0.1, -0.1], [0.5]], [1.0, 1.0], is_covariant=CHOSEN)
    losses, _ = KlCov(2.0)(t)
    assert losses.tolist() == pytest.approx([-math.exp(0.1), -math.exp(-0.1) + 0.2, -math.exp(0.5)])
    assert gradient(losses, t) == pytest.approx([-math.exp(0.1), -math.exp(-0.1) - 2.0, -math.exp(0.5)])


def test_before_the_policy_moves_kl_cov_is_the_policy_gradient():
    t = terms([[0.0, 0.0], [0.0]], [1.0, -1.0], is_covariant=CHOSEN)
    losses, _ = KlCov(2.0)(t)
    assert gradient(losses, t) == pytest.approx([-1.0, -1.0, 1.0])
