"""How `transformers.Trainer` comes to write checkpoints that are whole or not there.

Everything is written into a staging folder, brought to the disk, listed in a manifest, and moved into place at once. A
process that is killed at any moment, or a disk that fills up, leaves the checkpoints before it as they were.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from covey.errors import warn
from covey.trainer.checkpoint.choosing import Choice, choose
from covey.trainer.checkpoint.faults import Faults
from covey.trainer.checkpoint.folders import (
    STAGING,
    checkpoint_name,
    checkpoints,
    publish,
    rotate,
    set_aside,
    tidy,
)
from covey.trainer.checkpoint.manifest import write_manifest
from covey.trainer.checkpoint.quiet import without_progress_bars


class WholeCheckpoints(Trainer):
    """A Trainer whose checkpoints are whole or not there.

    Overridden hooks: `_save_checkpoint`; `_get_output_dir`, which is the staging folder meanwhile; `_push_from_checkpoint`,
    which waits until the checkpoint is in place; and those that write files, so that a fault of the disk in one process is
    known to all of them before anyone goes on.
    """

    _faults: Faults | None = None
    """Of the checkpoint that is being written."""
    _push_waits = False
    save_fault: str | None = None
    """Why the last checkpoint could not be written; None: it was."""

    def save_own_state(self, folder: Path) -> None:
        """Called in every process while a checkpoint is written: what a subclass adds to it."""

    def choose_checkpoint(self, asked: str | bool | None) -> Choice:
        """What `resume_from_checkpoint` means, after what a killed process left behind was brought into order.

        Raises:
            CheckpointError: the checkpoint that was asked for is damaged or not there, or none is whole.
        """
        run = Path(self.args.output_dir or ".")
        if self.args.local_process_index == 0:
            tidy(run)
        self._exchange(None)
        return choose(asked, run, self.args.local_process_index == 0, self._exchange)

    def set_checkpoints_aside(self, resumed: str | None) -> None:
        """Called in every process when a run begins or goes on: the checkpoints of other runs make way for its own.

        One process does it. Where nodes have disks of their own, one on each node does.
        """
        run = Path(self.args.output_dir or ".")
        for turn in (self.is_world_process_zero(), self.args.local_process_index == 0):
            aside = (
                set_aside(run, Path(resumed) if resumed else None, self.state.global_step) if turn else None
            )
            self._exchange(None)
            if aside is not None:
                print(f"The checkpoints of an earlier run in {run} are now in {aside}.")

    def last_checkpoint(self) -> Path | None:
        """The checkpoint of the present step, or else the last that there is; None: there is none."""
        found = checkpoints(Path(self.args.output_dir or "."))
        return found.get(self.state.global_step) or next(reversed(found.values()), None)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(self._get_output_dir(trial))
        name = checkpoint_name(self.state.global_step)
        staged, target = run / STAGING / name, run / name
        best_before = self.state.best_model_checkpoint
        with self._staging() as faults:
            with faults.kept():
                super()._save_checkpoint(model, trial)
            with faults.kept():
                self._name_best(staged, target)
                self.save_own_state(staged)
            self.save_fault = self._first_of_all(faults)
            if self.save_fault is None:
                self.save_fault = self._put_in_place(staged, target, faults)
        if self.save_fault is not None:
            self.state.best_model_checkpoint = best_before
            self._give_up(staged, run)
            return
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate(run, self.args.save_total_limit, [target, *([Path(best)] if best else [])])
            shutil.rmtree(run / STAGING, ignore_errors=True)
        if self._push_waits:
            super()._push_from_checkpoint(str(target))

    @contextmanager
    def _staging(self) -> Iterator[Faults]:
        self._faults, self._push_waits = Faults(), False
        try:
            yield self._faults
        finally:
            self._faults = None

    def _name_best(self, staged: Path, target: Path) -> None:
        """The Trainer notes the best checkpoint by the folder that it was written to, which is the staging folder."""
        best = self.state.best_model_checkpoint
        if best is not None and Path(best) == staged:
            self.state.best_model_checkpoint = str(target)
            if self.args.should_save:
                self.state.save_to_json(str(staged / TRAINER_STATE_NAME))

    def _put_in_place(self, staged: Path, target: Path, faults: Faults) -> str | None:
        """Finish a checkpoint that every process has written its share of; returns what the disk had against it.

        One process does it. Where nodes have disks of their own, one on each node does.
        """
        for turn in (self.args.should_save, self.args.local_process_index == 0):
            if turn and staged.is_dir():
                with faults.kept():
                    write_manifest(staged, self.state.global_step)
                    publish(staged, target)
            self._exchange(None)
        return self._first_of_all(faults)

    def _give_up(self, staged: Path, run: Path) -> None:
        if self.args.should_save or self.args.local_process_index == 0:
            shutil.rmtree(staged.parent, ignore_errors=True)
        if self.is_world_process_zero():
            whole = list(checkpoints(run).values())
            last = f"The last one is {whole[-1]}." if whole else "There is no earlier one."
            free = shutil.disk_usage(run).free / 1e6
            warn(
                f"Checkpoint {self.state.global_step} could not be saved: {self.save_fault}. {free:,.0f} MB are free in "
                f"{run}. {last} Training goes on, and saves again when the next checkpoint is due: free space on the "
                "disk, or lower save_total_limit."
            )

    def _first_of_all(self, faults: Faults) -> str | None:
        """The first fault of any process, the same in all of them."""
        return next((fault for fault in self._exchange(faults.first) if fault is not None), None)

    def _exchange(self, value: Any) -> list[Any]:
        """Every process's value, in the order of the processes."""
        return list(gather_object([value])) if self.args.world_size > 1 else [value]

    # --- hooks of the Trainer that write files ------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return folder if self._faults is None else os.path.join(folder, STAGING)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._faults is None:
            super()._push_from_checkpoint(checkpoint_folder)
        else:
            self._push_waits = True

    def _kept(self) -> AbstractContextManager[None]:
        return nullcontext() if self._faults is None else self._faults.kept()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        with self._kept(), without_progress_bars():
            super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._kept():
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        with self._kept():
            super()._save_scaler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with self._kept():
            super()._save_rng_state(output_dir)
