"""The law of the cut: the gradient of an optimizer step does not depend on how it is cut.

Not on the size and number of the micro-batches, not on the order of the completions, not on the number of ranks, not on
whether rows that cannot contribute are computed: for every objective that claims it, with divergence, entropy bonus,
masks and weights.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from covey.config.choices import LOSS_TYPES
from covey.trainer.parts import make_loss
from tests.update.steps import make_samples, settings, step

SAMPLES = make_samples()
WHOLE = [[list(range(len(SAMPLES)))]]

OBJECTIVES = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
    "prompt_mean": {"loss_type": "prompt_mean"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05},
    "gspo_token": {"loss_type": "grpo", "importance_sampling_level": "sequence_token"},
    "luspo": {"loss_type": "luspo", "epsilon": 0.05},
    "gmpo": {"loss_type": "gmpo", "epsilon": 0.4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
    "cispo relative": {"loss_type": "cispo", "epsilon_high": 0.2, "cispo_bound": "relative"},
    "sapo": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo"},
    "dppo": {"loss_type": "dppo", "epsilon": 0.05, "dppo_kl_coef": 0.1},
    "clip_cov": {"loss_type": "clip_cov", "covariance_share": 0.2, "covariance_low": 0.01},
    "kl_cov": {"loss_type": "kl_cov", "covariance_share": 0.2},
}

TERMS = {
    "policy": {},
    "k3": {"beta": 0.3},
    "k3 alone": {"beta": 0.3, "use_bias_correction_kl": False},
    "k1": {"beta": 0.3, "kl_estimator": "k1"},
    "k2": {"beta": 0.3, "kl_estimator": "k2"},
    "entropy": {"entropy_coef": 0.2},
    "top entropy": {"top_entropy_quantile": 0.4},
    "off policy": {"off_policy_mask_threshold": 0.05},
    "sequence weights": {"importance_sampling_mode": "sequence_truncate", "importance_sampling_cap": 1.05},
    "geometric weights": {"importance_sampling_mode": "geometric_truncate", "importance_sampling_cap": 1.02},
    "second moment": {"importance_sampling_mode": "token_m2", "importance_sampling_m2": 0.002},
    "masked": {"mask_truncated_completions": True},
    "counted": {"mask_truncated_completions": True, "truncated_in_denominator": "tokens_and_sequences"},
    "not counted": {"mask_truncated_completions": True, "truncated_in_denominator": "none"},
    "everything": {
        "beta": 0.3,
        "entropy_coef": 0.2,
        "top_entropy_quantile": 0.4,
        "off_policy_mask_threshold": 0.05,
    },
}
WEIGHTED = ("sequence weights", "geometric weights", "second moment")
"""Terms that losses which compare with the sampler themselves do not take."""


def test_every_objective_is_here():
    assert {o["loss_type"] for o in OBJECTIVES.values()} == set(LOSS_TYPES) - {"bnpo"}


def close(values):
    return pytest.approx(values, rel=1e-6, abs=1e-9)  # the weights of the rows are float32


@st.composite
def cuts(draw):
    """The eight completions in any order, on one to three ranks with as many micro-batches each, of any sizes."""
    order = draw(st.permutations(range(len(SAMPLES))))
    ranks = draw(st.integers(1, 3))
    count = draw(st.integers(1, len(SAMPLES) // ranks))
    inner = draw(st.permutations(range(1, len(SAMPLES))))[: ranks * count - 1]
    bounds = [0, *sorted(inner), len(SAMPLES)]
    parts = [list(order[a:b]) for a, b in pairwise(bounds)]
    return [parts[rank * count : (rank + 1) * count] for rank in range(ranks)]


def combined(objective, terms):
    """Both sets of settings; None where they do not go together."""
    both = OBJECTIVES[objective] | TERMS[terms]
    corrected = LOSS_TYPES[both["loss_type"]].is_corrected
    return None if terms in WEIGHTED and not corrected else settings(**both)


GRID = [(o, t) for o in OBJECTIVES for t in TERMS if combined(o, t) is not None]


@pytest.mark.parametrize(("objective", "terms"), GRID, ids=lambda name: name)
@examples(max_examples=4, deadline=None)
@given(cuts())
def test_the_step_does_not_depend_on_the_cut(objective, terms, cut):
    configured = combined(objective, terms)
    loss, gradient, _ = step(configured, WHOLE, drops_rows=False)
    assert any(gradient), "two zeros are equal too"
    cut_loss, cut_gradient, _ = step(configured, cut)
    assert cut_gradient == close(gradient)
    assert cut_loss == close(loss)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_are_left_out_where_nothing_else_needs_them(objective):
    """Five of eight rows have an advantage, and one of them is truncated."""
    is_idle = not make_loss(settings(**OBJECTIVES[objective])).needs_every_row
    for terms in ("policy", "off policy", "masked", "k3", "entropy", "top entropy"):
        _, _, rows = step(combined(objective, terms), WHOLE)
        idle = 3 if is_idle and terms in ("policy", "off policy", "masked") else 0
        assert rows == 8 - idle - (terms == "masked"), "a masked row is never computed"


def test_bnpo_is_local_by_definition():
    configured = settings(loss_type="bnpo")
    whole, halves = step(configured, WHOLE), step(configured, [[[0, 1, 2, 3], [4, 5, 6, 7]]])
    assert halves[1] != close(whole[1])
    assert step(configured, [[[0, 1, 2, 3]], [[4, 5, 6, 7]]])[1] == close(halves[1]), (
        "ranks are micro-batches too"
    )


def test_a_loss_of_your_own_keeps_the_law():
    def centred(terms):
        return -terms.advantages * terms.logprobs + 0.1 * terms.logprobs**2

    for reduction in ("grpo", "dr_grpo", "dapo", "prompt_mean"):
        configured = settings(loss_type=reduction, beta=0.1)
        whole = step(configured, WHOLE, own=centred)
        cut = step(configured, [[[3, 1], [7]], [[0, 2, 5], [4, 6]]], own=centred)
        assert cut[1] == close(whole[1]) and whole[2] == cut[2] == 8
