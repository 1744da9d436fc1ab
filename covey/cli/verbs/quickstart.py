"""`covey quickstart`: the bundled policy learns three tasks at once, on a CPU, in about three minutes."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey import GRPOTrainer

INTRO = """\
A language model of {millions:.1f} million weights that has caught bad habits learns, by GRPO alone, to work carefully.

  countdown   numbers and a target → an expression          a rule checks it
  code        what a function should do → the function      tests check it
  text        two things → a friendly sentence about them   a small neural model scores it

Accuracy is measured on {count} puzzles of each checkable task that it never trains on, before and after.
"""

NEXT = """\
The run is in {run}, the model in {model}. What to type next:

  covey report {run}                       the whole run on one page: curves, completions side by side, hints
  covey doctor {run}                       what could go better
  covey quickstart --seed 1 --out second-run          another run of the dice

Your own reward is a function of completions that returns one number each: the README has one in twenty lines.
"""

EXAMPLES = """
examples:
  covey quickstart
  covey quickstart --seed 1 --out second-run       another run of the dice
  covey quickstart --steps 10                      a glance

Exit status: 0 trained, 2 wrong input, 3 the run broke off, 130 stopped with Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--out", default="quickstart-run", help="folder of the run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples and the order of the prompts")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps (default: the tuned number)")


def run(args: argparse.Namespace) -> int:
    """Measure, train, measure again, save, and print what to do next."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)  # matrices this small: threads wait for one another longer than they compute
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    start = time.perf_counter()
    trainer = make_trainer(args.out, args.seed, args.steps)
    sets: dict[str, Any] = trainer.eval_dataset
    print(INTRO.format(millions=trainer.num_weights / 1e6, count=max(map(len, sets.values()))))
    print("Before: " + (before := accuracy_line(trainer)) + "\n")
    trainer.train()
    after, model = accuracy_line(trainer), Path(args.out) / "model"
    trainer.save_model(str(model))
    print(f"\nBefore: {before}\nAfter:  {after}\n{time.perf_counter() - start:.0f} seconds in all.\n")
    print(NEXT.format(run=args.out, model=model))
    return 0


def make_trainer(out: str, seed: int = 0, steps: int | None = None, **changes: object) -> GRPOTrainer:
    """Build the quickstart's trainer; `changes` are settings that differ from the tuned ones."""
    from datasets import Dataset

    from covey import GRPOConfig, GRPOTrainer
    from covey.rewards import load_reward_model
    from covey.tasks import quickstart_run

    steps = quickstart_run.STEPS if steps is None else steps
    if steps < 1:
        raise ConfigError(f"--steps is {steps}; it must be at least 1.")
    settings: dict[str, Any] = {**quickstart_run.settings(seed, steps), "display": "live", **changes}
    reward_model = load_reward_model(str(quickstart_run.REWARD_MODEL))
    return GRPOTrainer(
        str(quickstart_run.POLICY),
        [*quickstart_run.RULES, quickstart_run.text_reward(reward_model)],
        GRPOConfig(output_dir=out, **settings),
        Dataset.from_list(quickstart_run.train_rows(seed, steps)),
        {name: Dataset.from_list(rows) for name, rows in quickstart_run.held_out_rows().items()},
    )


def accuracy_line(trainer: GRPOTrainer) -> str:
    """Evaluate, and return the accuracy on the held-out puzzles by task, with its 95 % interval."""
    metrics = trainer.evaluate()
    parts = []
    for task in trainer.eval_dataset:
        name = f"eval_{task}_rewards/{task}_reward"
        mean, low, high = (metrics[f"{name}/{part}"] for part in ("mean", "low", "high"))
        parts.append(f"{task} {mean:.0%} right (95 % interval {low:.0%} to {high:.0%})")
    return "   ".join(parts)
