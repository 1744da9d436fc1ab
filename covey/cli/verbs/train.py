"""`covey train recipe.yaml`: a whole run from one file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from covey.cli.arguments import add_recipe, add_set, is_main_process
from covey.text.foreign import show
from covey.text.secrets import without_secret_entries, without_secret_options

if TYPE_CHECKING:
    from covey.recipes import Recipe

EXAMPLES = """
examples:
  covey train recipes/tiny.yaml
  covey train recipes/countdown.yaml --set learning_rate=2e-6 max_steps=50
  covey train recipes/countdown.yaml --set rewards.Countdown.weight=2 data.arguments.count=500
  covey train recipes/countdown.yaml --resume              go on from the last checkpoint
  covey train recipes/countdown.yaml --resume auto         the same, or start where there is none yet
  covey train --settings beta                              settings whose name or description has "beta"
  accelerate launch -m covey train recipes/countdown.yaml  on several GPUs

a recipe, in short:
  model: Qwen/Qwen2.5-0.5B-Instruct
  data: {generator: countdown, arguments: {count: 2000}}
  rewards: [covey.tasks:countdown_reward]
  train: {learning_rate: 1e-6, max_steps: 200}

The model that comes out is in <output_dir>/model, the recipe as it was run in <output_dir>/recipe.yaml.

Ctrl-C ends the step, saves a checkpoint and says how to go on; a second Ctrl-C stops at once.

Exit status: 0 trained, 2 wrong input (the message names the line), 3 the run broke off, 130 stopped with Ctrl-C, 143 with
SIGTERM.
"""

NEXT = """
The model is in {model}. What to type next:

  covey eval {model} {recipe}
  covey report {run}
  covey doctor {run}"""

MERGE = "  covey merge {model} {run}/merged        the adapter and its base as one model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_recipe(parser)
    add_set(parser)
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="go on from the last checkpoint in output_dir, or from this one; 'auto': from the last, if there is one",
    )
    parser.add_argument(
        "--settings",
        nargs="?",
        const="",
        action=ListSettings,
        metavar="WORD",
        help="list the settings, and stop",
    )


def run(args: argparse.Namespace) -> int:
    """Train, evaluate, save, and print what to do next; then leave the other processes, if there are any."""
    from covey.recipes import Recipe
    from covey.trainer.distributed import end_processes

    recipe = Recipe.load(args.recipe, args.set)
    checkpoint = args.resume or recipe.config.resume_from_checkpoint
    trainer = recipe.trainer()
    trainer.resume_command = f"{train_command(args.recipe, args.set)} --resume"
    out = Path(str(recipe.config.output_dir))
    if is_main_process():
        save_recipe(recipe, args.recipe, args.set, out)
    with recipe.located(trainer.scorer.rewards):
        trainer.train(resume_from_checkpoint=checkpoint)
        step, _ = last_evaluation(trainer.state.log_history)
        if trainer.eval_dataset is not None and step != trainer.state.global_step:
            trainer.evaluate()
    trainer.save_model(str(out / "model"))
    if is_main_process():
        print_end(recipe, last_evaluation(trainer.state.log_history)[1], out)
    del trainer  # processes can only be left when nothing refers to their group
    end_processes()
    return 0


def train_command(path: str, overrides: Sequence[str]) -> str:
    """Return the command that trains this recipe."""
    return shlex.join(["covey", "train", path, *(("--set", *overrides) if overrides else ())])


def save_recipe(recipe: Recipe, path: str, overrides: Sequence[str], folder: Path) -> None:
    """Write the recipe as it is run, overrides included, secrets left out: a file that one shows around."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    plain = recipe.replaced(train={"output_dir": str(recipe.config.output_dir)}).plain()
    kept = without_secret_entries(plain)
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=110)
    command = train_command(
        path, [part for pair in overrides for part in without_secret_options(["--set", pair])[1:]]
    )
    note = "" if kept == plain else "# Secrets are left out: give them by --set, or in the environment.\n"
    (folder / "recipe.yaml").write_text(f"# {command}\n{note}{text}", encoding="utf-8")


def last_evaluation(history: Sequence[Mapping[str, float]]) -> tuple[float | None, dict[str, float]]:
    """Return the last step that was evaluated, and the metrics of its evaluations; None and nothing without one."""
    entries = [entry for entry in history if any(name.startswith("eval_") for name in entry)]
    if not entries:
        return None, {}
    step = entries[-1]["step"]
    same_step = (entry for entry in history if entry["step"] == step)
    return step, {n: value for entry in same_step for n, value in entry.items() if n.startswith("eval_")}


def print_end(recipe: Recipe, metrics: Mapping[str, float], out: Path) -> None:
    """Print every metric that has an interval, those with the same numbers in one line, and what to do next."""
    lines: dict[str, list[str]] = {}
    for key in metrics:
        name = key.removesuffix("/low")
        mean = metrics.get(name, metrics.get(f"{name}/mean"))
        if key.endswith("/low") and mean is not None:
            interval = f"[{metrics[key]:.3f}, {metrics[name + '/high']:.3f}]"
            lines.setdefault(f"{mean:.3f} {interval}", []).append(name.removeprefix("eval_"))
    if lines:  # with one reward or one task, the same number has several names
        shown_lines = [f"{' = '.join(same)}  {numbers}" for numbers, same in lines.items()]
        show("\nAt the end, with 95 % intervals:\n  " + "\n  ".join(shown_lines))
    names = {"model": out / "model", "run": out, "recipe": out / "recipe.yaml"}
    shown = NEXT if recipe.eval_dataset is not None else NEXT.replace("  covey eval {model} {recipe}\n", "")
    show(shown.format(**names))
    if recipe.model_config.use_peft:
        show(MERGE.format(**names))


class ListSettings(argparse.Action):
    """Prints settings with their defaults and what they do, and ends, as `--help` does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        from covey.recipes.listing import listing

        lines = listing(str(values))
        show("\n".join(lines) if lines else f"No setting has {values!r} in its name or description.")
        parser.exit(0 if lines else 2)
