"""Memory and time in `covey plan`, as labels and values."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import CoveyError, DatasetError
from covey.plan import Figure

if TYPE_CHECKING:
    from covey.forecast.memory import Demand, Sizes
    from covey.forecast.sizes import PromptLengths
    from covey.forecast.step_time import StepTime
    from covey.plan import Plan
    from covey.recipes import Recipe

Rows = list[tuple[str, str]]
"""A label and a text; a `Figure` where machines get something else."""

MIB, GIB = 2**20, 2**30


def memory_rows(recipe: Recipe, plan: Plan, loads_data: bool = True) -> Rows:
    """Return the bytes of one process by phase; where they cannot be reckoned, the reason."""
    from covey.forecast.memory import offloaded, phases, totals
    from covey.forecast.sizes import prompt_lengths

    try:
        lengths = prompt_lengths(recipe, loads_data)
        sizes, demand = reckoned(recipe, plan, lengths)
    except CoveyError as error:  # a plan without it is still a plan
        return [("not reckoned", str(error))]
    parts = phases(sizes, demand)
    weights, trained = (sum(getattr(part, n) for part in sizes.parts) for n in ("weights", "trained"))
    rows = [
        (
            "weights",
            Figure(
                f"{weights / 1e6:,.1f} million, {trained / 1e6:,.1f} million trained",
                {"all": weights, "trained": trained},
            ),
        ),
        *tower_rows(sizes),
        (
            "tokens per prompt",
            Figure(str(lengths), {n: getattr(lengths, n) for n in ("mean", "longest", "rows")}),
        ),
        *picture_rows(sizes, demand, lengths),
        (
            "tokens per completion",
            Figure(
                f"{demand.completion_tokens} at most, the limit; all are taken to reach it",
                demand.completion_tokens,
            ),
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
    if demand.shown is not None and not demand.is_cpu:
        rows.append(("in the host's memory: pixels", amount(demand.shown.held)))
    return [*rows, ("of one process on", free_memory(demand, max(totals(parts).values()) + python))]


def measured_rows(recipe: Recipe, memory: Rows) -> Rows:
    """Return the settings that are far from all that was measured, each with a start; nothing where the size is not known.

    Args:
        memory: from `memory_rows`, which knows the size, or says why it does not.
    """
    from covey.runs.evidence import distances

    size = getattr(dict(memory).get("weights"), "value", None)
    found = [] if size is None else distances(vars(recipe.config), size["all"], size["trained"])
    return [(d.setting, Figure(str(d), {**asdict(d), "times": d.times})) for d in found if d.is_far]


def tower_rows(sizes: Sizes) -> Rows:
    """Return the weights of what looks at pictures, among those of the policy; nothing for one that reads text alone."""
    if (tower := sizes.tower) is None:
        return []
    what = f"{tower.trained / 1e6:,.1f} million trained" if tower.trained else "none of them trained"
    values = {"all": tower.weights, "trained": tower.trained}
    return [("of them, tower and projector", Figure(f"{tower.weights / 1e6:,.1f} million, {what}", values))]


def picture_rows(sizes: Sizes, demand: Demand, lengths: PromptLengths) -> Rows:
    """Return what the pictures of the prompts come to: tokens, megabytes, the tower's share of a step, and what makes it less."""
    from covey.forecast.seeing import tower_share

    found, tower = lengths.pictures, sizes.tower
    if found is None or tower is None:
        return []
    values = {n: getattr(found, n) for n in ("pictures", "prompts", "least", "median", "most", "pixels")}
    rows: Rows = [("pictures", Figure(str(found), values))]
    written, passes = demand.group * demand.completion_tokens, 4.0 if demand.is_checkpointed else 3.0
    share = tower_share(tower, found.demand, sizes.weights, lengths.longest, written, passes)
    rows.append(("the tower's share of a step", Figure(f"{share:.0%} of its products, about", share)))
    if found.halved is not None:
        limit, left = found.halved
        saved = f"max_pixels={limit} makes {left} tokens of the largest, {found.most} now"
        rows.append(("smaller pictures", Figure(saved, {"max_pixels": limit, "tokens": left})))
    return rows


def verdict_rows(recipe: Recipe, plan: Plan, gib: float, loads_data: bool = True) -> Rows:
    """Return whether the recipe fits a GPU of so many GiB, by how much, and what would fit where it does not."""
    from covey.forecast.fitting import fit
    from covey.forecast.sizes import prompt_lengths

    try:
        found = fit(recipe, plan, prompt_lengths(recipe, loads_data), gib * GIB)
    except CoveyError as error:
        return [("not reckoned", str(error))]
    need, apart = amount(found.needed), amount(abs(found.size - found.needed))
    label, ends = ("fits", "are left") if found.fits else ("does not fit", "too much")
    text = f"{need} of {gib:g} GiB, 1 GiB for CUDA among it; {apart} {ends}"
    rows: Rows = [(label, Figure(text, found.needed))]
    for name, size in found.instead.items():
        label = "would fit" if size <= found.size else "would not either"
        rows.append((label, Figure(f"{name}: {amount(size)}", {"change": name, "bytes": size})))
    return rows


def time_rows(timing: StepTime, plan: Plan) -> Rows:
    """Return the seconds of a step by phase, and those of the run."""
    rows: Rows = [(phase, Figure(f"{s:.2f} s per step", s)) for phase, s in timing.phases.items()]
    step = {"seconds": timing.seconds, "low": timing.low, "high": timing.high}
    words = f"{timing.seconds:.2f} s, between {timing.low:.2f} and {timing.high:.2f} s"
    rows.append(("step", Figure(words, step)))
    whole = timing.seconds * plan.total_steps
    rows.append(("run", Figure(f"{duration(whole)} for {plan.total_steps} steps", whole)))
    share, measured = plan.completions_per_step // plan.ranks, f"{timing.steps} steps; the first warms up"
    if timing.completions is not None and timing.completions != share:
        measured += (
            f". They have {timing.completions} completions, for whole groups on one process; a process of the plan "
            f"has {share}, and takes less time"
        )
    rows.append(("measured", Figure(measured, {"steps": timing.steps, "completions": timing.completions})))
    words = f"{timing.mean_tokens:.0f} tokens on average, {timing.cut_share:.0%} hit the limit"
    lengths = {"mean tokens": timing.mean_tokens, "cut off": timing.cut_share}
    rows.append(("completions", Figure(words, lengths)))
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
    rows: Rows = [
        ("run", Figure(f"{Path(run)}, {came.steps} steps", {"folder": str(Path(run)), "steps": came.steps}))
    ]
    for phase, seconds in came.phases.items():
        foreseen = "" if timing is None else f"; foreseen {timing.phases[phase]:.2f} s"
        values = {"seconds": seconds, "foreseen": None if timing is None else timing.phases[phase]}
        rows.append((phase, Figure(f"{seconds:.2f} s per step{foreseen}", values)))
    foreseen = (
        "" if timing is None else f"; foreseen {timing.seconds:.2f} s, {timing.low:.2f} to {timing.high:.2f}"
    )
    values = {"seconds": came.seconds, "foreseen": None if timing is None else timing.seconds}
    rows.append(("step", Figure(f"{came.seconds:.2f} s{foreseen}", values)))
    if timing is not None:
        rows.append(
            (
                "tokens foreseen",
                Figure(
                    f"{timing.mean_tokens:.0f} on average, as the untrained policy writes", timing.mean_tokens
                ),
            )
        )
    rows.append(("tokens per completion", Figure(f"{came.mean_tokens:.0f} on average", came.mean_tokens)))
    try:
        sizes, demand = reckoned(recipe, plan, prompt_lengths(recipe, loads_data))
    except CoveyError:  # the section Memory has the reason
        return [*rows, ("memory", amount(came.peak_mb * MIB))]
    python = process_bytes() if demand.is_cpu else 0
    limit = peak(sizes, demand) + python
    mean = peak(sizes, replace(demand, completion_tokens=math.ceil(came.mean_tokens))) + python
    text = (
        f"{amount(came.peak_mb * MIB)}; foreseen {amount(mean)} at that length, {amount(limit)} at the limit"
    )
    values = {"bytes": came.peak_mb * MIB, "foreseen": mean, "at the limit": limit}
    return [*rows, ("memory", Figure(text, values))]


def reckoned(recipe: Recipe, plan: Plan, lengths: PromptLengths) -> tuple[Sizes, Demand]:
    """Return the sizes of the model, and the demand of the settings."""
    from covey.forecast.sizes import demand_of, sizes_of

    return sizes_of(recipe), demand_of(recipe, plan, lengths)


def process_bytes() -> int:
    """Return the memory of this process once it has imported what training imports; it has no model."""
    import psutil

    import covey.trainer.grpo_trainer  # noqa: F401  # for what it imports

    return int(psutil.Process().memory_info().rss)


def amount(size: float) -> Figure:
    """Return bytes in words, in the unit that reads best."""
    return Figure(f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB", size)


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
        values = {"device": "cpu" if demand.is_cpu else "cuda", "free bytes": free, "fits": needed <= free}
        return Figure(f"{place}; {amount(free)} are free here{enough}", values)
    return f"{place}; there is none here"
