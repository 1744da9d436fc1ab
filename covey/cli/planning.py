"""Memory and time in `covey plan`, as labels and values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import CoveyError, DatasetError

if TYPE_CHECKING:
    from covey.forecast.memory import Demand, Sizes
    from covey.forecast.step_time import StepTime
    from covey.plan import Plan
    from covey.recipes import Recipe

Rows = list[tuple[str, str]]

MIB, GIB = 2**20, 2**30


def memory_rows(recipe: Recipe, plan: Plan, loads_data: bool = True) -> Rows:
    """Return the bytes of one process by phase; where they cannot be reckoned, the reason."""
    from covey.forecast.memory import offloaded, phases, totals
    from covey.forecast.sizes import prompt_lengths

    try:
        lengths = prompt_lengths(recipe, loads_data)
        sizes, demand = reckoned(recipe, plan, lengths.longest)
    except CoveyError as error:  # a plan without it is still a plan
        return [("not reckoned", str(error))]
    parts = phases(sizes, demand)
    rows = [
        ("weights", f"{sizes.weights / 1e6:,.1f} million, {sizes.trained / 1e6:,.1f} million trained"),
        ("tokens per prompt", str(lengths)),
        (
            "tokens per completion",
            f"{demand.completion_tokens} at most, the limit; all are taken to reach it",
        ),
    ]
    for phase, held in parts.items():
        rows += [(f"{phase}: {part}", amount(size)) for part, size in held.items()]
    python = process_bytes() if demand.is_cpu else 0
    if python:
        rows.append(("always: Python and libraries", amount(python)))
    rows += [
        (f"while it {verb}s", amount(total + python))
        for verb, total in zip(("sample", "update"), totals(parts).values(), strict=True)
    ]
    waiting = offloaded(sizes, demand)
    if waiting:
        rows.append(("in the host's memory: activations", amount(waiting)))
    return [*rows, ("of one process on", free_memory(demand, max(totals(parts).values()) + python))]


def verdict_rows(recipe: Recipe, plan: Plan, gib: float, loads_data: bool = True) -> Rows:
    """Return whether the recipe fits a GPU of so many GiB, by how much, and what would fit where it does not."""
    from covey.forecast.fitting import fit
    from covey.forecast.sizes import prompt_lengths

    try:
        found = fit(recipe, plan, prompt_lengths(recipe, loads_data).longest, gib * GIB)
    except CoveyError as error:
        return [("not reckoned", str(error))]
    need, apart = amount(found.needed), amount(abs(found.size - found.needed))
    if found.fits:
        return [("fits", f"{need} of {gib:g} GiB, 1 GiB for CUDA among it; {apart} are left")]
    rows = [("does not fit", f"{need} of {gib:g} GiB, 1 GiB for CUDA among it; {apart} too much")]
    for name, size in found.instead.items():
        rows.append(("would fit" if size <= found.size else "would not either", f"{name}: {amount(size)}"))
    return rows


def time_rows(timing: StepTime, plan: Plan) -> Rows:
    """Return the seconds of a step by phase, and those of the run."""
    rows = [(phase, f"{seconds:.2f} s per step") for phase, seconds in timing.phases.items()]
    rows.append(("step", f"{timing.seconds:.2f} s, between {timing.low:.2f} and {timing.high:.2f} s"))
    rows.append(("run", f"{duration(timing.seconds * plan.total_steps)} for {plan.total_steps} steps"))
    share, measured = plan.completions_per_step // plan.ranks, f"{timing.steps} steps; the first warms up"
    if timing.completions is not None and timing.completions != share:
        measured += (
            f". They have {timing.completions} completions, for whole groups on one process; a process of the plan "
            f"has {share}, and takes less time"
        )
    rows.append(("measured", measured))
    completions = f"{timing.mean_tokens:.0f} tokens on average, {timing.cut_share:.0%} hit the limit"
    rows.append(("completions", completions))
    rows.append(("memory then", amount(timing.peak_mb * MIB)))
    return rows


def outcome_rows(
    recipe: Recipe, plan: Plan, run: str, timing: StepTime | None, loads_data: bool = True
) -> Rows:
    """Return what was forecast beside what was recorded.

    Raises:
        DatasetError: the run has no record, or no steps.
    """
    from covey.forecast.memory import peak
    from covey.forecast.sizes import prompt_lengths
    from covey.forecast.step_time import recorded

    try:
        came = recorded(run)
    except (FileNotFoundError, ValueError) as error:
        raise DatasetError(str(error)) from error
    rows = [("run", f"{Path(run)}, {came.steps} steps")]
    for phase, seconds in came.phases.items():
        foreseen = "" if timing is None else f"; foreseen {timing.phases[phase]:.2f} s"
        rows.append((phase, f"{seconds:.2f} s per step{foreseen}"))
    foreseen = (
        "" if timing is None else f"; foreseen {timing.seconds:.2f} s, {timing.low:.2f} to {timing.high:.2f}"
    )
    rows.append(("step", f"{came.seconds:.2f} s{foreseen}"))
    if timing is not None:
        rows.append(
            ("tokens foreseen", f"{timing.mean_tokens:.0f} on average, as the untrained policy writes")
        )
    rows.append(("tokens per completion", f"{came.mean_tokens:.0f} on average"))
    try:
        sizes, demand = reckoned(recipe, plan, prompt_lengths(recipe, loads_data).longest)
    except CoveyError:  # the section Memory has the reason
        return [*rows, ("memory", amount(came.peak_mb * MIB))]
    python = process_bytes() if demand.is_cpu else 0
    limit = amount(peak(sizes, demand) + python)
    mean = amount(peak(sizes, replace(demand, completion_tokens=math.ceil(came.mean_tokens))) + python)
    return [
        *rows,
        ("memory", f"{amount(came.peak_mb * MIB)}; foreseen {mean} at that length, {limit} at the limit"),
    ]


def reckoned(recipe: Recipe, plan: Plan, prompt_tokens: int) -> tuple[Sizes, Demand]:
    """Return the sizes of the model, and the demand of the settings."""
    from covey.forecast.sizes import demand_of, sizes_of

    return sizes_of(recipe), demand_of(recipe, plan, prompt_tokens)


def process_bytes() -> int:
    """Return the memory of this process once it has imported what training imports; it has no model."""
    import psutil

    import covey.trainer.grpo_trainer  # noqa: F401  # for what it imports

    return int(psutil.Process().memory_info().rss)


def amount(size: float) -> str:
    """Return bytes in words, in the unit that reads best."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def duration(seconds: float) -> str:
    """Return seconds in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def free_memory(demand: Demand, needed: float) -> str:
    """Return the device that memory is reckoned for, what is free there, and whether that is enough."""
    import torch

    from covey.config.hardware import has_cuda
    from covey.sample.native.memory_budget import free_bytes

    place = "a CPU" if demand.is_cpu else "a GPU"
    if demand.is_cpu or has_cuda():
        free = free_bytes(torch.device("cpu" if demand.is_cpu else "cuda"))
        enough = "" if needed <= free else ": not enough"
        return f"{place}; {amount(free)} are free here{enough}"
    return f"{place}; there is none here"
