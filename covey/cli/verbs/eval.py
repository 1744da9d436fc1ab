"""`covey eval MODEL DATASET`: the trainer's evaluation of any model folder, and whether it is better than another."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from covey.cli.arguments import add_set, is_main_process
from covey.errors import ConfigError, DatasetError
from covey.text.foreign import clean, show_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from covey.recipes import Recipe
    from covey.recipes.measure import EvalScores, RewardChange, RewardRow

EXAMPLES = """
examples:
  covey eval runs/tiny/model recipes/tiny.yaml                    the eval sets and rewards of a recipe
  covey eval my-model test.jsonl --reward SameAnswer --samples 8  mean, interval, pass@1, @2, @4, @8
  covey eval my-model countdown --reward covey.tasks:countdown_reward --rows 200
  covey eval my-model openai/gsm8k --set eval.config=main eval.shape=gsm8k --reward SameAnswer --rows 500
  covey eval my-vlm test.jsonl --reward SameAnswer --image-root .        pictures in a column "image" or "images"
  covey eval after test.jsonl --reward SameAnswer --against before       a paired test
  covey eval after test.jsonl --reward SameAnswer -o after.json          keep the numbers ...
  covey eval later test.jsonl --reward SameAnswer --against after.json   ... to compare with

MODEL is a name or a folder: a model, a checkpoint of a run, or an adapter. DATASET is a recipe (a file; the
name of a bundled one without --reward), a .json, .jsonl, .csv or .parquet file, a bundled generator (countdown, code, text: their held-out puzzles), or a dataset's name.
Every row is answered once, with --samples completions. Intervals hold 95 % and are over prompts. The paired test is
McNemar's where every prompt has one verdict, else a permutation test.

Exit status: 0 measured, 1 with --against: MODEL's reward is lower, p < 0.05; 2 wrong input.
"""

SIGNIFICANT = 0.05

SETTINGS = {
    "samples": "num_generations_eval",
    "max_tokens": "max_completion_length",
    "batch_size": "per_device_eval_batch_size",
    "seed": "seed",
    "image_root": "image_root",
}
"""Options, and the setting of `train` that each replaces."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model's name or folder, a checkpoint, or an adapter")
    add("dataset", metavar="DATASET", help="a recipe, a file, a generator, or a dataset's name")
    add(
        "--reward",
        action="append",
        default=[],
        metavar="NAME",
        help="a bundled one, or MODULE:NAME; several times",
    )
    add("--against", metavar="OTHER", help="another model, or a file that -o wrote")
    add("--split", help="of a dataset by name (default: test) or a generator (default: held_out)")
    add("--prompt", metavar="COLUMN", help="the column with the prompts (default: prompt)")
    add("--rows", type=int, metavar="N", help="rows to take (default: all; 200 of a generator)")
    add("--samples", type=int, metavar="N", help="completions per prompt (default: 1, or the recipe's)")
    add("--temperature", type=float, metavar="T", help="(default: 1, or the recipe's)")
    add("--top-p", type=float, metavar="P", help="sample from the most probable tokens that hold P")
    add("--top-k", type=int, metavar="K", help="sample from the K most probable tokens")
    add("--greedy", action="store_true", help="take the most probable token each time")
    add("--max-tokens", type=int, metavar="N", help="max_completion_length (default: 512, or the recipe's)")
    add("--batch-size", type=int, metavar="N", help="completions at a time (default: 64, or the recipe's)")
    add("--seed", type=int, metavar="N", help="of the samples (default: 42, or the recipe's)")
    add("--image-root", metavar="FOLDER", help="paths of pictures lie below it (default: the recipe's)")
    add("--dtype", metavar="NAME", help="of the weights: float32, bfloat16, ... (default: float32)")
    add_set(parser)
    add("--json", action="store_true", help="print the numbers as JSON")
    add("-o", "--output", metavar="FILE", help="write everything as JSON, completions included")


def run(args: argparse.Namespace) -> int:
    """Evaluate, compare and print; the exit code is 1 where the policy is worse than the other."""
    scores = evaluate_model(args.model, args)
    changes: dict[str, list[RewardChange]] = {}
    if args.against:
        is_file = args.against.endswith(".json")
        other = read_scores(args.against) if is_file else evaluate_model(args.against, args)
        changes = compared(other, scores)
    if is_main_process():
        if args.output:  # everything, completions included: `read_scores` reads it
            rows = {name: [asdict(row) for row in part.rows()] for name, part in scores.items()}
            sets = {name: {**vars(part), "rows": rows[name]} for name, part in scores.items()}
            text = json.dumps({"model": args.model, "sets": sets}, indent=1)
            Path(args.output).write_text(text, encoding="utf-8")
        if args.json:
            show_json(json.dumps(as_json(args.model, scores, changes), indent=2))
        else:
            print_tables(args, scores, changes)
    return int(any(is_worse(change) for part in changes.values() for change in part))


def evaluate_model(model: str, args: argparse.Namespace) -> dict[str, EvalScores]:
    """Evaluate one model in a folder that is thrown away, and return its scores by eval set."""
    from covey.recipes.measure import measure

    with tempfile.TemporaryDirectory(prefix="covey-eval-") as folder:
        return measure(eval_recipe(model, args, folder))


def eval_recipe(model: str, args: argparse.Namespace, folder: str) -> Recipe:
    """Return the recipe of an evaluation: that of a file, or one made up from the options.

    Raises:
        ConfigError: no rewards, or options that have no effect on a recipe's own data.
    """
    from covey.recipes import Recipe
    from covey.recipes.bundled import is_recipe
    from covey.recipes.sources import section_of

    if args.temperature is not None and args.temperature <= 0:
        raise ConfigError(
            f"--temperature is {args.temperature:g}; it must be above 0. Use --greedy for the most probable token."
        )
    values = replaced_values(model, args, folder)
    if is_recipe(args.dataset, args.reward):
        for option in ("split", "prompt", "rows"):
            if getattr(args, option) is not None:
                key = "limit" if option == "rows" else option
                way = (
                    f"Use --set eval.{key}={getattr(args, option)}, or eval.NAME.{key} where it has several."
                )
                raise ConfigError(f"--{option} has no effect: {args.dataset} says its own eval sets. {way}")
        return Recipe.load(args.dataset, args.set, values | ({"rewards": args.reward} if args.reward else {}))
    if not args.reward:
        raise ConfigError("No reward to measure with. Add --reward NAME, or give a recipe as DATASET.")
    sections = {
        "model": model,
        "eval": section_of(args.dataset, args.split, args.rows, args.prompt, held_out=True),
        "train": {"per_device_eval_batch_size": 64, "num_generations_eval": 1},
        "rewards": args.reward,
    }
    return Recipe.of(sections, "command line", args.set, values)


def replaced_values(model: str, args: argparse.Namespace, folder: str) -> dict[str, object]:
    """Return what an evaluation and its options replace in a recipe, by section."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    sampling: dict[str, object] = {n: given[n] for n in ("temperature", "top_p", "top_k") if n in given}
    if args.greedy:
        sampling["do_sample"] = False
    train: dict[str, object] = {
        "output_dir": folder,
        "report_to": "none",
        "record": False,
        "push_to_hub": False,
    }
    train |= {setting: given[name] for name, setting in SETTINGS.items() if name in given}
    if sampling:
        train["eval_generation_kwargs"] = sampling
    weights = {"dtype": args.dtype} if args.dtype is not None else {}
    return {"model": {"model_name_or_path": model, "use_peft": False, **weights}, "train": train}


def compared(
    before: Mapping[str, EvalScores], after: Mapping[str, EvalScores]
) -> dict[str, list[RewardChange]]:
    """Return the changes by eval set.

    Raises:
        DatasetError: the two were not asked the same.
    """
    from covey.recipes.measure import compare

    if list(before) != list(after):
        raise DatasetError(f"One has the eval sets {', '.join(before)}, the other {', '.join(after)}.")
    return {name: compare(before[name], after[name]) for name in after}


def is_worse(change: RewardChange) -> bool:
    """Return whether the weighted reward over all prompts fell, and not by chance."""
    is_total = change.task is None and change.name == "reward"
    test = change.comparison.test
    return is_total and test.difference < 0 and test.p_value < SIGNIFICANT


def read_scores(path: str) -> dict[str, EvalScores]:
    """Read what `-o` wrote.

    Raises:
        DatasetError: it cannot be read, or is something else.
    """
    from covey.recipes.measure import EvalScores

    try:
        sets = json.loads(Path(path).read_text(encoding="utf-8"))["sets"]
        return {
            name: EvalScores(**{k: v for k, v in part.items() if k != "rows"}) for name, part in sets.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is no result of 'covey eval -o': {error!r}.") from error


def as_json(
    model: str, scores: Mapping[str, EvalScores], changes: Mapping[str, Sequence[RewardChange]]
) -> dict[str, object]:
    """Return the numbers, without the completions."""
    sets = {
        name: {
            "prompts": len(part.prompts),
            "rows": [asdict(row) for row in part.rows()],
            "metrics": part.metrics,
        }
        for name, part in scores.items()
    }
    if not changes:
        return {"model": model, "sets": sets}
    tests = {
        name: [{"task": c.task, "name": c.name, **asdict(c.comparison)} for c in part]
        for name, part in changes.items()
    }
    return {"model": model, "sets": sets, "changes": tests}


def print_tables(
    args: argparse.Namespace, scores: Mapping[str, EvalScores], changes: Mapping[str, Sequence[RewardChange]]
) -> None:
    """Print a table of the scores, and one of the changes, for every eval set."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for name, part in scores.items():
        samples = sorted({len(completions) for completions in part.completions})
        title = args.dataset if name == "eval" else f"{args.dataset}, {name}"
        each = "1 completion" if samples == [1] else f"{'/'.join(map(str, samples))} completions"
        head = f"{args.model} on {title}: {len(part.prompts)} prompts, {each} each\n"
        console.print(clean(head), markup=False)
        console.print(scores_table(part))
        if name in changes:
            head = f"\n{args.against} → {args.model}, on the same prompts\n"
            console.print(clean(head), markup=False)
            console.print(changes_table(changes[name]))
        console.print()


def scores_table(scores: EvalScores) -> Table:
    """Return a row per reward and task: mean, interval, prompts, pass@k."""
    from rich.table import Table

    rows = list(scores.rows())
    ks = sorted({k for row in rows for k in row.pass_at})
    size = max((len(completions) for completions in scores.completions), default=1)
    mean = "mean" if size == 1 else f"avg@{size}"
    table = Table(
        "", mean, "95 % interval", "prompts", *(f"pass@{k}" for k in ks), box=None, padding=(0, 2, 0, 0)
    )
    for row in rows:
        interval = f"[{row.interval.low:.3f}, {row.interval.high:.3f}]"
        passes = [f"{row.pass_at[k]:.3f}" if k in row.pass_at else "" for k in ks]
        table.add_row(label(row), f"{row.interval.estimate:.3f}", interval, str(row.prompts), *passes)
    return table


def changes_table(changes: Sequence[RewardChange]) -> Table:
    """Return a row per reward and task: before, after, and the paired test."""
    from rich.table import Table

    table = Table(
        "", "before", "after", "difference", "p", "better", "worse", "test", box=None, padding=(0, 2, 0, 0)
    )
    for change in changes:
        found, test = change.comparison, change.comparison.test
        table.add_row(
            label(change), f"{found.before:.3f}", f"{found.after:.3f}", f"{test.difference:+.3f}",
            f"{test.p_value:.2g}", str(test.better), str(test.worse), test.method,
        )  # fmt: skip
    return table


def label(row: RewardRow | RewardChange) -> Text:
    """Return the name of a reward, behind its task, without what a terminal would obey."""
    from rich.text import Text

    return Text(clean(row.name if row.task is None else f"{row.task}: {row.name}"))
