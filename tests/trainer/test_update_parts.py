"""Settings become the parts of the update."""

from typing import get_args

import pytest

from covey.trainer import parts
from covey.types import LossType
from covey.update import losses
from covey.update.losses import Cispo, Clip, Clipped, Vespo
from covey.update.reduction import Reduction
from covey.update.sampler_correction import SamplerCorrection
from covey.update.token_selection import TokenSelection
from covey.update.updater import KlPenalty, needs_every_row
from tests.update.steps import settings


def every_row(args, loss=None):
    return needs_every_row(
        parts.make_objective(args, loss), parts.make_selection(args, loss), parts.make_entropy_bonus(args)
    )


def test_every_loss_type_has_a_loss_and_every_loss_a_type():
    given = {"cispo": {"epsilon_high": 5.0}}
    made = {type(parts.make_loss(settings(loss_type=n, **given.get(n, {})))) for n in get_args(LossType)}
    assert made == {getattr(losses, name) for name in losses.__all__} - {Clip}


def test_the_defaults():
    objective = parts.make_objective(settings())
    assert objective.loss == Clipped(Clip(0.2, 0.2, None), "token")
    assert objective.correction == SamplerCorrection("token_truncate", 2.0, None)
    assert (objective.beta, objective.off_policy_threshold, objective.kl_estimator) == (0.0, None, "k3")
    assert parts.make_reduction(settings()) == Reduction("dapo", 8, "sequences")
    assert (
        parts.make_selection(settings()) == TokenSelection()
        and not parts.make_selection(settings()).is_needed
    )
    assert not parts.make_entropy_bonus(settings()).is_used
    assert not every_row(settings())


def test_the_estimator_is_the_one_whose_gradient_is_right_where_it_goes():
    in_loss = settings(beta=0.1)
    assert parts.make_objective(in_loss).kl_estimator == "k3" and parts.make_kl_penalty(in_loss) is None
    in_reward = settings(beta=0.1, kl_in_reward=True)
    assert parts.make_objective(in_reward).beta == 0.0
    assert parts.make_kl_penalty(in_reward) == KlPenalty(0.1, "k1")
    named = settings(beta=0.1, kl_in_reward=True, kl_estimator="k3")
    assert parts.make_kl_penalty(named) == KlPenalty(0.1, "k3")


def test_losses_that_compare_with_the_sampler_are_not_corrected_on_top():
    assert parts.make_objective(settings(loss_type="dppo")).correction is None
    vespo = parts.make_objective(settings(loss_type="vespo"))
    assert vespo.correction is None and vespo.loss.against_sampler
    off = parts.make_objective(settings(loss_type="vespo", importance_sampling_correction=False))
    assert off.loss == Vespo(against_sampler=False)


def test_the_second_moment_is_chosen_where_the_correction_uses_it():
    m2 = {"importance_sampling_mode": "token_m2"}
    assert parts.make_selection(settings(**m2)) == TokenSelection(second_moment=0.04)
    assert parts.make_selection(settings(**m2, importance_sampling_m2=0.1)).second_moment == 0.1
    assert parts.make_selection(settings(loss_type="grpo", **m2), lambda t: t.logprobs).second_moment == 0.04


def test_bounds_reach_the_loss():
    cispo = parts.make_objective(settings(loss_type="cispo", epsilon_high=5.0)).loss
    assert cispo == Cispo(0.2, 5.0, "absolute", "token")
    assert parts.make_objective(settings(epsilon=0.1)).loss.clip == Clip(0.1, 0.1)


@pytest.mark.parametrize(
    ("given", "is_needed"),
    [
        ({"beta": 0.1}, True),
        ({"beta": 0.1, "kl_in_reward": True}, False),
        ({"entropy_coef": 0.1}, True),
        ({"use_adaptive_entropy": True}, True),
        ({"top_entropy_quantile": 0.5}, True),
        ({"importance_sampling_mode": "token_m2"}, True),
        ({"loss_type": "dppo"}, True),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, False),
    ],
)
def test_when_rows_without_advantage_are_needed(given, is_needed):
    assert every_row(settings(**given)) is is_needed


def test_a_loss_of_your_own_gets_every_row_unless_it_says_otherwise():
    def own(terms):
        return -terms.advantages * terms.logprobs

    assert every_row(settings(), own)
    own.needs_every_row = False
    assert not every_row(settings(), own)
    assert every_row(settings(beta=0.1), own)
    assert parts.make_objective(settings(), own).loss is own
