"""A window: the micro-batches that one round of sampling feeds, in the order in which they are trained on.

The only place that knows how many optimizer steps a sample serves. A window that is open when a checkpoint is written
goes into it, so that a resumed run continues inside.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.errors import CheckpointError
from covey.update.micro_batch import MicroBatch


class Window:
    """Micro-batches of one process, and how many of them have been handed out."""

    def __init__(self) -> None:
        self.batches: list[MicroBatch] = []
        self.iterations = 1
        self.position = 0

    @property
    def is_spent(self) -> bool:
        """Whether every micro-batch has been handed out as often as it should."""
        return self.position >= len(self.batches) * self.iterations

    def open(self, batches: list[MicroBatch], iterations: int) -> None:
        """Start over with fresh micro-batches."""
        assert self.is_spent, (
            f"{self.position} of {len(self.batches) * self.iterations} micro-batches were handed out"
        )
        self.batches, self.iterations, self.position = batches, iterations, 0

    def next(self, count: int) -> list[MicroBatch]:
        """The micro-batches of the next optimizer step."""
        numbers = range(self.position, self.position + count)
        self.position += count
        return [self.batches[n % len(self.batches)] for n in numbers]

    def save(self, path: Path) -> None:
        """Write the window to `path`.json and `path`.pt; nothing where it is spent."""
        if self.is_spent:
            return
        texts = [
            {f.name: getattr(b, f.name) for f in fields(b) if not _is_tensor(b, f.name)} for b in self.batches
        ]
        tensors = [
            {f.name: getattr(b, f.name).cpu() for f in fields(b) if _is_tensor(b, f.name)}
            for b in self.batches
        ]
        torch.save(tensors, path.with_suffix(".pt"))
        state = {"iterations": self.iterations, "position": self.position, "batches": texts}
        path.with_suffix(".json").write_text(json.dumps(state))

    def load(self, path: Path, position: int) -> None:
        """Continue the window that was saved to `path`, which `position` micro-batches had been handed out of.

        Raises:
            CheckpointError: there is none, or it does not belong to this point of the run.
        """
        if position == 0:
            return
        if not path.with_suffix(".json").exists():
            raise CheckpointError(
                f"The checkpoint stopped inside a round of sampling, and {path.with_suffix('.json')} is missing. It was "
                "written by another number of processes or by another program. Resume from another checkpoint."
            )
        state = json.loads(path.with_suffix(".json").read_text())
        if state["position"] != position:
            raise CheckpointError(
                f"{path.with_suffix('.json')} stopped after {state['position']} micro-batches, and the settings of this run "
                f"put the checkpoint after {position}. Resume with the batch settings that the run was started with."
            )
        tensors = torch.load(path.with_suffix(".pt"), weights_only=True)
        self.batches = [MicroBatch(**_typed(t), **v) for t, v in zip(state["batches"], tensors, strict=True)]
        self.iterations, self.position = state["iterations"], position


def _is_tensor(batch: MicroBatch, name: str) -> bool:
    return isinstance(getattr(batch, name), Tensor)


def _typed(texts: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; the fields that hold some get them back."""
    return {
        **texts,
        "prompts": [tuple(ids) for ids in texts["prompts"]],
        "completions": [tuple(ids) for ids in texts["completions"]],
        "rows": tuple(texts["rows"]),
    }
