"""Ctrl-C and SIGTERM: the run finishes its optimizer step, saves a checkpoint, and says how to go on.

    first Ctrl-C, SIGTERM   the step ends, and an evaluation if one is due; a checkpoint is saved; the program exits
    second Ctrl-C           stops at once, without saving: KeyboardInterrupt

The exit code is 128 + the signal's number, as shells have it: 130 after Ctrl-C, 143 after SIGTERM. With several processes
a signal to one of them stops all of them after the same step. Signals reach only the main thread of a program: in another
thread nothing changes. A handler that the program had set itself is called when the checkpoint is saved.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.trainer.checkpoint.timing import ends_epoch
from covey.types import Gather

Handler = Callable[[int, FrameType | None], object] | int | None

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
ECHO_SECONDS = 1.0
"""A launcher of several processes passes on a Ctrl-C that the terminal has sent to all of them already."""


class RunStopped(SystemExit):
    """A run was stopped from outside, in order. Uncaught, it ends the program with the exit code `code`.

    `signal` is the signal's number; `message` says what is saved and how to go on.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(128 + number)
        self.signal, self.message = number, message


class StopSignals:
    """Notes signals while a run goes on.

    Args:
        prints: whether to print to stderr that a signal was received; one process does.
        echoes: whether the same Ctrl-C may come twice, as under a launcher of several processes.
        clock: seconds, for tests.
    """

    def __init__(
        self, prints: bool = True, echoes: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.received: int = 0
        """Number of the first signal; 0: none came."""
        self._prints, self._echoes, self._clock = prints, echoes, clock
        self._since = 0.0
        self._before: dict[int, Handler] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals inside, and handle them as before again afterwards."""
        self.received, self._before = 0, {}
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        try:
            for number in SIGNALS:
                # Ignored: a job in the background, or under nohup. None: a handler that is not Python's and cannot be put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
            yield
        finally:
            for own, handler in self._before.items():
                signal.signal(own, handler)

    def call_previous_handler(self) -> None:
        """Give the signal to the handler that the program had set itself, if any."""
        handler = self._before.get(self.received)
        if callable(handler) and handler is not signal.default_int_handler:
            handler(self.received, None)

    def _note(self, number: int, _: FrameType | None) -> None:
        now = self._clock()
        if not self.received:
            self.received, self._since = int(number), now
            text = f"\n{NAMES[number]}: finishing this step, then saving. Ctrl-C stops at once.\n"
            if self._prints:  # print() is not to be called from a handler: it may have interrupted itself
                with contextlib.suppress(OSError):
                    os.write(2, text.encode())
        elif number == signal.SIGINT and not (self._echoes and now - self._since < ECHO_SECONDS):
            self.received = 0
            raise KeyboardInterrupt


class StopAfterStep(TrainerCallback):
    """Makes a Trainer save and stop when a signal was received in any process.

    Args:
        signals: this process's.
        gather: returns every process's value.
    """

    def __init__(self, signals: StopSignals, gather: Gather) -> None:
        self.signals, self.gather = signals, gather
        self.stopped_by = 0
        """The signal that all processes agreed to stop for; 0: none."""
        self.saved_at = -1
        """The last step whose checkpoint was due and written."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.stopped_by, self.saved_at = 0, -1

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.stopped_by = self.stopped_by or max(self.gather(self.signals.received))
        if self.stopped_by:
            control.should_save = control.should_training_stop = True

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Stop after an evaluation too, which may take long: a signal meanwhile does not wait for another step."""
        if state.global_step:
            self.on_step_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Leave an epoch open that the run stops inside: the Trainer would close it, and a resumed run closes it again."""
        if not self.stopped_by:
            return
        if not ends_epoch(state):
            control.should_log = control.should_evaluate = control.should_save = False
        if self.saved_at != state.global_step:
            control.should_save = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.saved_at = state.global_step


def stop_message(
    number: int, step: int, steps: int, saved: str | None, fault: str | None, command: str | None
) -> str:
    """Return the message of a run that the signal `number` stopped: what is saved, and how to go on.

    Args:
        saved: the checkpoint to go on from; None: there is none.
        fault: why the checkpoint of this step could not be saved; None: it was.
        command: the command that goes on, where the program knows one.
    """
    lines = [f"Stopped by {NAMES[number]} after step {step} of {steps}."]
    if fault is not None:
        lines.append(f"Checkpoint {step} could not be saved: {fault}.")
    if saved is None:
        return "\n".join([*lines, "There is no checkpoint; the run starts again at the beginning."])
    if step >= steps and fault is None:
        return "\n".join([*lines, f"The run had come to its end; it is saved in {saved}."])
    script = f"  # in {sys.argv[0]}" if sys.argv and sys.argv[0].endswith(".py") else ""
    call = command or f"trainer.train(resume_from_checkpoint=True){script}"
    return "\n".join([*lines, f"Saved in {saved}. To go on from there:", f"    {call}"])
