"""Choices over a whole optimizer step: worked numbers, and that they do not depend on how the step is cut."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.update.losses.clipped import Clipped
from covey.update.micro_batch import micro_batch
from covey.update.objective import Objective
from covey.update.token_selection import TokenSelection, high_covariance, top_entropy, within_moment
from tests.ranks import alone, on_ranks
from tests.terms import tensor, terms

pytestmark = pytest.mark.any_version


def yes(values):
    return torch.ones(len(values), dtype=torch.bool)


def test_top_entropy_tokens():
    entropies = [tensor(0.1, 0.9, 0.3), tensor(0.7, 0.2)]
    masks = [yes(e) for e in entropies]
    chosen = [c.tolist() for c in top_entropy(entropies, masks, 0.4, alone)]
    assert chosen == [[False, True, False], [True, False]]
    assert all(c.all() for c in top_entropy(entropies, masks, 1.0, alone))


def test_tokens_that_tie_up_to_rounding_are_chosen_together():
    """Three first tokens of one group: which of them is largest is an accident of the batch."""
    for noise in ([0.0, 1e-7, -1e-7], [1e-7, 0.0, -1e-7]):
        (chosen,) = top_entropy([tensor(*(0.9 + n for n in noise), 0.1)], [yes(range(4))], 0.25, alone)
        assert chosen.tolist() == [True, True, True, False]


def test_masked_tokens_are_not_counted():
    entropies, masks = [tensor(0.1, 5.0, 0.3)], [torch.tensor([True, False, True])]
    (chosen,) = top_entropy(entropies, masks, 0.5, alone)
    assert chosen.tolist() == [False, False, True]


def test_nothing_in_the_loss_is_nothing_chosen():
    masks = [torch.zeros(2, dtype=torch.bool)]
    assert not top_entropy([tensor(0.1, 0.2)], masks, 0.5, alone)[0].any()
    assert not high_covariance([tensor(0.1, 0.2)], [tensor(1, 2)], masks, 0.5, None, alone)[0].any()


# o - mean = [1, -1, 2, -2], A - mean = [1, 1, -1, -1] → covariances [1, -1, -2, 2]
LOGPROBS, ADVANTAGES = tensor(-1.0, -3.0, 0.0, -4.0), tensor(1.0, 1.0, -1.0, -1.0)


@pytest.mark.parametrize(
    ("share", "bounds", "chosen"),
    [
        (0.25, None, [3]),
        (0.5, None, [0, 3]),
        (1e-6, None, [3]),  # at least one
        (0.25, (0.5, 1.5), [0]),
        (1.0, (0.5, 5.0), [0, 3]),
        (0.5, (0.5, 5.0), [0, 3]),  # a share of all tokens, not of those within the bounds
        (1.0, (3.0, 5.0), []),
    ],
)
def test_highest_covariances(share, bounds, chosen):
    (got,) = high_covariance([LOGPROBS], [ADVANTAGES], [yes(LOGPROBS)], share, bounds, alone)
    assert got.nonzero()[:, 0].tolist() == chosen


# gaps², ascending: 0.01, 0.04, 0.09, 0.16; means of the smallest: 0.01, 0.025, 0.0467, 0.075
GAPS = tensor(0.3, -0.1, 0.4, -0.2)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(0.08, [0, 1, 2, 3]), (0.06, [0, 1, 3]), (0.04, [1, 3]), (0.02, [1]), (0.005, [])],
)
def test_the_largest_gaps_are_dropped_until_the_mean_of_the_rest_is_within(limit, kept):
    (near,) = within_moment([GAPS], [yes(GAPS)], limit, alone)
    assert near.nonzero()[:, 0].tolist() == kept


def test_gaps_that_tie_with_the_last_one_dropped_are_dropped_and_rounding_never():
    for noise in ([0.0, 1e-7, -1e-7], [1e-7, 0.0, -1e-7]):
        gaps = tensor(*(0.3 + n for n in noise), 9e-4, -9e-4)
        (near,) = within_moment([gaps], [yes(gaps)], 0.04, alone)
        assert near.tolist() == [False] * 3 + [True] * 2
        (near,) = within_moment([gaps], [yes(gaps)], 1e-12, alone)
        assert near.tolist() == [False] * 3 + [True] * 2


def test_masked_gaps_are_neither_counted_nor_kept():
    gaps, mask = tensor(0.1, 9.0, 0.1, 0.5), torch.tensor([True, False, True, True])
    (near,) = within_moment([gaps], [mask], 0.04, alone)
    assert near.tolist() == [True, False, True, False]
    (none,) = within_moment([gaps], [torch.zeros_like(mask)], 0.04, alone)
    assert not none.any()


def slowly_within(gaps, limit):
    """The rule as it is told: the largest square goes, again and again, until the mean of the rest is small."""
    left = list(range(len(gaps)))
    while left and math.fsum(gaps[i] ** 2 for i in left) / len(left) > limit:
        left.remove(max(left, key=lambda i: (abs(gaps[i]), i)))
    worst = max((abs(gaps[i]) for i in range(len(gaps))), default=0.0)
    dropped = [abs(gaps[i]) for i in range(len(gaps)) if i not in left]
    bound = min(dropped, default=worst + 1)
    return [abs(g) < bound for g in gaps]


@given(
    st.lists(st.integers(-300, 300).map(lambda n: n / 100), max_size=30),
    st.sampled_from([0.0123, 0.0401, 0.2003, 1.0007]),
)
def test_the_choice_is_that_of_the_slow_rule(gaps, limit):
    values = torch.tensor(gaps, dtype=torch.float64)
    (near,) = within_moment([values], [yes(gaps)], limit, alone)
    assert near.tolist() == slowly_within(gaps, limit)
    kept = values[near]
    assert not kept.numel() or float((kept**2).mean()) <= limit


tokens = st.lists(
    st.tuples(st.integers(0, 30).map(lambda n: n / 10), st.integers(-20, 0).map(float), st.booleans()),
    min_size=1,
    max_size=20,
)


@given(tokens, st.integers(1, 19), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_choices_do_not_depend_on_the_cut_or_the_ranks(step, at, share):
    entropy, logprobs = (
        torch.tensor(list(c), dtype=torch.float64) for c in list(zip(*step, strict=True))[:2]
    )
    mask = torch.tensor([m for *_, m in step])
    advantages = torch.linspace(-1, 1, len(step), dtype=torch.float64)

    def choose(parts, gather):
        e, o, a, m = ([values[p] for p in parts] for values in (entropy, logprobs, advantages, mask))
        return (
            top_entropy(e, m, share, gather),
            high_covariance(o, a, m, share, None, gather),
            within_moment(o, m, 20 * share, gather),
        )

    whole = [torch.cat(list(c)) for c in choose([slice(None)], alone)]
    cut = [torch.cat(list(c)) for c in choose([slice(0, at), slice(at, None)], alone)]
    assert [c.tolist() for c in cut] == [c.tolist() for c in whole]
    assert not (whole[0] & ~mask).any()
    parts = (slice(0, at), slice(at, None))
    ranks = on_ranks(2, lambda rank, gather: [c[0] for c in choose([parts[rank]], gather)])
    for kind in (0, 1, 2):
        assert torch.cat([r[kind] for r in ranks]).tolist() == whole[kind].tolist()


def test_choosing_notes_it_in_the_micro_batches(sample):
    batches = [micro_batch([sample(2, 1.0)], [0], [1.0]), micro_batch([sample(2, -1.0)], [1], [1.0])]
    for batch, old in zip(batches, (LOGPROBS[:2], LOGPROBS[2:]), strict=True):
        batch.old_logprobs = old
        batch.sampler_logprobs = old + tensor(0.5, 0.0)
    selection = TokenSelection(entropy_share=0.5, covariance_share=0.25, second_moment=0.04)
    assert not TokenSelection().is_needed
    for one in ({"entropy_share": 0.5}, {"covariance_share": 0.25}, {"second_moment": 0.04}):
        assert TokenSelection(**one).is_needed
    selection.choose(batches, [tensor(0.1, 0.2), tensor(0.9, 0.8)], alone)
    assert [b.is_forking.tolist() for b in batches] == [[False, False], [True, True]]
    assert [b.is_covariant.tolist() for b in batches] == [[False, False], [False, True]]
    assert [b.is_near.tolist() for b in batches] == [[False, True], [False, True]]


def test_only_chosen_tokens_have_a_policy_loss_and_all_have_a_divergence():
    t = terms(
        [[0.0, 0.0, 0.0]],
        [1.0],
        reference=[[-1.3] * 3],
        weights=[1 / 3],
        is_forking=torch.tensor([True, False, False]),
    )
    loss, metrics = Objective(Clipped(), beta=0.1)(t)
    k3 = math.exp(-0.3) + 0.3 - 1
    assert loss.item() == pytest.approx(-1 / 3 + 0.1 * k3)  # the denominator stays
    assert metrics["entropy/kept_share"].value == pytest.approx(1 / 3)
