"""`covey check`: try rewards out on a dataset before a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from covey.cli.arguments import add_set
from covey.cli.engines import engine_of
from covey.errors import ConfigError, CoveyError, DatasetError, RewardError

if TYPE_CHECKING:
    from covey.rewards import Mixture
    from covey.rewards.check.run import Sampler
    from covey.rewards.options import Row
    from covey.types import PromptContent

EXAMPLES = """
examples:
  covey check recipes/mixture.yaml                       the rewards and the data of a recipe
  covey check data.jsonl --reward SameAnswer --reward ThinkFormat
  covey check data.jsonl --reward my_rewards:mixture --rows 200 --json
  covey check data.jsonl --reward my_rewards:correct --completions samples.jsonl
  covey check data.jsonl --reward Countdown --model path/to/policy

A reward is a bundled one by name, or `module:attribute`: a function, a callable, or a Mixture.
Completions are made up from the right answers, unless a file or a model gives them.

Exit status: 0 nothing stands in the way of a run, 1 an error was found, 2 wrong input.
"""


BUNDLED = (
    "AssertTests", "BoxedFormat", "CallTests", "Countdown", "ExactMatch", "JsonFormat", "MultipleChoice", "NumberMatch",
    "Repetition", "SameAnswer", "StdioTests", "ThinkFormat", "accuracy_reward", "code_reward_func", "format_reward_func",
    "math_reward_func", "reasoning_accuracy_reward", "simple_math_reward_func", "think_format_reward",
)  # fmt: skip
"""Bundled rewards that can be made without arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add(
        "dataset",
        help="a recipe, a .jsonl, .json, .csv or .parquet file, a bundled generator, or a dataset's name",
    )
    add("--reward", action="append", default=[], metavar="NAME", help="may be given several times")
    add("--split", help="of a dataset given by name, or of a generator (train)")
    add("--prompt", metavar="COLUMN", help="the column with the prompts (prompt)")
    add_set(parser)
    add("--rows", type=int, default=64, help="rows to look at (64)")
    add("--completions", metavar="FILE", help="JSON lines with `completion`, and `prompt` or `row`")
    add("--model", metavar="FOLDER", help="sample the completions from this policy")
    add("--group-size", type=int, default=4, help="completions per prompt, with --model (4)")
    add("--max-tokens", type=int, default=256, help="tokens per completion, with --model (256)")
    add("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report and return its exit code."""
    from covey.rewards import check_rewards

    try:
        rewards, rows = rewards_and_rows(args)
        report = check_rewards(
            rewards,
            rows,
            num_rows=args.rows,
            completions=args.completions,
            sample=sampler(args.model, args.max_tokens) if args.model else None,
            group_size=args.group_size,
        )
    except CoveyError as error:
        print(f"covey check: {error}", file=sys.stderr)
        return 2
    print(report.as_json() if args.json else report)
    return report.exit_code


def rewards_and_rows(args: argparse.Namespace) -> tuple[Mixture | list[object], Iterable[Row]]:
    """Return the rewards to check and the rows to check them on: a recipe's, or those that the options name.

    Raises:
        ConfigError: no reward, or options that have no effect.
        DatasetError: the recipe has no training data.
    """
    from covey.recipes import Recipe
    from covey.recipes.nodes import Mark, node_of
    from covey.recipes.sources import load_data, section_of

    if args.completions and not Path(args.completions).is_file():
        raise DatasetError(f"--completions {args.completions}: there is no such file.")
    if not args.dataset.endswith((".yaml", ".yml")):
        if not args.reward:
            raise ConfigError("No reward to check. Add --reward NAME, or give a recipe.")
        if args.set:
            raise ConfigError("--set has no effect without a recipe.")
        section = section_of(args.dataset, args.split, prompt=args.prompt)
        return [load_reward(name) for name in args.reward], load_data(node_of(section, Mark("command line")))
    for option in ("reward", "split", "prompt"):
        if getattr(args, option):
            raise ConfigError(f"--{option} has no effect: {args.dataset} says it. Use --set.")
    recipe = Recipe.load(args.dataset, args.set)
    if recipe.train_dataset is None:
        raise DatasetError(f"{args.dataset} has no training data to check rewards on. Add a section 'data'.")
    return recipe.rewards(), recipe.train_dataset


def load_reward(name: str) -> object:
    """Return a bundled reward by its name, or `module:attribute`; a class is made with its defaults.

    Raises:
        RewardError: there is no such thing.
    """
    import covey.rewards
    from covey.recipes.objects import import_object

    try:
        found = import_object(name) if ":" in name else getattr(covey.rewards, name)
        return found() if isinstance(found, type) else found
    except (ConfigError, AttributeError, TypeError) as error:
        raise RewardError(
            f"--reward {name}: {error}. Give a bundled reward ({', '.join(BUNDLED)}), or module:attribute."
        ) from error


def sampler(folder: str, max_tokens: int) -> Sampler:
    """Return a function that samples completions from a policy, as training would at temperature 1."""
    from covey.models import loading
    from covey.sample.prompts import PromptReader
    from covey.sample.sampling import Sampling

    policy, tokenizer = loading.load_policy(folder), loading.load_tokenizer(None, folder)
    engine, ending = engine_of(policy, tokenizer)
    reader = PromptReader(tokenizer)

    def sample(prompts: Sequence[PromptContent], group_size: int) -> list[list[PromptContent]]:
        read = [reader.read({"prompt": prompt}, number, (number,)) for number, prompt in enumerate(prompts)]
        groups = engine.generate(read, group_size, Sampling(max_new_tokens=max_tokens, stop_ids=ending))
        by_row = {group.prompt.row: group.contents() for group in groups}
        return [by_row[number] for number in range(len(read))]

    return sample
