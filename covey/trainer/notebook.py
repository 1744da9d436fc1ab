"""The table of a run in a notebook: what tells whether the policy learns, not the loss, which says nothing about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.text.foreign import as_html

if TYPE_CHECKING:
    from transformers.utils.notebook import NotebookTrainingTracker

COLUMNS = {
    "Reward": "reward",
    "Reward std": "reward_std",
    "Length": "completions/mean_length",
    "Cut off": "completions/clipped_ratio",
    "Turns": "episodes/turns/mean",
    "Calls": "tools/call_frequency",
    "Calls failed": "tools/failure_frequency",
    "KL": "kl",
    "Loss": "loss",
}
"""Heading and metric."""


class NotebookTable(TrainerCallback):
    """Draws a progress bar, and a row per log and per evaluation; takes the place of transformers' own table."""

    def __init__(self) -> None:
        self.table: NotebookTrainingTracker | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        from transformers.utils.notebook import NotebookTrainingTracker  # needs IPython

        self.table = NotebookTrainingTracker(state.max_steps, ["Step"])  # others are added as they come

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if self.table is not None:
            self.table.update(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        """Write the row of a log; of an evaluation its rewards, under headings of its own."""
        if self.table is None or logs is None:
            return
        shown = {heading: logs[name] for heading, name in COLUMNS.items() if "loss" in logs and name in logs}
        means = [n for n in logs if n.startswith("rewards/") and n.endswith("/mean") and "loss" in logs]
        shown |= {name.split("/")[1]: logs[name] for name in means} if len(means) > 1 else {}
        shown |= {n.replace("_", " ", 1): value for n, value in logs.items() if is_evaluated_reward(n)}
        if shown:
            # The headings go into the page as they are.
            self.table.write_line({"Step": state.global_step} | {as_html(n): v for n, v in shown.items()})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if self.table is not None:
            self.table.update(state.global_step, force_update=True)
        self.table = None


def is_evaluated_reward(name: str) -> bool:
    """Return whether a metric is the reward of an evaluation, or of one of several."""
    return name.startswith("eval_") and name.endswith("reward") and "/" not in name
