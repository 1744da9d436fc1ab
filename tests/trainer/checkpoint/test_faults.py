"""A fault of the disk is told from every other error, with each of the writers that a checkpoint uses."""

import json

import pytest
import torch
from safetensors.torch import save_file

from covey.trainer.checkpoint.faults import Faults, disk_fault
from tests.trainer.checkpoint.lives import full_disk

pytestmark = pytest.mark.any_version

LARGE = torch.zeros(100_000)


def wrapped(path):
    try:
        path.write_text("x" * 100_000)
    except OSError as error:
        raise RuntimeError("the callback failed") from error


WRITERS = {
    "torch": lambda p: torch.save(LARGE, p),
    "safetensors": lambda p: save_file({"w": LARGE}, p),
    "json": lambda p: p.write_text(json.dumps([0] * 100_000)),
    "behind another error": wrapped,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_kept_and_named(tmp_path, writer):
    faults = Faults()
    with full_disk(), faults.kept():
        WRITERS[writer](tmp_path / "file")
    assert faults.first is not None and faults.first


@pytest.mark.parametrize(
    "error", [ValueError("shape"), RuntimeError("CUDA error"), KeyError("x"), KeyboardInterrupt()]
)
def test_every_other_error_goes_through(error):
    assert disk_fault(error) is None
    with pytest.raises(type(error)), Faults().kept():
        raise error


def test_the_first_fault_is_the_one_that_is_told():
    faults = Faults()
    for text in ("No space left on device", "something that followed from it"):
        with faults.kept():
            raise OSError(text)
    assert faults.first == "No space left on device"
