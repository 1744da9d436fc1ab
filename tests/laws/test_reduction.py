"""The reducer: worked numbers, a slow reference, and that weights do not depend on how a step is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.update.reduction import Totals, row_weights

# Token losses of four completions; sums -1, 1.5, -0.8, 0.4, in all 0.1 over 10 tokens.
TOKEN_LOSSES = [[-1.0], [0.5, 0.5, 0.5], [-0.2] * 4, [0.3, 0.1]]
GLOBAL = ["grpo", "dr_grpo", "dapo"]


def reduced(loss_type, losses, cut, max_length=8, is_kept=None):
    """The loss of one optimizer step whose completions are cut into micro-batches of the given sizes."""
    kept = is_kept or [True] * len(losses)
    lengths = [len(x) if k else 0 for x, k in zip(losses, kept, strict=True)]
    totals = Totals(sum(lengths), len(lengths), len(cut))
    loss, start = 0.0, 0
    for size in cut:
        part = range(start, start + size)
        start += size
        weights = row_weights(loss_type, [lengths[i] for i in part], totals, max_length)
        loss += sum(w * sum(losses[i]) for w, i in zip(weights, part, strict=True) if kept[i])
    return loss


@pytest.mark.parametrize(
    ("loss_type", "value"),
    [("dapo", 0.01), ("grpo", -0.125), ("dr_grpo", 0.003125), ("bnpo", (0.125 - 0.2 / 3) / 2)],
)
def test_four_completions_in_two_micro_batches(loss_type, value):
    assert reduced(loss_type, TOKEN_LOSSES, [2, 2]) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(("loss_type", "value"), [("dapo", 0.15), ("grpo", -0.075), ("dr_grpo", 0.028125)])
def test_a_masked_completion_leaves_the_tokens_and_stays_a_sequence(loss_type, value):
    kept = [True, True, False, True]
    assert reduced(loss_type, TOKEN_LOSSES, [2, 2], is_kept=kept) == pytest.approx(value, abs=1e-12)


def test_unequal_lengths():
    """10 and 30 tokens of loss 1 and 2: the global token mean is 1.75, not 1.5 (mean of means), not 0.875 (divided twice)."""
    losses = [[1.0] * 10, [2.0] * 30]
    for cut in ([2], [1, 1]):
        assert reduced("dapo", losses, cut) == pytest.approx(1.75, abs=1e-12)
        assert reduced("grpo", losses, cut) == pytest.approx(1.5, abs=1e-12)
    assert reduced("bnpo", losses, [2]) == pytest.approx(1.75, abs=1e-12)
    assert reduced("bnpo", losses, [1, 1]) == pytest.approx(1.5, abs=1e-12)


@pytest.mark.parametrize("loss_type", [*GLOBAL, "bnpo"])
def test_nothing_left_in_the_loss_is_zero(loss_type):
    assert reduced(loss_type, TOKEN_LOSSES, [2, 2], is_kept=[False] * 4) == 0.0


steps = st.lists(
    st.lists(st.floats(-2, 2), min_size=0, max_size=6),
    min_size=1,
    max_size=10,
)


def cut_of(sizes, count):
    """A cut of `count` rows from any list of sizes."""
    cut = []
    for size in sizes:
        if sum(cut) + size >= count:
            break
        cut.append(size)
    return [*cut, count - sum(cut)]


@pytest.mark.parametrize("loss_type", GLOBAL)
@given(steps, st.lists(st.integers(1, 4)))
def test_weights_do_not_depend_on_the_cut(loss_type, losses, sizes):
    cut = cut_of(sizes, len(losses))
    whole = reduced(loss_type, losses, [len(losses)])
    assert reduced(loss_type, losses, cut) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("loss_type", GLOBAL)
@given(steps)
def test_equals_the_definition(loss_type, losses):
    tokens, limit = [x for row in losses for x in row], 6
    expected = {
        "grpo": sum(sum(row) / len(row) for row in losses if row) / len(losses),
        "dr_grpo": sum(tokens) / (len(losses) * limit),
        "dapo": sum(tokens) / max(len(tokens), 1),
    }[loss_type]
    assert reduced(loss_type, losses, [len(losses)], limit) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss_type", GLOBAL)
def test_totals_of_two_ranks_add_up(loss_type):
    """Each rank holds half of the rows and knows the totals of both: the sum over ranks is the loss of one process."""
    halves = TOKEN_LOSSES[:2], TOKEN_LOSSES[2:]
    totals = Totals(4, 2, 1) + Totals(6, 2, 1)
    assert totals == Totals(10, 4, 2)
    both = sum(
        w * sum(row)
        for half in halves
        for w, row in zip(row_weights(loss_type, [len(r) for r in half], totals, 8), half, strict=True)
    )
    assert both == pytest.approx(reduced(loss_type, TOKEN_LOSSES, [4]), abs=1e-12)
