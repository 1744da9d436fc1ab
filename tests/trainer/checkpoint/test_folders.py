"""Checkpoints are moved into place and away; a kill between two moves loses nothing."""

import contextlib

import pytest

from covey.trainer.checkpoint import folders
from covey.trainer.checkpoint.folders import STAGING, checkpoints, discard, publish, rotate, set_aside, tidy
from covey.trainer.checkpoint.manifest import damage
from tests.trainer.checkpoint.folder import written

pytestmark = pytest.mark.any_version


class Killed(BaseException):
    pass


def test_checkpoints_are_sorted_by_step_and_nothing_else_is_one(tmp_path):
    for step in (10, 9, 100):
        written(tmp_path, step)
    (tmp_path / "checkpoint-last").mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert list(checkpoints(tmp_path)) == [9, 10, 100]
    assert checkpoints(tmp_path / "nowhere") == {}


def test_the_oldest_go_first_and_what_is_kept_stays(tmp_path):
    made = [written(tmp_path, step) for step in (1, 2, 3, 4)]
    rotate(tmp_path, 2, [made[0], made[3]])
    assert list(checkpoints(tmp_path)) == [1, 4]
    rotate(tmp_path, None, [])
    assert list(checkpoints(tmp_path)) == [1, 4]


def test_one_saved_later_is_younger_whatever_its_step(tmp_path):
    """A run that goes on from an early checkpoint leaves later steps of its former life behind."""
    for step in (8, 9, 3):
        written(tmp_path, step)
    rotate(tmp_path, 2, [])
    assert list(checkpoints(tmp_path)) == [3, 9]


@pytest.mark.parametrize("is_there_before", [False, True])
@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_kill_between_two_moves_loses_nothing(tmp_path, monkeypatch, moves, is_there_before):
    if is_there_before:
        written(tmp_path, 3)
    staged, left = written(tmp_path / STAGING, 3), moves
    real = folders.os.rename

    def rename(*args):
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        real(*args)

    monkeypatch.setattr(folders.os, "rename", rename)
    with contextlib.suppress(Killed):
        publish(staged, tmp_path / staged.name)
    monkeypatch.undo()
    tidy(tmp_path)
    assert list(checkpoints(tmp_path)) == [3] and damage(tmp_path / "checkpoint-3") is None
    assert not (tmp_path / STAGING).exists()


def test_an_unfinished_checkpoint_is_tidied_away(tmp_path):
    written(tmp_path / STAGING, 3, manifest=False)
    tidy(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_kill_in_the_middle_of_a_deletion_leaves_no_half_checkpoint_under_its_name(tmp_path, monkeypatch):
    folder = written(tmp_path, 3)

    def rmtree(path, **_):
        if path.exists():
            (path / "model.safetensors").unlink()
            raise Killed

    monkeypatch.setattr(folders.shutil, "rmtree", rmtree)
    with pytest.raises(Killed):
        discard(folder)
    monkeypatch.undo()
    assert not folder.exists()
    tidy(tmp_path)
    assert checkpoints(tmp_path) == {}


def test_the_checkpoints_of_another_run_are_moved_and_nothing_else(tmp_path):
    for step in (6, 8):
        written(tmp_path, step)
    (tmp_path / "checkpoint-last").mkdir()
    (tmp_path / "final").mkdir()
    first = set_aside(tmp_path, None, 0)
    assert first is not None and first.parent == tmp_path and first.name.startswith("_checkpoints-")
    assert checkpoints(tmp_path) == {} and list(checkpoints(first)) == [6, 8]
    assert (tmp_path / "checkpoint-last").is_dir() and (tmp_path / "final").is_dir()
    written(tmp_path, 6)
    second = set_aside(tmp_path, None, 0)
    assert (
        second != first
        and [damage(p) for p in (*checkpoints(first).values(), second / "checkpoint-6")] == [None] * 3
    )
    assert set_aside(tmp_path, None, 0) is None


def test_a_run_that_goes_on_keeps_what_it_stands_on(tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for step in (2, 4, 6, 8):
        written(run, step)
    (run / "checkpoint-8" / "model.safetensors").write_text("damaged")
    assert set_aside(run, run / "checkpoint-6", 6) is None
    aside = set_aside(run, run / "checkpoint-4", 4)
    assert list(checkpoints(aside)) == [6] and list(checkpoints(run)) == [2, 4, 8]
    other = set_aside(run, written(elsewhere, 4), 4)
    assert list(checkpoints(other)) == [2, 4, 8] and list(checkpoints(elsewhere)) == [4]
