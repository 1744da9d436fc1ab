"""What the Trainer does with a checkpoint that cannot be written."""

import errno

import pytest
import torch

from covey.errors import CoveyWarning
from covey.trainer.checkpoint.manifest import damage
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, make, rows

SETTINGS = dict(learning_rate=1e-2, optim="adamw_torch", max_steps=3, save_strategy="steps", save_steps=1)


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


def with_disk(tmp_path, monkeypatch, error, step):
    """A trainer whose optimizer cannot be written at one step."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    trainer = make(folder, tmp_path / "run", Recorder(by_ids), rows(16), **SETTINGS)
    real = torch.save

    def save(value, file, *args, **kwargs):
        if "optimizer" in str(file) and trainer.state.global_step == step:
            raise error
        real(value, file, *args, **kwargs)

    monkeypatch.setattr(torch, "save", save)
    return trainer


def test_a_full_disk_is_warned_of_with_what_helps(tmp_path, monkeypatch):
    trainer = with_disk(tmp_path, monkeypatch, OSError(errno.ENOSPC, "No space left on device"), 2)
    with pytest.warns(CoveyWarning) as warned:
        trainer.train()
    (text,) = [str(w.message) for w in warned if "could not be saved" in str(w.message)]
    assert text.startswith("Checkpoint 2 could not be saved: [Errno 28] No space left on device.")
    assert (
        f"The last one is {tmp_path / 'run' / 'checkpoint-1'}." in text and "lower save_total_limit" in text
    )
    saved = sorted((tmp_path / "run").glob("checkpoint-*"))
    assert [p.name for p in saved] == ["checkpoint-1", "checkpoint-3"]
    assert [damage(p) for p in saved] == [None, None] and not (tmp_path / "run" / "_saving").exists()


def test_every_other_error_while_saving_stops_the_run(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="not of the disk"):
        with_disk(tmp_path, monkeypatch, ValueError("not of the disk"), 2).train()
    assert [p.name for p in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
