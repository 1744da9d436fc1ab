"""The schedule and the optimizer's numbers of a run that goes on: those of its present settings, where the checkpoint has others.

A checkpoint holds the learning rate of the step to come as the old schedule had it: 0 at its end, although the run now goes on
beyond it; and the base rate, weight decay and betas of the old settings. Where nothing changed, nothing changes here: the
rates are worked out by the same products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from covey.errors import warn

OF_SETTINGS = ("weight_decay", "betas", "eps", "momentum")
"""Numbers of an optimizer's groups that come from settings, and that no optimizer changes by itself."""


class Wanted:
    """Numbers that the present settings ask for, looked at before the checkpoint is read."""

    def __init__(self, optimizer: Any, scheduler: Any, learning_rate: float) -> None:
        self.groups: list[Mapping[str, Any]] = [
            {name: group[name] for name in OF_SETTINGS if name in group} for group in optimizer.param_groups
        ]
        self.base_rates: Sequence[float] = list(
            getattr(getattr(scheduler, "scheduler", scheduler), "base_lrs", ())
        )
        self.learning_rate = learning_rate

    def apply(self, optimizer: Any, scheduler: Any, rate_before: float | None) -> None:
        """Let optimizer and schedule, which were read from the checkpoint, follow the present settings.

        Args:
            rate_before: the learning rate in the settings of the run that wrote the checkpoint; None: it is not known.
        """
        groups, schedule = optimizer.param_groups, getattr(scheduler, "scheduler", scheduler)
        for group, wanted in zip(groups, self.groups, strict=True):
            group.update(wanted)
        if isinstance(schedule, LambdaLR) and len(self.base_rates) == len(groups):
            rules = zip(groups, self.base_rates, schedule.lr_lambdas, strict=True)
            for group, base, rule in rules:
                group["initial_lr"], group["lr"] = base, base * rule(schedule.last_epoch)
            schedule.base_lrs = list(self.base_rates)
            schedule._last_lr = [group["lr"] for group in groups]
        elif rate_before not in (None, self.learning_rate):
            warn(
                f"learning_rate={self.learning_rate} has no effect: {type(schedule).__name__} goes on with the rate in the "
                f"checkpoint, which began at {rate_before}."
            )
