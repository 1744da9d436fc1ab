"""A run from its first step to its end: it is recorded, it can be stopped in order, and it says how to go on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from torch import nn
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from covey.config import GRPOConfig
from covey.errors import DatasetError, warn
from covey.metrics import Ledger
from covey.trainer.checkpoint.resuming import ResumableTrainer
from covey.trainer.checkpoint.timing import EndOfEpoch, is_over
from covey.trainer.recording import Recording, resolved_display
from covey.trainer.run_log import Books
from covey.trainer.stop_signals import RunStopped, StopAfterStep, StopSignals, farewell

T = TypeVar("T")


class RecordedTrainer(ResumableTrainer):
    """A Trainer that keeps books of its run.

    Overridden hooks: `train`; `log`, which adds the metrics of the steps; `_save_checkpoint`, whose outcome is an event.
    """

    args: GRPOConfig

    def restart(self) -> None:
        """Called before a run begins or goes on: what it changes is as it was at first."""
        raise NotImplementedError

    def end_of_step(self) -> None:
        """Called once per optimizer step, when it is done and counted."""
        raise NotImplementedError

    def keep_books(self, make_recording: Callable[[], Recording]) -> None:
        """Begin to count; called once, when the Trainer is there.

        Args:
            make_recording: called on the process that keeps the record.
        """
        if resolved_display(self.args.display) == "live":
            self.remove_callback(ProgressCallback)
            self.remove_callback(PrinterCallback)
        is_main = self.is_world_process_zero()
        self.books = Books(self._exchange, make_recording() if is_main else None)
        self.stop = StopAfterStep(StopSignals(is_main, self.args.world_size > 1), self._exchange)
        self.resume_command: str | None = None
        self._resumed: str | None = None
        """The checkpoint that the run goes on from."""
        self._remarks: tuple[str, ...] = ()
        for callback in (self.stop, EndOfEpoch(), _Moments(self)):
            self.add_callback(callback)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; see `transformers.Trainer.train`.

        Ctrl-C and SIGTERM end the step, save a checkpoint and exit; see `covey.trainer.stop_signals`.

        Args:
            resume_from_checkpoint: True or 'last': go on from the last whole checkpoint in output_dir. 'auto': the same, or
                start where there is none. A folder: that one. Default: `args.resume_from_checkpoint`.

        Raises:
            CheckpointError: the checkpoint that was asked for is damaged, or none is whole.
            RunStopped: a signal stopped the run; it ends the program unless it is caught.
        """
        if self.train_dataset is None:
            raise DatasetError("There is nothing to train on. Pass train_dataset.")
        asked = self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        choice = self.choose_checkpoint(asked)
        self.restart()
        self._resumed, self._remarks, self._random_state_of = choice.folder, choice.remarks, None
        self.books.run = Ledger()
        try:
            with self.stop.signals.heard():
                result = super().train(choice.folder, *args, **kwargs)
        except KeyboardInterrupt:
            self.books.close("interrupted", "Stopped from the keyboard.")
            raise
        except BaseException as error:
            self.books.close("failed", str(error), traceback=traceback.format_exc())
            raise
        signal = self.stop.stopped_by or self.stop.signals.received
        if signal:
            self._leave(signal)
        self.books.close("finished")
        return result._replace(training_loss=result.metrics["train_loss"])

    def read_or_save(self, read: Callable[[], T]) -> T:
        """What `read` returns; where a row cannot be used in any process, the steps so far are saved before the run ends.

        Called between two optimizer steps, before anything is drawn.

        Raises:
            DatasetError: in all processes.
        """
        try:
            rows, fault = read(), None
        except DatasetError as error:
            rows, fault = None, str(error)
        fault = next((f for f in self._exchange(fault) if f is not None), None)
        if fault is None:
            return cast(T, rows)
        is_saved = self.stop.saved_at == self.state.global_step and self.save_fault is None
        if self.state.global_step and not is_saved:
            self._save_checkpoint(self.model_wrapped, None)
        saved = self.last_checkpoint()
        ways = f" The run is saved in {saved}: mend the row, and go on from there." if saved else ""
        raise DatasetError(f"{fault}{ways}")

    def _leave(self, signal: int) -> NoReturn:
        """End the run that a signal stopped."""
        saved = self.last_checkpoint()
        message = farewell(
            signal,
            self.state.global_step,
            self.state.max_steps,
            None if saved is None else str(saved),
            self.save_fault,
            self.resume_command,
        )
        self.books.close("finished" if is_over(self.state) else "interrupted", message)
        if self.is_world_process_zero():
            print(f"\n{message}", file=sys.stderr, flush=True)
        self.stop.signals.pass_on()
        raise RunStopped(signal, message)

    def begin(self) -> None:
        """Called when a run begins or goes on, before its first step."""
        self.set_checkpoints_aside(self._resumed)  # before the record, which they are named after, is moved
        if self.books.recording is not None:
            self.books.recording.begin(self.state.global_step)
        for remark in self._remarks:
            self.books.event("warning", remark, self.state.global_step)
            if self.is_world_process_zero():
                warn(remark)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the metrics that came in since the last training log."""
        if "loss" in logs:
            tokens = self.state.num_input_tokens_seen
            logs = {**logs, **self.books.numbers_of_log(), "num_tokens": tokens}
        if "train_loss" in logs:  # the Trainer's own is that of the steps since the last start
            logs |= self.books.numbers_of_run()
        super().log(logs, start_time)
        if "loss" in logs and self.books.recording is not None:
            self.books.recording.logged(self.callback_handler.callbacks)

    def save_own_state(self, folder: Path) -> None:
        """What a checkpoint holds beside the Trainer's own; the record is on the disk before the checkpoint is in place."""
        super().save_own_state(folder)
        if self.books.recording is not None:
            self.books.recording.sync()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        step = self.state.global_step
        if self.save_fault is None:
            self.books.event("checkpoint", f"Checkpoint {step} saved.", step)
        else:
            self.books.event("warning", f"Checkpoint {step} could not be saved: {self.save_fault}.", step)

    @property
    def _output_dir(self) -> str:
        assert self.args.output_dir is not None, "TrainingArguments fills it"
        return self.args.output_dir

    @property
    def _present_step(self) -> int:
        """The optimizer step that is being taken, from 1 on."""
        return self.state.global_step + 1


class _Moments(TrainerCallback):
    """Tells the trainer when a run begins and when a step is over, in the Trainer's own order of events."""

    def __init__(self, trainer: RecordedTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.end_of_step()
