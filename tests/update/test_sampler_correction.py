"""Weights for a sampler that differs from the trainer: worked numbers, exactness, and what is left out."""

import math
from typing import get_args

import pytest
import torch

from covey.metrics import merge
from covey.types import CorrectionMode
from covey.update.losses.clipped import Clipped
from covey.update.objective import Objective
from covey.update.sampler_correction import (
    SamplerCorrection,
    gap_metrics,
    importance_weights,
    off_policy_mask,
    weight_metrics,
)
from tests.terms import terms

pytestmark = pytest.mark.any_version

# o - b; weights 1, 3.320117, 0.449329; product 1.491825
GAPS = [0.0, 1.2, -0.8]


def gapped(gaps=GAPS, advantage=1.0, **kwargs):
    """One completion before the first update (l = o = -1) whose sampler reported o - gap."""
    return terms([[0.0] * len(gaps)], [advantage], sampled=[[-1.0 - g for g in gaps]], **kwargs)


@pytest.mark.parametrize(
    ("mode", "cap", "floor", "weights"),
    [
        ("token_truncate", 2.0, None, [1, 2, 0.449329]),
        ("token_truncate", None, None, [1, 3.320117, 0.449329]),
        ("token_truncate", 2.0, 0.5, [1, 2, 0.5]),
        ("token_mask", 3.0, None, [1, 0, 0.449329]),
        ("token_mask", 5.0, 0.5, [1, 3.320117, 0]),  # IcePop
        ("sequence_truncate", 2.0, None, [1.491825] * 3),
        ("sequence_truncate", 1.2, None, [1.2] * 3),
        ("sequence_mask", 3.0, None, [1.491825] * 3),
        ("sequence_mask", 1.2, None, [0] * 3),
        # geometric mean: exp(0.4 / 3)
        ("geometric_truncate", 2.0, None, [1.142631] * 3),
        ("geometric_truncate", 1.1, None, [1.1] * 3),
        ("geometric_mask", 1.2, None, [1.142631] * 3),
        ("geometric_mask", 1.1, None, [0] * 3),
        ("geometric_mask", None, 1.0, [1.142631] * 3),
    ],
)
def test_weights(mode, cap, floor, weights):
    got = importance_weights(gapped(), SamplerCorrection(mode, cap, floor))
    assert got.tolist() == pytest.approx(weights, abs=1e-6)
    assert not got.requires_grad


@pytest.mark.parametrize(
    ("correction", "loss"),
    [(SamplerCorrection(cap=2.0), -1.149776), (SamplerCorrection("sequence_mask", 3.0), -1.491825)],
)
def test_the_token_mean_of_a_corrected_loss(correction, loss):
    objective = Objective(Clipped(), correction)
    got, metrics = objective(gapped(weights=[1 / 3]))
    assert got.item() == pytest.approx(loss, abs=1e-6)
    assert metrics["sampling/logp_gap/mean"].value == pytest.approx(2 / 3)
    assert metrics["sampling/logp_gap/max"].value == pytest.approx(1.2)


def test_rounding_is_exactly_one():
    for mode in get_args(CorrectionMode):
        assert importance_weights(gapped([3e-4, -3e-4, 4e-4]), SamplerCorrection(mode)).tolist() == [1.0] * 3
    # many small gaps of one sign are no rounding: exp(2.5) after 5,000 tokens
    drifted = importance_weights(gapped([5e-4] * 5000), SamplerCorrection("sequence_truncate", None))
    assert drifted[0].item() == pytest.approx(math.exp(2.5))
    # and their geometric mean is one again
    assert importance_weights(gapped([5e-4] * 5000), SamplerCorrection("geometric_mask", 1.0001))[0] == 1


def test_a_geometric_mean_does_not_see_the_length_and_a_product_does():
    short, long = ([0.1, 0.3] * n for n in (1, 50))
    for mode, differs in (("geometric_truncate", False), ("sequence_truncate", True)):
        found = [
            importance_weights(gapped(g), SamplerCorrection(mode, None))[0].item() for g in (short, long)
        ]
        assert (found[0] != pytest.approx(found[1])) is differs


def test_each_completion_has_its_own_mean():
    t = terms([[0.0] * 2, [0.0]], [1.0, 1.0], sampled=[[-1.4, -1.2], [-0.5]])
    found = importance_weights(t, SamplerCorrection("geometric_truncate", None))
    assert found.tolist() == pytest.approx([math.exp(0.3)] * 2 + [math.exp(-0.5)])


def test_tokens_that_are_not_near_have_no_weight_and_the_others_are_bounded():
    t = gapped(is_near=torch.tensor([True, True, False]))
    found = importance_weights(t, SamplerCorrection("token_m2", 2.0))
    assert found.tolist() == pytest.approx([1, 2, 0])
    loss, metrics = Objective(Clipped(), SamplerCorrection("token_m2", 2.0), beta=0.1)(
        gapped(is_near=torch.tensor([True, True, False]), weights=[1 / 3], reference=[[-1.3] * 3])
    )
    k3 = math.exp(-0.3) + 0.3 - 1
    assert loss.item() == pytest.approx(
        -3 / 3 + 0.1 * k3
    )  # the denominator stays, and the divergence sees all
    assert metrics["sampling/masked_share"].value == pytest.approx(1 / 3)
    assert metrics["sampling/capped_share"].value == pytest.approx(1 / 3)


def test_weights_do_not_touch_the_divergence():
    objective = Objective(Clipped(), SamplerCorrection(cap=2.0), beta=0.5)
    zero = gapped(advantage=0.0, reference=[[-1.3] * 3])
    got, _ = objective(zero)
    k3 = math.exp(-0.3) + 0.3 - 1
    assert got.item() == pytest.approx(3 * 0.5 * k3)


def test_weight_metrics():
    values = {n: m.value for n, m in weight_metrics(torch.tensor([1.0, 0.0, 2.0]), 2.0).items()}
    assert values == {
        "sampling/importance_weight/mean": 1.0,
        "sampling/importance_weight/min": 0.0,
        "sampling/importance_weight/max": 2.0,
        "sampling/masked_share": 1 / 3,
        "sampling/capped_share": 1 / 3,
        "sampling/ess": 9 / (3 * 5),
    }
    assert all(m.value is None for m in weight_metrics(torch.zeros(0), 2.0).values())
    assert weight_metrics(torch.ones(3), None)["sampling/capped_share"].value == 0
    # A cap that float32 does not hold exactly is reached all the same.
    bounded = importance_weights(gapped(), SamplerCorrection(cap=1.1)).float()
    assert weight_metrics(bounded, 1.1)["sampling/capped_share"].value == pytest.approx(1 / 3)


def test_the_effective_sample_is_that_of_all_parts_together():
    values = torch.tensor([1.0, 1.0, 0.5, 2.0, 0.0])
    parts = [weight_metrics(v, 2.0)["sampling/ess"] for v in (values[:2], values[2:], values[:0])]
    whole = merge({"ess": parts[0]}, {"ess": parts[1]}, {"ess": parts[2]})["ess"]
    assert whole.value == pytest.approx(4.5**2 / (5 * 6.25))
    assert parts[0].value == 1
    assert weight_metrics(torch.zeros(3), 2.0)["sampling/ess"].value == 0
    assert weight_metrics(torch.tensor([0.0, 4.0]), None)["sampling/ess"].value == 0.5
    assert gap_metrics(terms([[]], [1.0]))["sampling/logp_gap/max"].value is None


@pytest.mark.parametrize(
    ("advantage", "threshold", "kept"), [(-1.0, 0.5, False), (1.0, 0.5, True), (-1.0, 0.7, True)]
)
def test_off_policy_completions_are_left_out(advantage, threshold, kept):
    # b - l = [0.9, 0.2, 0.7]: mean 0.6
    t = terms([[0.0] * 3, [0.0]], [advantage, -1.0], sampled=[[-0.1, -0.8, -0.3], [-1.0]])
    assert off_policy_mask(t, threshold).tolist() == [kept] * 3 + [True]
    loss, metrics = Objective(Clipped(), off_policy_threshold=threshold)(t)
    assert loss.item() == pytest.approx((-3 * advantage if kept else 0.0) + 1.0)
    assert metrics["sampling/off_policy_share"].value == (0.0 if kept else 0.75)
