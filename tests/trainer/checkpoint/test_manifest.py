"""A manifest knows a whole checkpoint from a damaged one."""

import os

import pytest

from covey.trainer.checkpoint import manifest
from covey.trainer.checkpoint.manifest import MANIFEST, damage, digest
from tests.trainer.checkpoint.folder import written

pytestmark = pytest.mark.any_version


def test_what_was_written_is_whole(tmp_path):
    assert damage(written(tmp_path, 3)) is None


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: os.truncate(f / "model.safetensors", 50), "model.safetensors has 50 bytes, and"),
        (lambda f: flip(f / "optimizer.pt", 40), "optimizer.pt"),
        (lambda f: flip(f / "model.safetensors", -1), "model.safetensors"),
        (lambda f: (f / "covey" / "run0.json").unlink(), "covey/run0.json is missing"),
        (lambda f: (f / MANIFEST).unlink(), "manifest.json is missing or cannot be read"),
        (lambda f: (f / MANIFEST).write_text('{"files": '), "manifest.json is missing or cannot be read"),
        (lambda f: (f / MANIFEST).write_text("[]"), "manifest.json is missing or cannot be read"),
    ],
)
def test_every_harm_is_named(tmp_path, harm, says):
    folder = written(tmp_path, 3)
    harm(folder)
    assert says in damage(folder)


def test_many_harms_are_counted(tmp_path):
    folder = written(tmp_path, 3)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json", "covey/run0.json"):
        (folder / name).unlink()
    assert damage(folder).endswith(", and 1 more")


def test_what_is_added_later_is_no_damage(tmp_path):
    folder = written(tmp_path, 3)
    (folder / "notes.txt").write_text("mine")
    assert damage(folder) is None


def test_both_ends_of_a_large_file_are_in_its_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "DIGESTED_BYTES", 10)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(100)))
    whole = digest(path)
    for at, is_seen in [(0, True), (9, True), (50, False), (90, True), (99, True)]:
        flip(path, at)
        assert (digest(path) != whole) is is_seen, at
        flip(path, at)


def test_every_file_is_on_the_disk_before_the_manifest_says_so(tmp_path, monkeypatch):
    folder, order = written(tmp_path, 3, manifest=False), []
    real = manifest.sync
    monkeypatch.setattr(
        manifest, "sync", lambda path: (order.append((path.name, (folder / MANIFEST).exists())), real(path))
    )
    manifest.write_manifest(folder, 3)
    files = {"model.safetensors", "optimizer.pt", "trainer_state.json", "run0.json"}
    assert files <= {name for name, is_said in order if not is_said}
    assert "manifest.json" in {name for name, is_said in order if is_said}
