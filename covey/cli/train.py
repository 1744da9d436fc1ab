"""`covey train recipe.yaml`: a whole run from one file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.arguments import add_recipe, add_set, add_verb, completed, is_main_process, setting_words

if TYPE_CHECKING:
    from covey.recipes import Recipe

HELP = "train a policy as a recipe says it"

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


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = add_verb(subparsers, "train", HELP, EXAMPLES)
    add_recipe(parser)
    add_set(parser)
    parser.add_argument(
        "--resume",
        nargs="?",
        const="last",
        metavar="CHECKPOINT",
        help="go on from the last checkpoint in output_dir, or from this one; 'auto': from the last, if there is one",
    )
    listing = parser.add_argument(
        "--settings",
        nargs="?",
        const="",
        action=_ListSettings,
        metavar="WORD",
        help="list the settings, and stop",
    )
    completed(listing, words=setting_words)


def run(args: argparse.Namespace) -> int:
    """Train, evaluate, save; then leave the other processes, if there are any."""
    from covey.trainer.distributed import end_processes

    _train(args)
    end_processes()
    return 0


def _train(args: argparse.Namespace) -> None:
    from covey.recipes import Recipe

    recipe = Recipe.load(args.recipe, args.set)
    checkpoint = args.resume or recipe.config.resume_from_checkpoint
    trainer = recipe.trainer()
    trainer.resume_command = f"{_command(args.recipe, args.set)} --resume"
    out = Path(str(recipe.config.output_dir))
    if is_main_process():
        save_recipe(recipe, args.recipe, args.set, out)
    with recipe.located(trainer.scorer.rewards):
        trainer.train(resume_from_checkpoint=checkpoint)
        if trainer.eval_dataset is not None and not _is_evaluated(trainer.state):
            trainer.evaluate()
    trainer.save_model(str(out / "model"))
    if is_main_process():
        _print_end(recipe, _last_evaluation(trainer.state.log_history), out)


def save_recipe(recipe: Recipe, path: str, overrides: Sequence[str], folder: Path) -> None:
    """Write the recipe as it is run, overrides included."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    command = _command(path, overrides)
    plain = recipe.plain()
    plain["train"] = {**plain.get("train", {}), "output_dir": str(recipe.config.output_dir)}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
    (folder / "recipe.yaml").write_text(f"# {command}\n{text}", encoding="utf-8")


def _command(path: str, overrides: Sequence[str]) -> str:
    return shlex.join(["covey", "train", path, *(("--set", *overrides) if overrides else ())])


def spoken(metrics: Mapping[str, float]) -> list[str]:
    """Every metric that has an interval, as a line."""
    lines = []
    for key in metrics:
        name = key.removesuffix("/low")
        mean = metrics.get(name, metrics.get(f"{name}/mean"))
        if key.endswith("/low") and mean is not None:
            lines.append(
                f"{name.removeprefix('eval_')}  {mean:.3f} [{metrics[key]:.3f}, {metrics[name + '/high']:.3f}]"
            )
    return lines


def _is_evaluated(state: Any) -> bool:
    """Whether the last step was evaluated by the run itself."""
    return any(
        entry["step"] == state.global_step and any(name.startswith("eval_") for name in entry)
        for entry in state.log_history
    )


def _last_evaluation(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of the evaluations of the last step that has any."""
    steps = [entry["step"] for entry in history if any(name.startswith("eval_") for name in entry)]
    parts = [entry for entry in history if steps and entry["step"] == steps[-1]]
    return {name: value for entry in parts for name, value in entry.items() if name.startswith("eval_")}


def _print_end(recipe: Recipe, metrics: Mapping[str, float], out: Path) -> None:
    lines = spoken(metrics)
    if lines:
        print("\nAt the end, with 95 % intervals:\n  " + "\n  ".join(lines))
    names = {"model": out / "model", "run": out, "recipe": out / "recipe.yaml"}
    shown = NEXT if recipe.eval_dataset is not None else NEXT.replace("  covey eval {model} {recipe}\n", "")
    print(shown.format(**names))
    if recipe.model_config.use_peft:
        print(MERGE.format(**names))


class _ListSettings(argparse.Action):
    """Prints settings with their defaults and what they do, and ends, as `--help` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        from covey.recipes.listing import listing

        lines = listing(values)
        print("\n".join(lines) if lines else f"No setting has {values!r} in its name or description.")
        parser.exit(0 if lines else 2)
