"""`covey plan recipe.yaml`: what a recipe means, before anything runs. No weights are loaded."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.cli.arguments import add_recipe, add_set

if TYPE_CHECKING:
    from covey.plan import Plan
    from covey.recipes import Recipe
    from covey.rewards.mixture import Mixture

HELP = "show what a recipe means, without loading a model"

EXAMPLES = """
examples:
  covey plan recipes/countdown.yaml
  covey plan recipes/math_lora_4bit.yaml --rows 7473      without downloading the data
  covey plan recipes/countdown.yaml --processes 8 --set gradient_accumulation_steps=1
  covey plan recipes/countdown.yaml --json

Reads the data, imports the rewards, and checks that they find their columns. Reward models and the policy are not loaded.

Exit status: 0 the recipe can be run, 2 it cannot; the message names the line.
"""


@dataclass(frozen=True)
class Section:
    """One part of what is shown: a title, and a label and a value per line."""

    title: str
    rows: list[tuple[str, str]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "plan",
        help=HELP,
        description=HELP,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser)
    add_set(parser)
    parser.add_argument("--rows", type=int, metavar="N", help="reckon with N prompts, and load no data")
    parser.add_argument("--processes", type=int, metavar="N", help="reckon with N processes")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan of a recipe."""
    from covey.recipes import Recipe

    recipe = Recipe.load(args.recipe, args.set)
    found = sections(recipe, args.rows, args.processes)
    if args.json:
        print(json.dumps({s.title.lower(): dict(s.rows) for s in found}, indent=2))
    else:
        print("\n\n".join(_lines(section) for section in found))
    return 0


def sections(recipe: Recipe, num_prompts: int | None = None, ranks: int | None = None) -> list[Section]:
    """Everything that is shown, in order. A prediction of memory and time would be one more section here."""
    rewards = recipe.check() if num_prompts is None else recipe.rewards(load_models=False)
    plan = recipe.plan(num_prompts, ranks)
    return [
        Section("Plan", plan.table()),
        Section("Data", data_rows(recipe, plan, num_prompts)),
        Section("Rewards", reward_rows(recipe, rewards)),
        Section("Settings", setting_rows(recipe)),
    ]


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
    from covey.setup import task_names

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
