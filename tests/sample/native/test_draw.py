"""Laws of the draw: which token a uniform number picks, with which log-probability, and where the number comes from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey.sample.native.draw import BLOCK, TokenMasks, draw, inverse_cdf, uniforms
from covey.sample.sampling import Sampling

pytestmark = pytest.mark.any_version

VOCABULARIES = [1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 17]
ENDS = [0.0, 2**-53, 0.5, 1 - 2**-53]


def sparse(vocab: int, rows: int, seed: int) -> torch.Tensor:
    """Distributions in which most tokens, and whole blocks, have probability 0."""
    generator = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(rows, vocab, generator=generator)
    logits[torch.rand(rows, vocab, generator=generator) < 0.7] = float("-inf")
    logits[:, : vocab // 3] = float("-inf")
    logits[torch.arange(rows), torch.randint(vocab // 3, vocab, (rows,), generator=generator)] = 0.0
    return torch.softmax(logits, -1)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("number", ENDS)
def test_a_token_of_probability_zero_is_never_drawn(vocab, number):
    for scale in (1.0, 1e-30, 3.7e5):
        probabilities = scale * sparse(vocab, 64, seed=vocab)
        drawn = inverse_cdf(probabilities, torch.full((64,), number, dtype=torch.float64))
        assert (probabilities.gather(1, drawn[:, None]) > 0).all()


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_two_levels_pick_what_one_cumulative_sum_in_float64_picks(vocab):
    """Where the number is not within rounding of an edge; the reference is a plain loop."""
    probabilities = sparse(vocab, 200, seed=1)
    uniform = torch.from_numpy(np.random.default_rng(0).random(200))
    drawn = inverse_cdf(probabilities, uniform)
    for row, number, got in zip(probabilities.double(), uniform.tolist(), drawn.tolist(), strict=True):
        edges = row.cumsum(0) / row.sum()
        assert edges[got] > number - 1e-6
        assert got == 0 or edges[got - 1] < number + 1e-6


def test_frequencies_are_the_probabilities():
    """Evenly spaced numbers hit each token in proportion, to within one count at each edge."""
    vocab, count = 2 * BLOCK + 40, 20000
    probabilities = sparse(vocab, 1, seed=3)
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    drawn = inverse_cdf(probabilities.expand(count, -1), numbers)
    counts = torch.bincount(drawn, minlength=vocab)
    assert (counts - count * probabilities[0]).abs().max() <= 2


@given(st.integers(1, 3 * BLOCK + 5), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_a_draw_does_not_depend_on_the_rest_of_the_batch(vocab, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, vocab, generator=generator)
    uniform = torch.rand(rows, dtype=torch.float64, generator=generator)
    together = draw(logits.clone(), uniform, Sampling(max_new_tokens=1))
    order = torch.randperm(rows, generator=generator)
    shuffled = draw(logits[order].clone(), uniform[order], Sampling(max_new_tokens=1))
    assert torch.equal(together.ids[order], shuffled.ids)
    assert torch.equal(together.logprobs[order], shuffled.logprobs)
    for row in range(min(rows, 3)):
        alone = draw(logits[row : row + 1].clone(), uniform[row : row + 1], Sampling(max_new_tokens=1))
        assert alone.ids[0] == together.ids[row] and alone.logprobs[0] == together.logprobs[row]


def every_mask(rows: int, vocab: int, generator: torch.Generator) -> TokenMasks:
    """Masks that are different for each sequence."""
    never, seen = (torch.rand(rows, vocab, generator=generator) < part for part in (0.2, 0.5))
    columns = torch.tensor([0, vocab // 2])
    return TokenMasks(columns, torch.rand(rows, 2, generator=generator) < 0.5, never, seen)


@pytest.mark.parametrize("rows_at_once", [1, 3, 7])
def test_rows_that_are_drawn_in_parts_get_what_they_get_together(monkeypatch, rows_at_once):
    """Each with its own logits, number and masks; a vocabulary larger than a part is drawn from row by row."""
    rows, vocab, generator = 7, 2 * BLOCK + 40, torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(rows, vocab, generator=generator)
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    masks, how = every_mask(rows, vocab, generator), Sampling(8, repetition_penalty=1.3, top_k=40, top_p=0.9)
    together = draw(logits.clone(), uniform, how, masks)
    monkeypatch.setattr("covey.sample.native.draw.AT_ONCE", rows_at_once * vocab - 1)
    apart = draw(logits.clone(), uniform, how, masks)
    assert together.ids.equal(apart.ids)
    assert together.logprobs.equal(apart.logprobs)
    assert together.policy_logprobs.equal(apart.policy_logprobs)


def test_columns_and_a_mask_over_the_vocabulary_mean_the_same():
    """The cheap way to leave out a few tokens, and the one for many, give the same distribution."""
    logits, uniform = 3 * torch.randn(50, 700), torch.rand(50, dtype=torch.float64)
    columns = torch.tensor([0, 3, 300, 699])
    blocked = torch.rand(50, 4) < 0.5
    mask = torch.zeros(50, 700, dtype=torch.bool)
    mask[:, columns] = blocked
    plain = Sampling(max_new_tokens=1, temperature=0.7)
    few = draw(logits.clone(), uniform, plain, TokenMasks(columns, blocked))
    many = draw(logits.clone(), uniform, plain, TokenMasks(never=mask))
    assert torch.equal(few.ids, many.ids)
    torch.testing.assert_close(few.logprobs, many.logprobs)
    torch.testing.assert_close(few.policy_logprobs, many.policy_logprobs)
    expected = torch.log_softmax(logits / 0.7, -1).gather(1, few.ids[:, None])[:, 0]
    torch.testing.assert_close(few.policy_logprobs, expected)


def test_what_is_not_a_number_gives_an_id_of_the_vocabulary():
    """A policy that has diverged is noticed by the trainer; the sampler must not crash before."""
    logits = torch.full((3, 600), float("nan"))
    drawn = draw(
        logits, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64), Sampling(max_new_tokens=1)
    )
    assert ((drawn.ids >= 0) & (drawn.ids < 600)).all()


# --- random numbers: they depend on the key of a sequence, and on nothing else ----------------------------------------

keys = st.lists(st.integers(0, 2**40), min_size=1, max_size=5)


@given(keys, st.integers(1, 50), st.integers(1, 50))
def test_the_first_numbers_do_not_depend_on_how_many_are_drawn(key, few, many):
    short, long = sorted((few, many))
    assert np.array_equal(uniforms(key, short), uniforms(key, long)[:short])


@given(keys, keys)
@example([0], [0, 0])
@example([2**32], [0, 1])
def test_another_key_gives_other_numbers(a, b):
    assert np.array_equal(uniforms(a, 8), uniforms(b, 8)) == (a == b)


def test_the_numbers_are_pinned():
    """A numpy that changed its stream would change every run; values from numpy 2.4.6."""
    assert uniforms((1, 0, 0, 5, 0, 3), 2).tolist() == [0.47412902336166196, 0.08914553219881827]


def test_the_numbers_are_uniform():
    """Kolmogorov-Smirnov distance of 20,000 numbers of 200 sequences stays below the 0.1 % critical value."""
    drawn = np.sort(np.concatenate([uniforms((7, step, 0, 0), 100) for step in range(200)]))
    grid = np.arange(1, len(drawn) + 1) / len(drawn)
    assert np.abs(drawn - grid).max() < 1.95 / np.sqrt(len(drawn))
