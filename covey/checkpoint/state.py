"""What Covey adds to a checkpoint of `transformers.Trainer`, so that a resumed run is the same run.

    covey/rank<r>.json, .pt     the window that was open: its micro-batches, and how many had been handed out
    covey/metrics<r>.json       metrics that had not been logged yet
    covey/entropy<r>.json       the coefficient of the entropy bonus, where it adapts
    covey/reference.pt          the reference, where it moves

Random numbers need no state: they depend on the seed, the step, the prompt and the index.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from covey.errors import CheckpointError
from covey.metrics import Ledger
from covey.update.entropy import EntropyBonus
from covey.update.reference import Reference
from covey.update.window import Window


def save_state(
    checkpoint: str | Path,
    rank: int,
    window: Window,
    ledger: Ledger,
    bonus: EntropyBonus,
    reference: Reference | None,
) -> None:
    """Write this process's share into a checkpoint. `reference` is given where it moves and this process writes it."""
    folder = Path(checkpoint) / "covey"
    folder.mkdir(parents=True, exist_ok=True)
    window.save(folder / f"rank{rank}")
    (folder / f"metrics{rank}.json").write_text(json.dumps(ledger.state()))
    if bonus.adaptation is not None:
        (folder / f"entropy{rank}.json").write_text(json.dumps(bonus.state()))
    if reference is not None:
        torch.save(reference.state(), folder / "reference.pt")


def load_state(
    checkpoint: str | Path,
    rank: int,
    position: int,
    window: Window,
    ledger: Ledger,
    bonus: EntropyBonus,
    reference: Reference | None,
) -> None:
    """Read it back.

    Args:
        position: micro-batches that the present window has handed out at this point of the run.
        reference: given where it moves.

    Raises:
        CheckpointError: something that this point of the run needs is missing, or belongs to another run.
    """
    folder = Path(checkpoint) / "covey"
    window.load(folder / f"rank{rank}", position)
    metrics = folder / f"metrics{rank}.json"
    if metrics.exists():
        ledger.restore(json.loads(metrics.read_text()))
    if bonus.adaptation is not None:
        file = folder / f"entropy{rank}.json"
        if not file.exists():
            raise CheckpointError(
                f"{file} is missing: the coefficient of the entropy bonus had adapted, and is not known. Resume with the "
                "settings that the run was started with."
            )
        bonus.restore(json.loads(file.read_text()))
    if reference is not None:
        file = folder / "reference.pt"
        if not file.exists():
            raise CheckpointError(f"{file} is missing: the reference had moved, and cannot be made anew.")
        reference.restore(torch.load(file, weights_only=True))
