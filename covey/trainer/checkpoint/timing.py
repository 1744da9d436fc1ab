"""The end of an epoch and the end of a run, so that a run that goes on from a checkpoint there misses nothing and adds nothing.

`transformers.Trainer` saves by steps before it evaluates and logs by epochs: a run that goes on from such a checkpoint would
begin the next epoch without that evaluation. So there the checkpoint waits. And a run that goes on from its very last
checkpoint, in the middle of an epoch, would train one step more, and close the epoch again. So there nothing is left to do.
"""

from __future__ import annotations

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy


class EndOfEpoch(TrainerCallback):
    """Puts off the checkpoint of an epoch's last step until the epoch is closed, and closes the last one once."""

    def __init__(self) -> None:
        self._is_put_off = False
        self._was_over = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._is_put_off, self._was_over = False, is_over(state)
        control.should_training_stop = self._was_over

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        by_epoch = IntervalStrategy.EPOCH in (args.logging_strategy, args.eval_strategy)
        if control.should_save and by_epoch and ends_epoch(state):
            control.should_save, self._is_put_off = False, True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if self._was_over:
            control.should_log = control.should_evaluate = control.should_save = False
        control.should_save = control.should_save or self._is_put_off
        self._is_put_off = False


def ends_epoch(state: TrainerState) -> bool:
    """Return whether the Trainer closes an epoch after the present step."""
    return is_over(state) or float(state.epoch).is_integer()


def is_over(state: TrainerState) -> bool:
    """Return whether the run has taken all its steps."""
    return 0 < state.max_steps <= state.global_step
