"""Scored groups → micro-batches: flat tensors whose rows stay apart, masks from lengths, whole groups."""

import torch

from covey.update.micro_batch import micro_batch
from covey.update.samples import samples_of


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
    assert [s.num_loss_tokens for s in kept] == [2, 3, 3]
    assert [s.num_loss_tokens for s in masked] == [2, 0, 3]
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


def test_what_another_author_wrote_counts_nowhere(sample):
    answered = sample(4, written=(True, False, False, True))
    assert answered.num_loss_tokens == 2


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
