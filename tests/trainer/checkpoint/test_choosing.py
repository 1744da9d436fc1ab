"""Which checkpoint a run goes on from."""

import os

import pytest

from covey.errors import CheckpointError
from covey.trainer.checkpoint.choosing import NoCheckpointError, choose
from covey.trainer.checkpoint.manifest import MANIFEST
from tests.trainer.checkpoint.folder import written

pytestmark = pytest.mark.any_version


def alone(value):
    return [value]


def chosen(asked, run):
    return choose(asked, run, True, alone)


def cut(folder, name="model.safetensors"):
    os.truncate(folder / name, 30)


@pytest.mark.parametrize("asked", [None, False, "false", "None", ""])
def test_a_run_that_is_not_asked_to_starts_at_the_beginning(tmp_path, asked):
    written(tmp_path, 2)
    assert chosen(asked, tmp_path).folder is None


@pytest.mark.parametrize("asked", [True, "true", "True", "last", "auto"])
def test_the_last_whole_one_is_found(tmp_path, asked):
    written(tmp_path, 2), written(tmp_path, 10)
    found = chosen(asked, tmp_path)
    assert found.folder == str(tmp_path / "checkpoint-10") and found.remarks == ()


@pytest.mark.parametrize("asked", [True, "auto"])
def test_damaged_ones_are_named_and_the_one_before_is_used(tmp_path, asked):
    written(tmp_path, 2), cut(written(tmp_path, 4)), written(tmp_path, 6, manifest=False)
    found = chosen(asked, tmp_path)
    assert found.folder == str(tmp_path / "checkpoint-2")
    text = " ".join(found.remarks)
    assert "checkpoint-6 is damaged: covey/manifest.json is missing" in text
    assert "checkpoint-4 is damaged: model.safetensors has 30 bytes" in text
    assert f"Going on from {tmp_path / 'checkpoint-2'} instead." in text


def test_none_at_all_is_an_error_or_the_beginning(tmp_path):
    with pytest.raises(NoCheckpointError, match=r"Start without resuming"):
        chosen(True, tmp_path)
    assert chosen("auto", tmp_path).folder is None


@pytest.mark.parametrize("asked", [True, "auto"])
def test_none_that_is_whole_is_an_error_and_never_the_beginning(tmp_path, asked):
    cut(written(tmp_path, 4))
    with pytest.raises(
        CheckpointError, match=r"No checkpoint in .* is whole.*checkpoint-4 is damaged: model"
    ):
        chosen(asked, tmp_path)


def test_one_that_is_given_and_damaged_is_refused_and_the_whole_one_beside_it_is_named(tmp_path):
    written(tmp_path, 2), cut(written(tmp_path, 4))
    with pytest.raises(
        CheckpointError, match=r"checkpoint-4 is damaged.*whole one beside it is .*checkpoint-2"
    ):
        chosen(str(tmp_path / "checkpoint-4"), tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        chosen(str(tmp_path / "checkpoint-5"), tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_without_a_manifest_what_can_be_seen_is_looked_at(tmp_path, name):
    """Checkpoints of transformers.Trainer and of TRL have none."""
    folder = written(tmp_path, 4, manifest=False)
    assert "whether it is whole is not known" in chosen(str(folder), tmp_path).remarks[0]
    os.truncate(folder / name, (folder / name).stat().st_size - 5)
    with pytest.raises(CheckpointError, match=f"{name} (is cut off|cannot be read)"):
        chosen(str(folder), tmp_path)


def test_weights_without_an_optimizer_are_remarked(tmp_path):
    folder = written(tmp_path, 4, manifest=False)
    (folder / "optimizer.pt").unlink()
    from covey.trainer.checkpoint.manifest import write_manifest

    write_manifest(folder, 4)
    assert "its moments start at zero" in chosen(True, tmp_path).remarks[0]


def test_a_checkpoint_that_one_machine_lacks_is_not_whole(tmp_path):
    written(tmp_path / "a", 2), written(tmp_path / "a", 4)

    def two_machines(seen):
        return [seen, None, {2: None}, None]  # two processes on each

    found = choose(True, tmp_path / "a", True, two_machines)
    assert found.folder.endswith("checkpoint-2") and "missing on one of the machines" in found.remarks[0]


def test_a_damaged_manifest_cannot_be_mistaken_for_none(tmp_path):
    written(tmp_path, 2)
    (written(tmp_path, 4) / MANIFEST).write_text("{")
    assert chosen(True, tmp_path).folder.endswith("checkpoint-2")
