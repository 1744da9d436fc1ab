"""Scored groups → micro-batches: flat tensors whose rows stay apart, masks from lengths, whole groups."""

import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st

from covey.types import Completion, Prompt
from covey.update.micro_batch import build_micro_batches, contributing_rows, micro_batch
from covey.update.reduction import Reduction
from covey.update.samples import Sample, samples_of
from tests.ranks import alone, on_ranks


def test_samples_keep_order_group_and_advantage(scored):
    samples = samples_of([scored([2, 3], [1.0, -1.0]), scored([1, 1], [0.5, -0.5])])
    assert [(s.group, s.advantage, len(s.completion.ids)) for s in samples] == [
        (0, 1.0, 2),
        (0, -1.0, 3),
        (1, 0.5, 1),
        (1, -0.5, 1),
    ]
    assert all(s.in_loss for s in samples)


def test_truncated_completions_leave_the_loss_and_keep_their_advantage(scored):
    group = scored([2, 3, 3], [1.0, -0.5, -0.5], truncated=(1,))
    kept = samples_of([group], mask_truncated=False)
    masked = samples_of([group], mask_truncated=True)
    assert [s.in_loss for s in kept] == [True, True, True]
    assert [s.in_loss for s in masked] == [True, False, True]
    assert [s.advantage for s in masked] == [1.0, -0.5, -0.5]


def test_tensors_lie_flat_row_after_row(sample):
    rows = [sample(2, 1.0), sample(3, -1.0, written=(True, False, True)), sample(1, 0.5, in_loss=False)]
    batch = micro_batch(rows, [4, 5, 9], [0.1, 0.2, 0.0])
    assert batch.lengths == [2, 3, 1]
    assert batch.row.tolist() == [0, 0, 1, 1, 1, 2]
    assert batch.targets.tolist() == [10, 11, 10, 11, 12, 10]
    assert batch.mask.tolist() == [True, True, True, False, True, False]
    assert batch.advantages.tolist() == [1.0, -1.0, 0.5]
    assert batch.weights.tolist() == torch.tensor([0.1, 0.2, 0.0]).tolist()
    assert batch.rows == (4, 5, 9)
    assert batch.num_tokens == 3 * 3 + 6


def test_moving_to_a_device_keeps_everything(sample):
    batch = micro_batch([sample(2)], [0], [1.0])
    moved = batch.to("cpu")
    assert moved.prompts == batch.prompts and moved.rows == batch.rows
    assert moved.mask.tolist() == batch.mask.tolist() and moved.old_logprobs is None


def test_shortened_rows_keep_the_end_of_the_prompt_and_the_beginning_of_the_completion(sample):
    """The prompts are (1, 2, 3); a completion's ids count from 10."""
    batch = micro_batch(
        [sample(2, 1.0), sample(5, -1.0, written=(False, True, True, True, True))], [0, 1], [0.1, 0.2]
    )
    short = batch.shortened(4)
    assert short.prompts == [(2, 3), (2, 3)] and short.completions == [(10, 11), (10, 11)]
    assert short.mask.tolist() == [True, True, False, True] and len(short.sampler_logprobs) == 4
    assert short.advantages.tolist() == [1.0, -1.0]


# --- weights and rows of an optimizer step ---------------------------------------------------------------------------


def cut(sizes, start=0):
    """Numbers of samples, cut into micro-batches of the given sizes."""
    numbers = iter(range(start, start + sum(sizes)))
    return [[next(numbers) for _ in range(n)] for n in sizes]


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
    samples = [sample(n) for n in (1, 3, 4, 2)]
    batches = build_micro_batches(samples, cut([2, 2]), 2, Reduction(loss_type, 8), alone)
    assert weights(batches) == pytest.approx(expected)


def test_what_another_author_wrote_counts_nowhere(sample):
    samples = [sample(4, written=(True, False, False, True)), sample(2)]
    assert weights(build_micro_batches(samples, [[0], [1]], 2, Reduction("dapo", 8), alone)) == [0.25, 0.25]


def test_each_optimizer_step_has_totals_of_its_own(sample):
    samples = [sample(n) for n in (1, 3, 4, 2)]
    batches = build_micro_batches(samples, cut([1, 1, 1, 1]), 2, Reduction("dapo", 8), alone)
    assert weights(batches) == pytest.approx([1 / 4, 1 / 4, 1 / 6, 1 / 6])


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "prompt_mean", "luspo"])
@examples(st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_two_ranks_weigh_as_one_process_does(loss_type, lengths):
    samples = [
        Sample(Prompt("p", (1,)), Completion((5,) * n, (-1.0,) * n, "", "stop"), 1.0, 0) for n in lengths
    ]
    reduction = Reduction(loss_type, 9)
    ranks = [cut([1, 1]), cut([2], start=2)]
    shares = on_ranks(
        2,
        lambda rank, gather: weights(
            build_micro_batches(samples, ranks[rank], len(ranks[rank]), reduction, gather)
        ),
    )
    both = [w for share in shares for w in share]
    assert both == pytest.approx(weights(build_micro_batches(samples, cut([4]), 1, reduction, alone)))


def test_rows_that_cannot_change_the_step_are_left_out_and_counted(sample):
    rows = [
        sample(2, 0.0),
        sample(3, 1.0),
        sample(4, 0.0),
        sample(5, 0.0),
        sample(1, -1.0, in_loss=False),
        sample(2, 0.5),
    ]
    given = (rows, cut([2, 2, 2]), 3, Reduction("dapo", 8), alone)
    kept = build_micro_batches(*given, every_row_is_needed=False)
    assert [b.rows for b in kept] == [(1,), (2,), (5,)], "an empty micro-batch keeps its shortest row"
    assert [b.num_dropped for b in kept] == [1, 1, 1]
    # the denominators are those of all 16 tokens in the loss
    assert weights(kept) == pytest.approx([1 / 16] * 3)
    everything = build_micro_batches(*given)
    assert [b.rows for b in everything] == [(0, 1), (2, 3), (5,)], "a masked row is never needed"


def test_rows_with_an_advantage_or_another_term(sample):
    rows = [sample(2, 0.0), sample(2, 1.0), sample(2, -1.0, in_loss=False)]
    assert contributing_rows(rows, [0.1, 0.1, 0.0], every_row_is_needed=False) == [1]
    assert contributing_rows(rows, [0.1, 0.1, 0.0], every_row_is_needed=True) == [0, 1]


def test_one_row_always_stays(sample):
    rows = [sample(5, 0.0), sample(2, 0.0), sample(3, 0.0)]
    assert contributing_rows(rows, [0.1] * 3, every_row_is_needed=False) == [1]
    assert contributing_rows([sample(3, 1.0, in_loss=False)], [0.0], every_row_is_needed=True) == [0]
    assert contributing_rows([], [], every_row_is_needed=False) == []
