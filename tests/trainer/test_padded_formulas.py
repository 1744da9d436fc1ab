"""Formulas on padded rows agree with those of the update on flat tokens."""

import pytest
import torch

from covey import GRPOTrainer
from covey.update.sampler_correction import off_policy_mask
from covey.update.token_selection import top_entropy
from tests.terms import terms


def test_the_highest_entropies_under_the_mask():
    """Ten values 0.1 to 1.0: the quantile 0.8 is 0.82, that of 0.5 is 0.55."""
    entropies = torch.arange(1, 13).view(2, 6) / 10
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    for threshold, kept in ((0.8, [0.9, 1.0]), (0.5, [0.6, 0.7, 0.8, 0.9, 1.0]), (1.0, [1.0])):
        chosen = GRPOTrainer.get_high_entropy_mask(None, entropies, mask, threshold)
        assert entropies[chosen].tolist() == pytest.approx(kept)
    assert not GRPOTrainer.get_high_entropy_mask(None, entropies, mask * 0, 0.5).any()
    [flat] = top_entropy([entropies.flatten()], [mask.flatten().bool()], 0.2, lambda arrays: [arrays])
    assert torch.equal(flat.view(2, 6), GRPOTrainer.get_high_entropy_mask(None, entropies, mask, 0.8))


def test_completions_that_drifted_are_left_out():
    logprobs = torch.tensor([[-2.0, -2.0], [-0.5, -0.5], [-2.0, -2.0]])
    advantages, mask = torch.tensor([[1.0], [-1.0], [-1.0]]), torch.ones(3, 2)
    kept = GRPOTrainer.get_off_policy_mask(advantages, logprobs, torch.zeros(3, 2), mask, 1.0)
    assert kept.tolist() == [[1.0], [1.0], [0.0]]
    padded = torch.tensor([[1.0, 0.0]] * 3)
    wild = torch.where(padded.bool(), logprobs, torch.tensor(1e4))
    assert torch.equal(
        GRPOTrainer.get_off_policy_mask(advantages, wild, torch.zeros(3, 2), padded, 1.0), kept
    )
    rows = logprobs.tolist()
    flat = terms([[0.0, 0.0]] * 3, advantages.flatten().tolist(), new=rows, sampled=[[0.0, 0.0]] * 3)
    assert off_policy_mask(flat, 1.0).view(3, 2).all(1).tolist() == [True, True, False]
