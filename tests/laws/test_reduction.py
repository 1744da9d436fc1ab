"""The reducer: worked numbers, a slow reference, and that weights do not depend on how a step is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.update.reduction import Reduction, Totals, row_weights

# Token losses of four completions; sums -1, 1.5, -0.8, 0.4, in all 0.1 over 10 tokens. The first two share a prompt, and
# so do the last two.
TOKEN_LOSSES = [[-1.0], [0.5, 0.5, 0.5], [-0.2] * 4, [0.3, 0.1]]
PROMPTS = [0, 0, 1, 1]
GLOBAL = ["grpo", "dr_grpo", "dapo", "prompt_mean", "luspo"]


def reduced(name, losses, cut, prompts=PROMPTS, max_length=8, masked=(), truncated="sequences"):
    """The loss of one optimizer step whose completions are cut into micro-batches of the given sizes."""
    reduction = Reduction(name, max_length, truncated)
    starts = [sum(cut[:n]) for n in range(len(cut))]
    parts = [range(s, s + n) for s, n in zip(starts, cut, strict=True)]
    counts = [
        ([len(losses[i]) for i in p], [i not in masked for i in p], [prompts[i] for i in p]) for p in parts
    ]
    totals = sum((Totals.of(*c, truncated) for c in counts), Totals())
    loss = 0.0
    for part, count in zip(parts, counts, strict=True):
        weights = row_weights(reduction, *count, totals)
        loss += sum(w * sum(losses[i]) for w, i in zip(weights, part, strict=True) if i not in masked)
    return loss


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dapo", 0.01),
        ("grpo", -0.125),
        ("dr_grpo", 0.003125),
        ("prompt_mean", (0.125 - 0.2 / 3) / 2),
        ("bnpo", (0.125 - 0.2 / 3) / 2),
        ("luspo", 0.025),
    ],
)
def test_four_completions_in_two_micro_batches(name, value):
    assert reduced(name, TOKEN_LOSSES, [2, 2]) == pytest.approx(value, abs=1e-12)


def test_luspo_weighs_losses_of_sequences_by_their_length():
    # sequence losses -1, 0.5, -0.2, 0.2, shared by their tokens: (-1 + 1.5 - 0.8 + 0.4) / 4
    losses = [[-1.0], [0.5] * 3, [-0.2] * 4, [0.2] * 2]
    assert reduced("luspo", losses, [2, 2]) == pytest.approx(0.025, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "truncated", "value"),
    [
        ("dapo", "sequences", 0.15),
        ("grpo", "sequences", -0.075),
        ("dr_grpo", "sequences", 0.028125),
        ("dapo", "none", 0.15),
        ("grpo", "none", -0.1),
        ("dr_grpo", "none", 0.0375),
        ("luspo", "none", 0.3),
        ("dapo", "tokens_and_sequences", 0.09),
        ("grpo", "tokens_and_sequences", -0.075),
        ("dr_grpo", "tokens_and_sequences", 0.028125),
        ("prompt_mean", "sequences", (0.125 + 0.2) / 2),
        ("prompt_mean", "tokens_and_sequences", (0.125 + 0.4 / 6) / 2),
        ("bnpo", "sequences", 0.1625),
        ("bnpo", "tokens_and_sequences", (0.125 + 0.4 / 6) / 2),
    ],
)
def test_what_a_masked_completion_does_to_the_denominator(name, truncated, value):
    """The third completion is masked."""
    assert reduced(name, TOKEN_LOSSES, [2, 2], masked={2}, truncated=truncated) == pytest.approx(
        value, abs=1e-12
    )


def test_a_prompt_whose_completions_are_all_masked_counts_as_the_choice_says():
    masked = {2, 3}
    assert reduced("prompt_mean", TOKEN_LOSSES, [2, 2], masked=masked) == pytest.approx(0.125 / 2)
    assert reduced("prompt_mean", TOKEN_LOSSES, [2, 2], masked=masked, truncated="none") == pytest.approx(
        0.125
    )


def test_unequal_lengths():
    """10 and 30 tokens of loss 1 and 2: the global token mean is 1.75, not 1.5 (mean of means), not 0.875 (divided twice)."""
    losses = [[1.0] * 10, [2.0] * 30]
    for cut in ([2], [1, 1]):
        assert reduced("dapo", losses, cut, [0, 1]) == pytest.approx(1.75, abs=1e-12)
        assert reduced("grpo", losses, cut, [0, 1]) == pytest.approx(1.5, abs=1e-12)
    assert reduced("bnpo", losses, [2], [0, 1]) == pytest.approx(1.75, abs=1e-12)
    assert reduced("bnpo", losses, [1, 1], [0, 1]) == pytest.approx(1.5, abs=1e-12)


@pytest.mark.parametrize("truncated", ["sequences", "tokens_and_sequences", "none"])
@pytest.mark.parametrize("name", [*GLOBAL, "bnpo"])
def test_nothing_left_in_the_loss_is_zero(name, truncated):
    assert reduced(name, TOKEN_LOSSES, [2, 2], masked=set(range(4)), truncated=truncated) == 0.0


@st.composite
def steps(draw):
    """Token losses of up to ten completions of up to three prompts, and a cut."""
    losses = draw(st.lists(st.lists(st.floats(-2, 2), max_size=6), min_size=1, max_size=10))
    prompts = draw(st.lists(st.integers(0, 2), min_size=len(losses), max_size=len(losses)))
    cut, left = [], len(losses)
    while left:
        cut.append(draw(st.integers(1, left)))
        left -= cut[-1]
    return losses, prompts, cut


@pytest.mark.parametrize("name", GLOBAL)
@given(steps())
def test_weights_do_not_depend_on_the_cut(name, step):
    losses, prompts, cut = step
    whole = reduced(name, losses, [len(losses)], prompts)
    assert reduced(name, losses, cut, prompts) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("name", GLOBAL)
@given(steps())
def test_equals_the_definition(name, step):
    losses, prompts, cut = step
    tokens, limit = [x for row in losses for x in row], 6

    def mean(values):
        return sum(values) / len(values) if values else 0.0

    def of_prompt(p):
        return [x for row, q in zip(losses, prompts, strict=True) if q == p for x in row]

    expected = {
        "grpo": mean([mean(row) for row in losses]),
        "dr_grpo": sum(tokens) / (len(losses) * limit),
        "dapo": mean(tokens),
        "prompt_mean": mean([mean(of_prompt(p)) for p in set(prompts)]),
        "luspo": mean([sum(row) for row in losses]),
    }[name]
    assert reduced(name, losses, cut, prompts, limit) == pytest.approx(expected, abs=1e-12)


def test_totals_add_up():
    left, right = Totals.of([1, 3], [True, True], [0, 0]), Totals.of([4, 2], [True, False], [0, 1])
    assert left + right == Totals(8, 4, 2, {0: 8, 1: 0})
    assert sum([left, right], Totals()) == left + right


@pytest.mark.parametrize("truncated", ["sequences", "tokens_and_sequences", "none"])
@pytest.mark.parametrize("name", [*GLOBAL, "bnpo"])
def test_a_share_counts_like_so_many_copies(name, truncated):
    lengths, in_loss, copies = [1, 3, 4, 2], [True, True, False, True], [2, 1, 3, 1]
    reduction = Reduction(name, 8, truncated)

    def weights(rows, shares=None):
        counts = [lengths[i] for i in rows], [in_loss[i] for i in rows], [PROMPTS[i] for i in rows]
        totals = Totals.of(*counts, truncated, None, shares)
        return row_weights(reduction, *counts, totals, None, shares)

    repeated = [i for i in range(4) for _ in range(copies[i])]
    by_copies = dict.fromkeys(range(4), 0.0)
    for i, weight in zip(repeated, weights(repeated), strict=True):
        by_copies[i] += weight
    assert weights(range(4), copies) == pytest.approx(list(by_copies.values()), abs=1e-15)
