"""The micro-batches of one rollout (one round of sampling), in the order in which they are trained on.

The only place that knows how many optimizer steps a sample serves. A rollout that is unfinished when a checkpoint is
written goes into it, so that a resumed run continues inside.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.errors import CheckpointError
from covey.types import Picture
from covey.update.micro_batch import MicroBatch
from covey.vision.stored import restored, stored


@dataclass(eq=False)
class RolloutBuffer:
    """Micro-batches of one process, and how many of them have been handed out."""

    batches: list[MicroBatch] = field(default_factory=list)
    iterations: int = 1
    """Times that each is handed out."""
    position: int = 0
    """Micro-batches that have been handed out."""

    @property
    def is_spent(self) -> bool:
        """True once every micro-batch has been handed out as often as it should."""
        return self.position >= len(self.batches) * self.iterations

    def fill(self, batches: list[MicroBatch], iterations: int) -> None:
        """Start over with fresh micro-batches, each of which is handed out `iterations` times."""
        assert self.is_spent, (
            f"{self.position} of {len(self.batches) * self.iterations} micro-batches were handed out"
        )
        self.batches, self.iterations, self.position = batches, iterations, 0

    def next(self, count: int) -> list[MicroBatch]:
        """Return the `count` micro-batches of the next optimizer step."""
        numbers = range(self.position, self.position + count)
        self.position += count
        return [self.batches[n % len(self.batches)] for n in numbers]

    def end(self) -> None:
        """Hand out no more of it."""
        self.iterations = 0

    def save(self, path: Path) -> None:
        """Write the rollout to `path`.json and `path`.pt; nothing where it is spent."""
        if self.is_spent:
            return
        fields = [vars(b) for b in self.batches]
        texts = [{n: v for n, v in f.items() if not isinstance(v, Tensor)} for f in fields]
        tensors = [{n: v.cpu() for n, v in f.items() if isinstance(v, Tensor)} for f in fields]
        torch.save(tensors, path.with_suffix(".pt"))
        shown = [p for b in self.batches for of_row in b.pictures for p in of_row]
        for part in texts:
            part["pictures"] = [[p.digest for p in of_row] for of_row in part["pictures"]]
        state = {"iterations": self.iterations, "position": self.position, "batches": texts}
        state |= {"pictures": stored(shown)} if shown else {}
        path.with_suffix(".json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, path: Path, position: int) -> None:
        """Continue the rollout that was saved to `path`, of which `position` micro-batches had been handed out.

        Raises:
            CheckpointError: there is none, it does not belong to this point of the run, or a picture has changed.
        """
        if position == 0:
            return
        if not path.with_suffix(".json").exists():
            raise CheckpointError(
                f"The checkpoint stopped inside a round of sampling, and {path.with_suffix('.json')} is missing. It was "
                "written by another number of processes or by another program. Resume from another checkpoint."
            )
        try:
            state = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            pictures = restored(state.get("pictures", {}))
            tensors = torch.load(path.with_suffix(".pt"), weights_only=True)
            batches = _batches(state["batches"], tensors, pictures)
            written = int(state["position"]), int(state["iterations"])
        except CheckpointError:
            raise
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            pickle.UnpicklingError,
            RuntimeError,
            OSError,
        ) as error:
            raise CheckpointError(
                f"The round of sampling in {path.with_suffix('.json')} and .pt cannot be read ({type(error).__name__}: {error}): "
                "another version wrote it, or it was changed. Resume from a checkpoint between two rounds, or with the version "
                "that wrote it."
            ) from error
        if written[0] != position:
            raise CheckpointError(
                f"{path.with_suffix('.json')} stopped after {written[0]} micro-batches, and the settings of this run "
                f"put the checkpoint after {position}. Resume with the batch settings that the run was started with."
            )
        self.batches, self.iterations, self.position = batches, written[1], position


def _batches(
    texts: list[dict[str, Any]], tensors: list[dict[str, Any]], pictures: Mapping[str, Picture]
) -> list[MicroBatch]:
    """Return saved micro-batches, from what JSON holds of them and their tensors."""
    for part in texts:  # JSON has no tuples
        part["rows"] = tuple(part["rows"])
        part |= {name: [tuple(ids) for ids in part[name]] for name in ("prompts", "completions")}
        part["pictures"] = [tuple(pictures[d] for d in of_row) for of_row in part.get("pictures", [])]
    return [MicroBatch(**f, **t) for f, t in zip(texts, tensors, strict=True)]
