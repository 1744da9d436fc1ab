"""A bound on the length of answers, kept while the policy learns: the bundled policy on countdown, with the bound and without.

    python benchmarks/constraints.py [--steps 60] [--at-most 0.4] [--seeds 0] [--arms free bounded]

The length is in hundreds of tokens. Every prompt is seen once, so that the numbers of a rollout are those of problems that the policy
has not been trained on. Printed are means over the first ten rollouts and the last twenty.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Sequence

from datasets import Dataset

from covey import GRPOConfig, GRPOTrainer
from covey.rewards import reward
from covey.tasks import assets, quickstart_run
from covey.tasks.countdown import countdown_reward, countdown_rows

PROMPTS = 8
"""Of each rollout, which is one optimizer step."""


def hundreds(completion_ids: Sequence[Sequence[int]], **_: object) -> list[float]:
    """Return the length of each completion in hundreds of tokens."""
    return [len(ids) / 100 for ids in completion_ids]


def train(seed: int, steps: int, at_most: float | None) -> list[dict[str, float]]:
    """Train, and return what each rollout logged; without a bound, the length is a metric."""
    terms = {"weight": 0.0} if at_most is None else {"at_most": at_most}
    settings = quickstart_run.settings(seed, steps) | {
        "per_device_train_batch_size": PROMPTS * quickstart_run.GROUP_SIZE,
        "gradient_accumulation_steps": 1,
        "log_completions": False,
        "record": False,
        "lr_scheduler_type": "constant_with_warmup",
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            str(assets.POLICY),
            [countdown_reward, reward(hundreds, name="length", **terms)],
            GRPOConfig(output_dir=folder, **settings),
            Dataset.from_list(countdown_rows(PROMPTS * steps, seed=seed)),
        )
        trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def row(arm: str, seed: int, entries: list[dict[str, float]]) -> str:
    """Return a line of the table: success and length at first and at the end, the multiplier at the end."""

    def mean(name: str, part: list[dict[str, float]]) -> float:
        return sum(entry.get(name, 0.0) for entry in part) / len(part)

    first, last = entries[:10], entries[-20:]
    right, length = "rewards/countdown_reward/mean", "rewards/length/mean"
    numbers = [mean(right, first), mean(right, last), mean(length, first), mean(length, last)]
    numbers.append(mean("constraints/length/multiplier", last))
    return f"{arm:>8} {seed:>4}" + "".join(f"{number:>12.3f}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--at-most", type=float, default=0.4, help="of the mean length, in hundreds of tokens"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", choices=["free", "bounded"], default=["free", "bounded"])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    heads = ("right, first", "right, last", "long, first", "long, last", "multiplier")
    print(f"{'arm':>8} {'seed':>4}" + "".join(f"{head:>13}" for head in heads), flush=True)
    for seed in args.seeds:
        for arm in args.arms:
            print(
                row(arm, seed, train(seed, args.steps, None if arm == "free" else args.at_most)), flush=True
            )


if __name__ == "__main__":
    main()
