"""A rollout hands out its micro-batches in order, as often as it should, and survives a checkpoint."""

import pytest
import torch

from covey.errors import CheckpointError
from covey.update.micro_batch import micro_batch
from covey.update.rollout_buffer import RolloutBuffer

pytestmark = pytest.mark.any_version


@pytest.fixture
def batches(sample):
    return [micro_batch([sample(n)], [n], [1.0]) for n in (1, 2, 3, 4)]


def filled(batches, iterations):
    rollout = RolloutBuffer()
    rollout.fill(batches, iterations)
    return rollout


def test_every_pass_goes_through_the_micro_batches_in_order(batches):
    rollout = filled(batches, 2)
    seen = [b.rows[0] for _ in range(4) for b in rollout.next(2)]
    assert seen == [1, 2, 3, 4, 1, 2, 3, 4]
    assert rollout.is_spent


def test_a_fresh_rollout_is_spent():
    assert RolloutBuffer().is_spent


def test_a_saved_rollout_continues(batches, tmp_path):
    rollout = filled(batches, 2)
    rollout.next(6)
    batches[1].old_logprobs = torch.tensor([-0.5, -0.25])
    rollout.save(tmp_path / "rank0")
    resumed = RolloutBuffer()
    resumed.load(tmp_path / "rank0", 6)
    rest = resumed.next(2)
    assert [b.rows for b in rest] == [(3,), (4,)]
    second = resumed.batches[1]
    assert second.old_logprobs.tolist() == [-0.5, -0.25] and second.ref_logprobs is None
    assert second.prompts == batches[1].prompts and second.completions == batches[1].completions
    assert second.mask.dtype == torch.bool and resumed.is_spent


def test_a_spent_rollout_leaves_nothing_to_load(batches, tmp_path):
    rollout = filled(batches, 1)
    rollout.next(4)
    rollout.save(tmp_path / "rank0")
    assert list(tmp_path.iterdir()) == []
    RolloutBuffer().load(tmp_path / "rank0", 0)


def test_a_missing_or_foreign_rollout_is_named(batches, tmp_path):
    with pytest.raises(CheckpointError, match="is missing"):
        RolloutBuffer().load(tmp_path / "rank0", 2)
    rollout = filled(batches, 1)
    rollout.next(2)
    rollout.save(tmp_path / "rank0")
    with pytest.raises(CheckpointError, match=r"stopped after 2 micro-batches.*after 1"):
        RolloutBuffer().load(tmp_path / "rank0", 1)
