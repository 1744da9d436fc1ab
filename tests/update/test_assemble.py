"""The samples of a window become micro-batches whose weights know the whole optimizer step, all ranks included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.update.assemble import assemble
from covey.update.reduction import Reduction
from tests.ranks import alone, on_ranks


def numbered(samples, sizes):
    """Samples cut into micro-batches of the given sizes, each with its number."""
    rows = iter(enumerate(samples))
    return [[next(rows) for _ in range(n)] for n in sizes]


def weights(batches):
    return [w for b in batches for w in b.weights.tolist()]


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("dapo", [1 / 10] * 4),
        ("grpo", [1 / 4, 1 / 12, 1 / 16, 1 / 8]),
        ("dr_grpo", [1 / 32] * 4),
        ("bnpo", [1 / 8, 1 / 8, 1 / 12, 1 / 12]),
    ],
)
def test_weights_of_one_step(sample, loss_type, expected):
    cut = numbered([sample(n) for n in (1, 3, 4, 2)], [2, 2])
    assert weights(assemble(cut, 2, Reduction(loss_type, 8), alone)) == pytest.approx(expected)


def test_each_optimizer_step_has_totals_of_its_own(sample):
    cut = numbered([sample(n) for n in (1, 3, 4, 2)], [1, 1, 1, 1])
    assert weights(assemble(cut, 2, Reduction("dapo", 8), alone)) == pytest.approx(
        [1 / 4, 1 / 4, 1 / 6, 1 / 6]
    )


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "prompt_mean", "luspo"])
@given(st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_two_ranks_weigh_as_one_process_does(loss_type, lengths):
    from covey.types import Completion, Prompt
    from covey.update.samples import Sample

    def build(n):
        return Sample(Prompt("p", (1,)), Completion((5,) * n, (-1.0,) * n, "", "stop"), 1.0, 0)

    whole = numbered([build(n) for n in lengths], [4])
    ranks = [
        numbered([build(n) for n in lengths[:2]], [1, 1]),
        numbered([build(n) for n in lengths[2:]], [2]),
    ]
    shares = on_ranks(
        2,
        lambda rank, gather: weights(
            assemble(ranks[rank], len(ranks[rank]), Reduction(loss_type, 9), gather)
        ),
    )
    both = [w for share in shares for w in share]
    assert both == pytest.approx(weights(assemble(whole, 1, Reduction(loss_type, 9), alone)))


def test_rows_that_cannot_change_the_step_are_left_out_and_counted(sample):
    rows = [
        sample(2, 0.0),
        sample(3, 1.0),
        sample(4, 0.0),
        sample(5, 0.0),
        sample(1, -1.0, in_loss=False),
        sample(2, 0.5),
    ]
    cut = numbered(rows, [2, 2, 2])
    kept = assemble(cut, 3, Reduction("dapo", 8), alone, every_row_is_needed=False)
    assert [b.rows for b in kept] == [(1,), (2,), (5,)], "an empty micro-batch keeps its shortest row"
    assert [b.num_dropped for b in kept] == [1, 1, 1]
    # the denominators are those of all 16 tokens in the loss
    assert weights(kept) == pytest.approx([1 / 16] * 3)
    everything = assemble(cut, 3, Reduction("dapo", 8), alone)
    assert [b.rows for b in everything] == [(0, 1), (2, 3), (5,)], "a masked row is never needed"
