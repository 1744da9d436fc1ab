"""A `transformers.Trainer` whose checkpoints are whole or not there, and that goes on from them.

Everything is written into a staging folder, brought to the disk, listed in a manifest, and moved into place at once. A
process that is killed at any moment, or a disk that fills up, leaves the checkpoints before it as they were. A run that
goes on from one becomes the run that was stopped.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from covey.errors import CheckpointError, warn
from covey.text.foreign import show
from covey.text.secrets import left_out_of_files
from covey.trainer.checkpoint.choosing import Choice, choose
from covey.trainer.checkpoint.faults import Faults, first_fault
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
from covey.trainer.checkpoint.renamed import load_renamed
from covey.trainer.checkpoint.schedule import Wanted
from covey.trainer.checkpoint.state import RunState, load_state, save_state
from covey.trainer.distributed import gather

if TYPE_CHECKING:
    from covey.trainer.run_log import RunLog


class CheckpointedTrainer(Trainer):
    """A Trainer whose checkpoints are whole or not there, and whose resumed run is the run that was stopped.

    Overridden hooks: `_save_checkpoint`; `_get_output_dir`, which is the staging folder meanwhile; `_push_from_checkpoint`,
    which waits until the checkpoint is in place; those that write files, so that a fault of the disk in one process is
    known to all of them before anyone goes on; `_load_from_checkpoint` and `_load_best_model`, which know weights by all
    their names; `_load_optimizer_and_scheduler`, which reads the rest of the state too;
    `_load_rng_state`, which comes too late for rewards that draw random numbers; `_evaluate`, which would evaluate at the
    start once more.
    """

    run_log: RunLog
    """Records what became of a checkpoint; its record is on the disk before the checkpoint is in place."""

    def __init__(self, **trainer_arguments: Any) -> None:
        self.save_fault: str | None = None
        """Why the last checkpoint could not be written; None: it was."""
        self.resume_command: str | None = None
        """The command that goes on with the run, where the program knows one."""
        self._faults: Faults | None = None
        """Of the checkpoint that is being written."""
        self._choice = Choice()
        """The checkpoint that the run goes on from."""
        self._rng_checkpoint: str | None = None
        """The checkpoint whose random numbers are still to be restored."""
        super().__init__(**trainer_arguments)

    def run_state(self) -> RunState:
        """Return what changes while a run goes on, beside model, optimizer and scheduler."""
        raise NotImplementedError

    def relaxed(self) -> list[str]:
        """Return the settings under which the run cannot be resumed to the bit."""
        return []

    # --- a run begins or goes on ------------------------------------------------------------------------------------

    def choose_checkpoint(self, asked: str | bool | None) -> str | None:
        """Return the folder that `resume_from_checkpoint` means; None starts at the beginning.

        What a killed process left behind is brought into order first.

        Raises:
            CheckpointError: the checkpoint that was asked for is damaged or not there, or none is whole.
        """
        run, is_first_of_node = Path(self.args.output_dir or "."), self.args.local_process_index == 0
        if is_first_of_node:
            tidy(run)
        gather(None)
        self._choice, self._rng_checkpoint = choose(asked, run, is_first_of_node, gather), None
        return self._choice.folder

    def begin_run(self) -> None:
        """Make room for the checkpoints of a run, open its record, and report on the checkpoint that it goes on from.

        Called in every process before the first step. Checkpoints of other runs make way; one process moves them, or one
        on each node where nodes have disks of their own. It comes before the record, which they are named after, moves.
        """
        run, resumed = Path(self.args.output_dir or "."), self._choice.folder
        step = self.state.global_step
        for turn in (self.is_world_process_zero(), self.args.local_process_index == 0):
            aside = set_aside(run, Path(resumed) if resumed else None, step) if turn else None
            gather(None)
            if aside is not None:
                show(f"The checkpoints of an earlier run in {run} are now in {aside}.")
        self.run_log.begin(step)
        for remark in self._choice.remarks:
            self.run_log.event("warning", remark, step)
            if self.is_world_process_zero():
                warn(remark)

    def restore_rng_state(self) -> None:
        """Restore the random numbers of the checkpoint that the run goes on from, once, before anything is drawn."""
        self._load_rng_state(self._rng_checkpoint)

    def last_checkpoint(self) -> Path | None:
        """Return the checkpoint of the present step, or else the last that there is; None: there is none."""
        found = checkpoints(Path(self.args.output_dir or "."))
        return found.get(self.state.global_step) or next(reversed(found.values()), None)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the rest of the state too; that of the Trainer is already known here."""
        if checkpoint is None:
            return
        state, optimizer = self.run_state(), self.optimizer
        wanted = Wanted(optimizer, self.lr_scheduler, self.args.learning_rate)
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{checkpoint} cannot be read: the state of optimizer or schedule holds more than tensors ({error})."
            ) from error
        before = load_state(checkpoint, self.args.process_index, state)
        if not self.is_deepspeed_enabled:
            wanted.apply(optimizer, self.lr_scheduler, before.get("learning_rate"))
        for batch in state.rollout.batches:
            vars(batch).update(vars(batch.to(self.args.device)))
        self._rng_checkpoint = checkpoint

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load weights also where the file has other names for them than the policy."""
        is_sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        policy = self.model if model is None else model
        if is_sharded or not load_renamed(Path(resume_from_checkpoint), policy):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        is_sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if is_sharded or best is None or not load_renamed(Path(best), self.model):
            super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of weights that the checkpoint lacks, but not of those that are tied to one that it has."""
        policy: Any = self.model
        weights = dict(policy.named_parameters(remove_duplicate=False))
        missing = set(load_result.missing_keys)
        read = {id(weight) for name, weight in weights.items() if name not in missing}
        load_result.missing_keys[:] = [
            n for n in load_result.missing_keys if n not in weights or id(weights[n]) not in read
        ]
        super()._issue_warnings_after_load(load_result)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Load the random numbers once; the Trainer would do so after the first batch of a resumed epoch, when rewards
        that draw some have been asked already."""
        if self._rng_checkpoint is not None:
            self._rng_checkpoint = None
            super()._load_rng_state(checkpoint)

    def _evaluate(
        self, trial: object, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        if skip_scheduler and self.state.global_step:
            return {}  # eval_on_start, which a resumed run had at its start
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    # --- a checkpoint is written --------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        run, step = Path(self._get_output_dir(trial)), self.state.global_step
        staged, target = run / STAGING / checkpoint_name(step), run / checkpoint_name(step)
        best_before = self.state.best_model_checkpoint
        try:
            self._faults = Faults()
            self.save_fault = self._write_checkpoint(model, trial, staged, target, self._faults)
        finally:
            self._faults = None
        if self.save_fault is not None:
            self.state.best_model_checkpoint = best_before
            return self._give_up(staged, run)
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate(run, self.args.save_total_limit, [target, *([Path(best)] if best else [])])
            shutil.rmtree(run / STAGING, ignore_errors=True)
        if self.args.push_to_hub:
            with left_out_of_files():
                super()._push_from_checkpoint(str(target))
        self.run_log.event("checkpoint", f"Checkpoint {step} saved.", step)

    def _write_checkpoint(
        self, model: nn.Module, trial: object, staged: Path, target: Path, faults: Faults
    ) -> str | None:
        """Write a checkpoint and move it into place; return what the disk of any process had against it."""
        with faults.kept():
            super()._save_checkpoint(model, trial)
        with faults.kept():
            best = self.state.best_model_checkpoint
            if best is not None and Path(best) == staged:  # the Trainer noted the folder that it wrote to
                self.state.best_model_checkpoint = str(target)
                if self.args.should_save:
                    self.state.save_to_json(str(staged / TRAINER_STATE_NAME))
            save_state(staged, self.args.process_index, self.run_state())
            self.run_log.sync()
        fault = first_fault(gather(faults.first))
        if fault is not None:
            return fault
        # Every process has written its share. One finishes it; where nodes have disks of their own, one on each node.
        for turn in (self.args.should_save, self.args.local_process_index == 0):
            if turn and staged.is_dir():
                with faults.kept():
                    write_manifest(staged, self.state.global_step, self.relaxed())
                    publish(staged, target)
            gather(None)
        return first_fault(gather(faults.first))

    def _give_up(self, staged: Path, run: Path) -> None:
        """Delete a checkpoint that could not be written, and warn."""
        if self.args.should_save or self.args.local_process_index == 0:
            shutil.rmtree(staged.parent, ignore_errors=True)
        step = self.state.global_step
        fault = f"Checkpoint {step} could not be saved: {self.save_fault}."
        if self.is_world_process_zero():
            whole = list(checkpoints(run).values())
            last = f"The last one is {whole[-1]}." if whole else "There is no earlier one."
            free = shutil.disk_usage(run).free / 1e6
            warn(
                f"{fault} {free:,.0f} MB are free in "
                f"{run}. {last} Training goes on, and saves again when the next checkpoint is due: free space on the "
                "disk, or lower save_total_limit."
            )
        self.run_log.event("warning", fault, step)

    # --- hooks of the Trainer that write files ------------------------------------------------------------------------

    def _get_output_dir(self, trial: object) -> str:
        folder = super()._get_output_dir(trial)
        return folder if self._faults is None else os.path.join(folder, STAGING)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push nothing yet: `_save_checkpoint` does, when the checkpoint is in place."""

    @contextmanager
    def _faults_kept(self) -> Iterator[None]:
        """Keep faults of the disk while a checkpoint is written, without progress bars, which run through the display."""
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            with nullcontext() if self._faults is None else self._faults.kept():
                yield
        finally:
            if shown:
                logging.enable_progress_bar()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        with self._faults_kept(), left_out_of_files():
            super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._faults_kept():
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        with self._faults_kept():
            super()._save_scaler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with self._faults_kept():
            super()._save_rng_state(output_dir)
