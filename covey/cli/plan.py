"""`covey plan recipe.yaml`: what a recipe means and what it will need, before anything runs.

Without `--measure` no weights are loaded.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.arguments import add_recipe, add_set, add_verb, completed
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.plan import Plan
    from covey.recipes import Recipe
    from covey.rewards.mixture import Mixture

HELP = "show what a recipe means and what it will need: batches, steps, memory, time"

EXAMPLES = """
examples:
  covey plan recipes/countdown.yaml
  covey plan recipes/countdown.yaml --measure               seconds per step, from ten seconds of training
  covey plan recipes/math_lora_4bit.yaml --rows 7473        without downloading the data
  covey plan recipes/countdown.yaml --processes 8 --set gradient_accumulation_steps=1
  covey plan recipes/countdown.yaml --against runs/countdown     what was foreseen, and what came of it
  covey plan runs/countdown                                 the same, for the recipe that the run left

Reads the data, imports the rewards, and checks that they find their columns. Memory is reckoned from the model's config
and holds for completions that all run to their limit. With --measure the model is loaded and some small steps are
trained, in a folder that is thrown away; what is larger in the run is scaled from them.

Exit status: 0 the recipe can be run, 2 it cannot; the message names the line.
"""

MEASURED_SECONDS = 10.0


@dataclass(frozen=True)
class Section:
    """One part of what is shown: a title, and a label and a value per line."""

    title: str
    rows: list[tuple[str, str]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = add_verb(subparsers, "plan", HELP, EXAMPLES)
    add_recipe(parser)
    add_set(parser)
    parser.add_argument("--rows", type=int, metavar="N", help="reckon with N prompts, and load no data")
    parser.add_argument("--processes", type=int, metavar="N", help="reckon with N processes")
    parser.add_argument(
        "--measure",
        nargs="?",
        type=float,
        const=MEASURED_SECONDS,
        metavar="SECONDS",
        help=f"train small steps for about so long ({MEASURED_SECONDS:g}), and say how long the run takes",
    )
    against = parser.add_argument("--against", metavar="RUN", help="show what came of a run beside it")
    completed(against, files=True)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan of a recipe."""
    from covey.recipes import Recipe

    if Path(args.recipe).is_dir():
        args.against = args.against or args.recipe
        args.recipe = str(Path(args.recipe) / "recipe.yaml")
    if args.measure is not None and args.rows is not None:
        raise ConfigError("--measure trains on the data, and --rows leaves it unread. Give one of the two.")
    recipe = Recipe.load(args.recipe, args.set)
    found = sections(recipe, args.rows, args.processes, args.measure, args.against)
    if args.json:
        print(json.dumps({s.title.lower(): dict(s.rows) for s in found}, indent=2))
    else:
        print("\n\n".join(_lines(section) for section in found))
    return 0


def sections(
    recipe: Recipe,
    num_prompts: int | None = None,
    ranks: int | None = None,
    seconds: float | None = None,
    run: str | None = None,
) -> list[Section]:
    """Everything that is shown, in order.

    Args:
        num_prompts: rows to reckon with, without loading data.
        ranks: processes to reckon with.
        seconds: train for so long, to say how long a step takes.
        run: folder of a run whose outcome is shown.
    """
    from covey.cli.planning import memory_rows, outcome_rows, time_rows

    rewards = recipe.check() if num_prompts is None else recipe.rewards(load_models=False)
    plan = recipe.plan(num_prompts, ranks)
    found = [
        Section("Plan", plan.table()),
        Section("Data", data_rows(recipe, plan, num_prompts)),
        Section("Rewards", reward_rows(recipe, rewards)),
        Section("Settings", setting_rows(recipe)),
        Section("Memory", memory_rows(recipe, plan, loads_data=num_prompts is None)),
    ]
    timing = None
    if seconds is not None:
        from covey.forecast.rehearsal import rehearse

        with recipe.located():
            timing = rehearse(recipe, plan, seconds)
        found.append(Section("Time", time_rows(timing, plan)))
    if run is not None:
        found.append(
            Section(
                "What came of it", outcome_rows(recipe, plan, run, timing, loads_data=num_prompts is None)
            )
        )
    return found


def data_rows(recipe: Recipe, plan: Plan, num_prompts: int | None) -> list[tuple[str, str]]:
    """Rows of the datasets, and how many belong to each task."""
    if num_prompts is not None:
        return [("training", f"{num_prompts} rows, as given; not loaded")]
    rows = [("training", _rows_of(recipe.train_dataset, recipe.config.task_column))]
    datasets = recipe.eval_dataset
    named = datasets if isinstance(datasets, dict) else {"evaluation": datasets}
    rows += [
        (name, _rows_of(part, recipe.config.task_column)) for name, part in named.items() if part is not None
    ]
    if plan.is_cycled:
        rows.append(("note", "fewer prompts than one round of sampling takes: they are repeated within it"))
    return rows


def reward_rows(recipe: Recipe, rewards: Mixture) -> list[tuple[str, str]]:
    """What each reward weighs, where it applies, and after which gates."""
    given = recipe.config.reward_weights
    weights = rewards.weights if given is None else {r.name: w for r, w in zip(rewards, given, strict=True)}
    return [(r.name, _terms(r, weights[r.name], given is not None)) for r in rewards]


def setting_rows(recipe: Recipe) -> list[tuple[str, str]]:
    """What the recipe says of model and training."""
    said = {**recipe.model_settings, **recipe.settings, "output_dir": recipe.config.output_dir}
    return [(name, str(value)) for name, value in said.items()]


def _rows_of(dataset: Any, task_column: str) -> str:
    from covey.trainer.data import task_names

    if dataset is None:
        return "none"
    if not hasattr(dataset, "__len__"):
        return "a stream"
    names = task_names(dataset, task_column)
    if not names:
        return f"{len(dataset)} rows"
    counts = Counter(str(value) for value in dataset[task_column])
    return f"{len(dataset)} rows: {', '.join(f'{counts[name]} {name}' for name in names)}"


def _terms(reward: Any, weight: float, is_fixed: bool) -> str:
    options = reward.options
    if isinstance(options.weight, dict) and not is_fixed:
        by_task = ", ".join(f"{task} {_weight(part)}" for task, part in options.weight.items())
        terms = [f"weight by task: {by_task}"]
    else:
        terms = [f"weight {weight:g}" if is_fixed else f"weight {_weight(options.weight)}"]
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
    return "; ".join(terms)


def _weight(weight: Any) -> str:
    return f"{weight(0.0):g} → {weight(1.0):g}" if callable(weight) else f"{weight:g}"


def _lines(section: Section) -> str:
    width = max((len(label) for label, _ in section.rows), default=0)
    return "\n".join([section.title, *(f"  {label:<{width}}  {value}" for label, value in section.rows)])
