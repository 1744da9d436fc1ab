"""The entropy bonus: its sign and weight in the loss, and a coefficient that follows a target (arXiv:2505.22312)."""

import json
import math

import pytest
import torch

from covey.metrics import Mean
from covey.update.entropy import Adaptation, EntropyBonus
from covey.update.losses.clipped import Clipped
from covey.update.objective import Objective
from tests.ranks import alone
from tests.terms import terms

pytestmark = pytest.mark.any_version


def test_the_bonus_is_the_entropy_with_the_weights_of_the_loss():
    logits = torch.zeros(2, 4, dtype=torch.float64).requires_grad_()
    p = torch.softmax(logits, -1)
    entropy = -(p * p.log()).sum(-1)
    t = terms([[0.0, 0.0]], [0.0], weights=[0.5], entropy=entropy)
    loss, metrics = Objective(Clipped())(t, entropy_coef=0.1)
    # a uniform choice among four: 1.386294 nats
    assert loss.item() == pytest.approx(-0.1 * math.log(4))
    assert metrics["entropy"].value == pytest.approx(1.386294, abs=1e-6)
    plain, _ = Objective(Clipped())(t)
    assert plain.item() == 0.0


def test_the_bonus_pushes_towards_a_flatter_distribution():
    logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64).requires_grad_()
    p = torch.softmax(logits, -1)
    loss, _ = Objective(Clipped())(terms([[0.0]], [0.0], entropy=-(p * p.log()).sum(-1)), entropy_coef=1.0)
    loss.backward()
    assert logits.grad[0, 0] > 0 > logits.grad[0, 1]


def test_a_fixed_coefficient_stays():
    bonus = EntropyBonus(0.01)
    bonus.observe(Mean(5.0, 1.0))
    bonus.next_step(alone)
    assert bonus.present == 0.01 and bonus.is_used
    assert not EntropyBonus(0.0).is_used


def steps(bonus, entropies):
    given = []
    for entropy in entropies:
        bonus.observe(Mean(entropy * 10, 10))
        bonus.next_step(alone)
        given.append((round(bonus.coef, 6), bonus.present))
    return given


def test_the_coefficient_follows_the_entropy():
    bonus = EntropyBonus(0.0, Adaptation(target=0.2, delta=0.005))
    assert bonus.present == 0.0 and bonus.is_used
    assert steps(bonus, [0.1, 0.2, 0.3, 0.1]) == [
        (0.005, 0.005),
        (0.010, 0.010),
        (0.005, 0.0),  # above the target: smaller, and not given
        (0.010, 0.010),
    ]


def test_the_coefficient_stays_within_its_bounds():
    bonus = EntropyBonus(0.01, Adaptation(0.2, 0.05, least=0.005, most=0.08))
    assert [c for c, _ in steps(bonus, [0.0, 0.0, 0.0])] == [0.06, 0.08, 0.08]
    assert [c for c, _ in steps(bonus, [9.0, 9.0, 9.0])] == [0.03, 0.005, 0.005]


def test_the_mean_is_that_of_the_tokens_of_every_micro_batch_and_rank():
    # 1 token of 1.0 here, 9 of 0.1 on the other rank: mean 0.19, below the target
    bonus = EntropyBonus(0.0, Adaptation(target=0.2))
    bonus.observe(Mean(1.0, 1))
    bonus.next_step(lambda own: [own, Mean(0.9, 9)])
    assert bonus.present == 0.005
    # nothing seen (the first step, or an empty one): nothing moves
    bonus.next_step(alone)
    assert bonus.present == 0.005


def test_a_resumed_bonus_goes_on_alike():
    bonus = EntropyBonus(0.0, Adaptation())
    steps(bonus, [0.1, 0.3])
    bonus.observe(Mean(0.5, 10))
    resumed = EntropyBonus(0.0, Adaptation())
    resumed.restore(json.loads(json.dumps(bonus.state())))
    for b in (bonus, resumed):
        b.next_step(alone)
    assert (resumed.coef, resumed.present) == (bonus.coef, bonus.present) == (0.005, 0.005)
