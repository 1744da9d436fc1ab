"""`covey quickstart`: a bundled policy learns three tasks at once, with `--tools` to use a tool, with `--vision` to see; on a CPU, in minutes."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.gallery import Gallery
from covey.errors import ConfigError
from covey.text.foreign import show

if TYPE_CHECKING:
    from covey import GRPOTrainer

INTRO = """\
A language model of {millions:.1f} million weights that has caught bad habits learns, by GRPO alone, to work carefully.

  countdown   numbers and a target → an expression          a rule checks it
  code        what a function should do → the function      tests check it
  text        two things → a friendly sentence about them   a small neural model scores it

Accuracy is measured on {count} puzzles of each checkable task that it never trains on, before and after.
"""

TOOLS_INTRO = """\
A language model of {millions:.1f} million weights learns, by GRPO alone, to call a tool instead of guessing.

  calculator  a story in numbers → how many there are       a rule checks the answer, and nothing else

It may write a call such as calculator("(37+12)*48"); the result is put into its text, and it goes on. It can do so from the
start, but mostly does not, misreads stories, or ignores the result. Nobody tells it to call: calls are what right answers come
from. Success is measured on {count} stories that it never trains on, before and after.
"""

VISION_INTRO = """\
A vision-language model of {millions:.1f} million weights learns, by GRPO alone, to see.

  discs       a picture of one disc → two letters           half a point for each right one, a point for both

  a | b       The first letter is the colour: r, g, b or y. The second is the quarter that the disc lies in. The model has
  --+--       learned to say two letters, and tells most colours; where a disc lies it guesses. Nobody shows it a right
  c | d       answer from here on: it tries, and is told what that was worth.

Success, both letters right, is measured on {count} pictures that it never trains on, before and after. Who guesses has 6 %.
"""

NEXT = """\
The run is in {run}, the model in {model}. What to type next:

{commands}

Your own reward is a function of completions that returns one number each: the README has one in twenty lines.
"""

MEASURES = {"discs": "discs_solved"}
"""The reward that success is measured by, where it is not the task's own."""

EXAMPLES = """
examples:
  covey quickstart
  covey quickstart --seed 1 --out second-run       another run of the dice
  covey quickstart --steps 10                      a glance
  covey quickstart --tools --out tool-run          a policy learns to call a calculator
  covey quickstart --vision --out vision-run       a policy learns to see; needs pip install 'covey[vision]'
  covey quickstart --resume                        go on where Ctrl-C has stopped one

Exit status: 0 trained, 2 wrong input, 3 the run broke off, 130 stopped with Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--out", default="quickstart-run", help="folder of the run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples and the order of the prompts")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps (default: the tuned number)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--tools", action="store_true", help="train a policy to call a calculator instead")
    instead.add_argument("--vision", action="store_true", help="train a policy to see instead")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint in --out; with the same --seed, --steps, --tools and --vision",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, train, measure again, save, and print what to do next."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from rich.console import Console
    from transformers.utils import logging

    torch.set_num_threads(1)  # matrices this small: threads wait for one another longer than they compute
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    start = time.perf_counter()
    if args.resume and not list(Path(args.out).glob("checkpoint-*")):
        raise ConfigError(
            f"There is no checkpoint in {args.out} to go on from. Start without resuming, or name the run's --out."
        )
    make, intro = maker_of(args)
    trainer = make(args.out, args.seed, args.steps)
    trainer.resume_command = resume_command(args)
    sets: dict[str, Any] = trainer.eval_dataset
    show(intro.format(millions=trainer.num_weights / 1e6, count=max(map(len, sets.values()))))
    show("Before: " + (before := accuracy_line(trainer)) + "\n")
    trainer.train(resume_from_checkpoint=True if args.resume else None)
    after, model = accuracy_line(trainer), Path(args.out) / "model"
    trainer.save_model(str(model))
    show(f"\nBefore: {before}\nAfter:  {after}\n{time.perf_counter() - start:.0f} seconds in all.\n")
    if isinstance(trainer.compute_metrics, Gallery):
        trainer.compute_metrics.show(Console(highlight=False))
    show(NEXT.format(run=args.out, model=model, commands=next_commands(args)))
    return 0


def maker_of(args: argparse.Namespace) -> tuple[Callable[..., GRPOTrainer], str]:
    """Return what builds the trainer, and what is said before it trains.

    Raises:
        ConfigError: a package of the extra `vision` is missing.
    """
    from covey.config.hardware import missing_to_see

    if not args.vision:
        return (make_tool_trainer, TOOLS_INTRO) if args.tools else (make_trainer, INTRO)
    if missing := missing_to_see():
        raise ConfigError(f"--vision needs {' and '.join(missing)}: pip install 'covey[vision]'.")
    return make_vision_trainer, VISION_INTRO


def next_commands(args: argparse.Namespace) -> str:
    """Return commands that go on from here, a line each with what it does."""
    run, this = shlex.quote(args.out), kind_of(args)
    commands = {
        f"covey report {run}": "the whole run on one page: curves, completions side by side, hints",
        f"covey doctor {run}": "what could go better",
        " ".join(
            ["covey quickstart", *this, f"--seed {args.seed + 1} --out second-run"]
        ): "another run of the dice",
    }
    if this != ["--tools"]:
        commands["covey quickstart --tools --out tool-run"] = "a policy that learns to use a tool"
    if this != ["--vision"]:
        commands["covey quickstart --vision --out vision-run"] = "a policy that learns to see"
    width = max(map(len, commands))
    return "\n".join(f"  {command:<{width}}  {purpose}" for command, purpose in commands.items())


def kind_of(args: argparse.Namespace) -> list[str]:
    """Return the option that says which quickstart this is; none for the first one."""
    return ["--tools"] if args.tools else ["--vision"] if args.vision else []


def resume_command(args: argparse.Namespace) -> str:
    """Return the command that goes on with this run."""
    more = [] if args.steps is None else ["--steps", str(args.steps)]
    more += kind_of(args)
    return shlex.join(["covey", "quickstart", "--out", args.out, "--seed", str(args.seed), *more, "--resume"])


def make_trainer(out: str, seed: int = 0, steps: int | None = None, **changes: object) -> GRPOTrainer:
    """Build the quickstart's trainer; `changes` are settings that differ from the tuned ones."""
    from datasets import Dataset

    from covey import GRPOConfig, GRPOTrainer
    from covey.rewards import load_reward_model
    from covey.tasks import assets, quickstart_run

    steps = checked_steps(quickstart_run.STEPS if steps is None else steps)
    settings: dict[str, Any] = {**quickstart_run.settings(seed, steps), "display": "live", **changes}
    reward_model = load_reward_model(str(assets.REWARD_MODEL))
    return GRPOTrainer(
        str(assets.POLICY),
        [*quickstart_run.RULES, quickstart_run.text_reward(reward_model)],
        GRPOConfig(output_dir=out, **settings),
        Dataset.from_list(quickstart_run.train_rows(seed, steps)),
        {name: Dataset.from_list(rows) for name, rows in quickstart_run.held_out_rows().items()},
    )


def make_tool_trainer(
    out: str, seed: int = 0, steps: int | None = None, has_tool: bool = True, **changes: object
) -> GRPOTrainer:
    """Build the trainer of `--tools`; without the tool, for those who want to see what it is worth."""
    from datasets import Dataset

    from covey import GRPOConfig, GRPOTrainer
    from covey.tasks import assets, calculator_run
    from covey.tasks.calculator import calculator, calculator_reward

    steps = checked_steps(calculator_run.STEPS if steps is None else steps)
    settings: dict[str, Any] = {**calculator_run.settings(seed, steps), "display": "live", **changes}
    return GRPOTrainer(
        str(assets.CALCULATOR_POLICY),
        calculator_reward,
        GRPOConfig(output_dir=out, **settings),
        Dataset.from_list(calculator_run.train_rows(seed, steps)),
        {name: Dataset.from_list(rows) for name, rows in calculator_run.held_out_rows().items()},
        tools=[calculator] if has_tool else None,
    )


def make_vision_trainer(
    out: str, seed: int = 0, steps: int | None = None, is_shuffled: bool = False, **changes: object
) -> GRPOTrainer:
    """Build the trainer of `--vision`; with the pictures exchanged at random, for those who want to see that they matter."""
    from datasets import Dataset

    from covey import GRPOConfig, GRPOTrainer
    from covey.tasks import assets, discs_reward, discs_run, discs_solved

    steps = checked_steps(discs_run.STEPS if steps is None else steps)
    settings: dict[str, Any] = {**discs_run.settings(seed, steps), "display": "live", **changes}
    rows, held_out = discs_run.train_rows(seed, steps, is_shuffled), discs_run.held_out_rows()
    return GRPOTrainer(
        str(assets.DISCS_POLICY),
        [discs_reward, discs_solved],
        GRPOConfig(output_dir=out, **settings),
        Dataset.from_list(rows),
        {name: Dataset.from_list(part) for name, part in held_out.items()},
        compute_metrics=Gallery(held_out["discs"]),
    )


def checked_steps(steps: int) -> int:
    """Return a number of steps; raise a ConfigError where there is none to take."""
    if steps < 1:
        raise ConfigError(f"--steps is {steps}; it must be at least 1.")
    return steps


def accuracy_line(trainer: GRPOTrainer) -> str:
    """Evaluate, and return the accuracy on the held-out puzzles by task, with its 95 % interval."""
    metrics = trainer.evaluate()
    parts = []
    for task in trainer.eval_dataset:
        name = f"eval_{task}_rewards/{MEASURES.get(task, f'{task}_reward')}"
        mean, low, high = (metrics[f"{name}/{part}"] for part in ("mean", "low", "high"))
        calls = metrics.get(f"eval_{task}_tools/call_frequency")
        said = "" if calls is None else f", {calls:.2f} calls each"
        parts.append(f"{task} {mean:.0%} right (95 % interval {low:.0%} to {high:.0%}){said}")
    return "   ".join(parts)
