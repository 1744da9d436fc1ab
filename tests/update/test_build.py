"""Settings become what the update works with."""

import pytest

from covey.update import build
from covey.update.losses.cispo import Cispo
from covey.update.losses.clipped import Clip, Clipped
from covey.update.losses.vespo import Vespo
from covey.update.reduction import Reduction
from covey.update.sampler_correction import SamplerCorrection
from covey.update.token_selection import TokenSelection
from tests.update.steps import settings


def test_the_defaults():
    objective = build.make_objective(settings())
    assert objective.loss == Clipped(Clip(0.2, 0.2, None), "token")
    assert objective.correction == SamplerCorrection("token_truncate", 2.0, None)
    assert (objective.beta, objective.off_policy_threshold, objective.kl_estimator) == (0.0, None, "k3")
    assert build.make_reduction(settings()) == Reduction("dapo", 8, "sequences")
    assert build.make_selection(settings()) == TokenSelection() and not build.make_selection(settings()).is_needed
    assert not build.make_entropy_bonus(settings()).is_used
    assert not build.needs_every_row(settings())


def test_the_estimator_is_the_one_whose_gradient_is_right_where_it_goes():
    assert build.kl_estimator(settings(beta=0.1)) == "k3"
    assert build.kl_estimator(settings(beta=0.1, kl_in_reward=True)) == "k1"
    assert build.kl_estimator(settings(beta=0.1, kl_in_reward=True, kl_estimator="k3")) == "k3"


def test_losses_that_compare_with_the_sampler_are_not_corrected_on_top():
    assert build.make_objective(settings(loss_type="dppo")).correction is None
    vespo = build.make_objective(settings(loss_type="vespo"))
    assert vespo.correction is None and vespo.loss.against_sampler
    off = build.make_objective(settings(loss_type="vespo", importance_sampling_correction=False))
    assert off.loss == Vespo(against_sampler=False)


def test_bounds_reach_the_loss():
    cispo = build.make_objective(settings(loss_type="cispo", epsilon_high=5.0)).loss
    assert cispo == Cispo(0.2, 5.0, "absolute", "token")
    assert build.make_objective(settings(epsilon=0.1)).loss.clip == Clip(0.1, 0.1)


@pytest.mark.parametrize(
    ("given", "is_needed"),
    [
        ({"beta": 0.1}, True),
        ({"beta": 0.1, "kl_in_reward": True}, False),
        ({"entropy_coef": 0.1}, True),
        ({"use_adaptive_entropy": True}, True),
        ({"top_entropy_quantile": 0.5}, True),
        ({"loss_type": "dppo"}, True),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, False),
    ],
)
def test_when_rows_without_advantage_are_needed(given, is_needed):
    assert build.needs_every_row(settings(**given)) is is_needed


def test_a_loss_of_your_own_gets_every_row_unless_it_says_otherwise():
    def own(terms):
        return -terms.advantages * terms.logprobs

    assert build.needs_every_row(settings(), own)
    own.needs_every_row = False
    assert not build.needs_every_row(settings(), own)
    assert build.needs_every_row(settings(beta=0.1), own)
    assert build.make_objective(settings(), own).loss is own
