"""A checkpoint at the end of an epoch is written after what the epoch's end logs and evaluates.

`transformers.Trainer` saves by steps before it evaluates by epochs. A run that goes on from such a checkpoint would begin
the next epoch and never have that evaluation.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class AfterTheEpoch(TrainerCallback):
    """Puts off what is to be saved at the last step of an epoch until the epoch is closed."""

    def __init__(self) -> None:
        self._is_put_off = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        by_epoch = "epoch" in (str(args.logging_strategy.value), str(args.eval_strategy.value))
        if control.should_save and by_epoch and ends_epoch(state):
            control.should_save, self._is_put_off = False, True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = control.should_save or self._is_put_off
        self._is_put_off = False


def ends_epoch(state: Any) -> bool:
    """Whether the present step is the last of its epoch."""
    return float(state.epoch).is_integer()
