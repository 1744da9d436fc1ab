"""How a run that goes on from a checkpoint becomes the run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.trainer.checkpoint.saving import WholeCheckpoints
from covey.trainer.checkpoint.state import RunState, load_state, save_state


class ResumableTrainer(WholeCheckpoints):
    """A Trainer whose resumed run is the same run.

    Overridden hooks: `_load_optimizer_and_scheduler`, which reads the rest of the state too; `_load_rng_state`, which comes
    too late for rewards that draw random numbers; `_evaluate`, which would evaluate at the start once more.
    """

    _random_state_of: str | None = None
    """The checkpoint whose random numbers are still to be taken up."""

    def run_state(self) -> RunState:
        """What changes while a run goes on, beside model, optimizer and scheduler."""
        raise NotImplementedError

    def position_in_window(self) -> int:
        """Micro-batches that the present window has handed out at this point of the run."""
        raise NotImplementedError

    def draw_as_before(self) -> None:
        """Take up the random numbers of the checkpoint that the run goes on from, once; called before anything is drawn."""
        self._load_rng_state(self._random_state_of)

    def save_own_state(self, folder: Path) -> None:
        save_state(folder, self.args.process_index, self.run_state())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Called while a checkpoint is loaded, with the state of the run already known."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state = self.run_state()
        load_state(checkpoint, self.args.process_index, self.position_in_window(), state)
        for batch in state.rollout.batches:
            vars(batch).update(vars(batch.to(self.args.device)))
        self._random_state_of = checkpoint

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The Trainer loads the state of the random numbers after the first batch of a resumed epoch; rewards that draw
        some have then been asked already. So it is loaded before, once."""
        if self._random_state_of is not None:
            self._random_state_of = None
            super()._load_rng_state(checkpoint)

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
        if skip_scheduler and self.state.global_step:
            return {}  # eval_on_start, which a resumed run had at its start
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
