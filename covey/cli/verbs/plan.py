"""`covey plan recipe.yaml`: the meaning and the needs of a recipe, before anything runs.

Without `--measure` no weights are loaded.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.arguments import add_recipe, add_set
from covey.errors import ConfigError
from covey.plan import Figure
from covey.runs.record.json_text import finite
from covey.text.foreign import show, show_json
from covey.text.secrets import blanked

if TYPE_CHECKING:
    from covey.cli.planning import Rows
    from covey.plan import Plan
    from covey.recipes import Recipe
    from covey.recipes.sources import Data
    from covey.rewards.mixture import Mixture
    from covey.rewards.options import RewardOptions
    from covey.rewards.schedules import Schedule

EXAMPLES = """
examples:
  covey plan recipes/countdown.yaml
  covey plan recipes/countdown.yaml --measure               seconds per step, from three steps of training
  covey plan countdown --gpu 24                             does it fit, and what would?
  covey plan recipes/math_lora_4bit.yaml --rows 7473        without downloading the data
  covey plan recipes/countdown.yaml --processes 8 --set gradient_accumulation_steps=1
  covey plan recipes/countdown.yaml --against runs/countdown     what was foreseen, and what came of it
  covey plan runs/countdown                                 the same, for the recipe that the run left

Reads the data, imports the rewards, and checks that they find their columns. Memory is reckoned from the model's config
and holds for completions that all run to their limit. With --measure the model is loaded and some steps are trained, in
a folder that is thrown away.

Exit status: 0 the recipe can be run, 2 it cannot; the message names the line.
"""

MEASURED_STEPS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_recipe(parser)
    add_set(parser)
    parser.add_argument("--rows", type=int, metavar="N", help="reckon with N prompts, and load no data")
    parser.add_argument("--processes", type=int, metavar="N", help="reckon with N processes")
    parser.add_argument(
        "--measure",
        nargs="?",
        type=int,
        const=MEASURED_STEPS,
        metavar="STEPS",
        help=f"train so many steps ({MEASURED_STEPS}), after one that warms up, and say how long the run takes",
    )
    parser.add_argument(
        "--gpu", type=float, metavar="GIB", help="say whether it fits a GPU of that size, and what would"
    )
    parser.add_argument("--against", metavar="RUN", help="show what came of a run beside it")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan of a recipe."""
    from covey.recipes import Recipe

    if Path(args.recipe).is_dir():
        args.against = args.against or args.recipe
        args.recipe = str(Path(args.recipe) / "recipe.yaml")
    if args.measure is not None and args.rows is not None:
        raise ConfigError("--measure trains on the data, and --rows leaves it unread. Give one of the two.")
    if args.measure is not None and args.measure < 1:
        raise ConfigError(
            f"--measure is {args.measure}: it is the number of steps that are measured, 1 or more."
        )
    for option, count in (("--rows", args.rows), ("--processes", args.processes)):
        if count is not None and count < 1:
            raise ConfigError(f"{option} is {count}; it must be at least 1.")
    if args.gpu is not None and not args.gpu > 0:
        raise ConfigError(f"--gpu is {args.gpu:g}; it is the memory of a GPU in GiB, above 0.")
    recipe = Recipe.load(args.recipe, args.set)
    found = sections(recipe, args.rows, args.processes, args.measure, args.against)
    if args.gpu is not None:
        from covey.cli.planning import verdict_rows

        plan = recipe.plan(args.rows, args.processes)
        found["Verdict"] = verdict_rows(recipe, plan, args.gpu, loads_data=args.rows is None)
    if args.json:
        values = {title.lower(): by_label(rows) for title, rows in found.items()}
        show_json(json.dumps(finite(values), indent=2, default=str))
        return 0
    parts = []
    for title, rows in found.items():
        width = max((len(label) for label, _ in rows), default=0)
        parts.append("\n".join([title, *(f"  {label:<{width}}  {value}" for label, value in rows)]))
    show("\n\n".join(parts))
    return 0


def by_label(rows: Rows) -> dict[str, object]:
    """Return rows as values for machines by their labels; a list where several rows have one."""
    found: dict[str, list[object]] = {}
    for label, cell in rows:
        found.setdefault(label, []).append(getattr(cell, "value", cell))
    return {label: values[0] if len(values) == 1 else values for label, values in found.items()}


def sections(
    recipe: Recipe,
    num_prompts: int | None = None,
    ranks: int | None = None,
    steps: int | None = None,
    run: str | None = None,
) -> dict[str, Rows]:
    """Return everything that is shown, by title: a label and a value per line.

    Args:
        num_prompts: rows to reckon with, without loading data.
        ranks: processes to reckon with.
        steps: train so many steps, to say how long one takes.
        run: folder of a run whose outcome is shown.
    """
    from covey.cli.planning import measured_rows, memory_rows, outcome_rows, time_rows

    rewards = recipe.check() if num_prompts is None else recipe.rewards(load_models=False)
    plan = recipe.plan(num_prompts, ranks)
    settings = {**recipe.model_settings, **recipe.settings, "output_dir": recipe.config.output_dir}
    found: dict[str, Rows] = {
        "Plan": [*plan.table()],
        "Data": data_rows(recipe, plan, num_prompts),
        "Rewards": reward_rows(recipe, rewards),
        "Settings": [(name, Figure(str(value), value)) for name, value in blanked(settings).items()],
        "Memory": memory_rows(recipe, plan, loads_data=num_prompts is None),
    }
    if far := measured_rows(recipe, found["Memory"]):
        found["A start from what was measured"] = far
    timing = None
    if steps is not None:
        from covey.forecast.step_time import measure

        with recipe.located():
            timing = measure(recipe, plan, steps)
        found["Time"] = time_rows(timing, plan)
    if run is not None:
        found["What came of it"] = outcome_rows(recipe, plan, run, timing, num_prompts is None)
    return found


def data_rows(recipe: Recipe, plan: Plan, num_prompts: int | None) -> Rows:
    """Return the size of every dataset, and how many rows belong to each task."""
    if num_prompts is not None:
        return [("training", Figure(f"{num_prompts} rows, as given; not loaded", {"rows": num_prompts}))]
    evaluation = recipe.eval_dataset
    named = evaluation if isinstance(evaluation, dict) else {"evaluation": evaluation}
    task_column = recipe.config.task_column
    rows = [
        ("training", "none" if recipe.train_dataset is None else size_of(recipe.train_dataset, task_column))
    ]
    rows += [(name, size_of(part, task_column)) for name, part in named.items() if part is not None]
    if plan.is_cycled:
        rows.append(("note", "fewer prompts than one round of sampling takes: they are repeated within it"))
    return rows


def size_of(dataset: Data, task_column: str) -> str:
    """Return the rows of a dataset in words, by task where it has tasks."""
    from covey.trainer.data import task_names

    if not hasattr(dataset, "__len__"):
        return "a stream"
    names = task_names(dataset, task_column)
    if not names:
        return Figure(f"{len(dataset)} rows", {"rows": len(dataset)})
    counts = Counter(str(value) for value in dataset[task_column])
    text = f"{len(dataset)} rows: {', '.join(f'{counts[name]} {name}' for name in names)}"
    return Figure(text, {"rows": len(dataset), "tasks": {name: counts[name] for name in names}})


def reward_rows(recipe: Recipe, rewards: Mixture) -> Rows:
    """Return the terms of each reward."""
    given: Sequence[float | None] | None = recipe.config.reward_weights
    if given is None:
        given = [None] * len(rewards)
    return [(r.name, reward_terms(r.options, weight)) for r, weight in zip(rewards, given, strict=True)]


def reward_terms(options: RewardOptions, fixed_weight: float | None) -> str:
    """Return a reward's weight, or that of `reward_weights`, where it applies and after which gates, in words."""
    weight = options.weight if fixed_weight is None else fixed_weight
    if options.bound is not None:
        terms = [f"mean {options.bound}, by a multiplier of 0 to {options.multiplier_max:g}"]
    elif isinstance(weight, Mapping):
        terms = [f"weight by task: {', '.join(f'{t} {weight_range(part)}' for t, part in weight.items())}"]
    else:
        terms = [f"weight {weight_range(weight)}"]
    if options.tasks:
        terms.append(f"tasks {', '.join(sorted(options.tasks))}")
    if options.present:
        terms.append(f"where {options.present} is present")
    if options.requires:
        terms.append(f"after {', '.join(name for name, _ in options.requires)}")
    if options.where != "inline":
        terms.append(f"in {options.where}")
    if options.on_error != "raise":
        terms.append(f"on error {options.on_error}")
    return Figure("; ".join(terms), reward_values(options, weight))


def reward_values(options: RewardOptions, weight: object) -> dict[str, object]:
    """Return a reward's terms as values; a weight that changes by its first and its last value."""

    def ends(part: Any) -> object:
        return [part(0.0), part(1.0)] if callable(part) else part

    return {
        "weight": {task: ends(part) for task, part in weight.items()}
        if isinstance(weight, Mapping)
        else ends(weight),
        "at_least": options.at_least,
        "at_most": options.at_most,
        "tasks": sorted(options.tasks or ()),
        "present": options.present,
        "requires": [name for name, _ in options.requires],
        "where": options.where,
        "on_error": options.on_error,
    }


def weight_range(weight: float | Schedule) -> str:
    """Return a weight in words: a schedule by its first and its last value."""
    return f"{weight(0.0):g} → {weight(1.0):g}" if callable(weight) else f"{weight:g}"
