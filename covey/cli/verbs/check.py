"""`covey check`: try rewards out on a dataset before a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from covey.cli.arguments import add_set
from covey.cli.engines import engine_of, never_drawn, reader_of
from covey.cli.prompt_files import folder_of
from covey.errors import ConfigError, CoveyError, DatasetError, RewardError
from covey.runs.terminal.phrases import duration
from covey.text.foreign import excerpt, show, show_json

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
  covey check data.jsonl --reward Countdown --model path/to/policy       completions of a policy; pictures: --image-root FOLDER
  covey check recipe.yaml --tools                        two calls of each tool, with made-up arguments

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
    add(
        "--image-root",
        metavar="FOLDER",
        help="pictures lie below it, with --model (as the recipe, or beside the file)",
    )
    add("--group-size", type=int, default=4, help="completions per prompt, with --model (4)")
    add("--max-tokens", type=int, default=256, help="tokens per completion, with --model (256)")
    add("--tools", action="store_true", help="call each tool of a recipe twice, with made-up arguments")
    add("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report and return its exit code."""
    from covey.rewards import check_rewards

    if args.tools:
        return check_tools(args)
    try:
        rewards, rows, root = rewards_and_rows(args)
        report = check_rewards(
            rewards,
            rows,
            num_rows=args.rows,
            completions=args.completions,
            sample=sampler(args.model, args.max_tokens, root) if args.model else None,
            group_size=args.group_size,
        )
    except CoveyError as error:
        show(f"covey check: {error}", sys.stderr)
        return 2
    if args.json:
        show_json(report.as_json())
    else:
        show(report)
    return report.exit_code


def check_tools(args: argparse.Namespace) -> int:
    """Print what two calls of each tool of a recipe came to; a tool may be right to refuse arguments that are made up.

    Raises:
        ConfigError: the recipe has no tools.
    """
    from covey.recipes import Recipe
    from covey.sample.given_data import first_row
    from covey.tools.tool_trial import try_tools
    from covey.trainer.agents import Agents

    recipe = Recipe.load(args.dataset, args.set)
    with recipe.located():
        agents = Agents.of(recipe.config, **recipe.agents())
        if not agents.call:
            raise ConfigError(f"--tools has no effect: {args.dataset} has neither tools nor an environment.")
        row = (first_row(recipe.train_dataset) if recipe.train_dataset is not None else None) or {}
        trials = list(try_tools(agents.tools, agents.environments, row))
    if args.json:
        show_json(json.dumps([asdict(trial) for trial in trials], indent=2, default=str))
        return 0
    for trial in trials:
        given = ", ".join(f"{name}={value!r}" for name, value in trial.arguments.items())
        same = "" if trial.is_repeatable else "; another result the second time"
        show(f"{trial.name}({given})  {trial.place}, {trial.status}, {duration(trial.seconds)}{same}")
        show(f"    {excerpt(trial.text, 200)}")
    return 0


def rewards_and_rows(
    args: argparse.Namespace,
) -> tuple[Mixture | list[object], Iterable[Row], str | Path | None]:
    """Return the rewards to check, the rows to check them on, and the folder of their pictures: a recipe's, or as the options say.

    Raises:
        ConfigError: no reward, or options that have no effect.
        DatasetError: the recipe has no training data.
    """
    from covey.recipes import Recipe
    from covey.recipes.bundled import is_recipe
    from covey.recipes.nodes import Mark, node_of
    from covey.recipes.sources import load_data, section_of

    if args.image_root and not args.model:
        raise ConfigError("--image-root has no effect without --model: completions are not sampled.")
    if args.completions and not Path(args.completions).is_file():
        raise DatasetError(f"--completions {args.completions}: there is no such file.")
    if not is_recipe(args.dataset, args.reward):
        if not args.reward:
            raise ConfigError("No reward to check. Add --reward NAME, or give a recipe.")
        if args.set:
            raise ConfigError("--set has no effect without a recipe.")
        section = section_of(args.dataset, args.split, prompt=args.prompt)
        root = args.image_root or (folder_of(args.dataset) if Path(args.dataset).is_file() else None)
        rows = load_data(node_of(section, Mark("command line")))
        return [load_reward(name) for name in args.reward], rows, root
    for option in ("reward", "split", "prompt"):
        if getattr(args, option):
            raise ConfigError(f"--{option} has no effect: {args.dataset} says it. Use --set.")
    recipe = Recipe.load(args.dataset, args.set)
    if recipe.train_dataset is None:
        raise DatasetError(f"{args.dataset} has no training data to check rewards on. Add a section 'data'.")
    rewards = recipe.rewards()
    needy = [reward.name for reward in rewards if "environments" in reward.names]
    if needy:
        raise ConfigError(
            f"{', '.join(map(repr, needy))} asks for environments, which made-up completions do not have. Use covey try, which plays "
            "an episode; and --tools for the tools."
        )
    return rewards, recipe.train_dataset, args.image_root or recipe.config.image_root


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


def sampler(folder: str, max_tokens: int, root: str | Path | None = None) -> Sampler:
    """Return a function that samples completions from a policy, as training would at temperature 1; pictures lie below `root`."""
    from covey.models import loading
    from covey.recipes.bundled import policy_name
    from covey.sample.sampling import Sampling

    folder = policy_name(folder)
    policy, processing = loading.load_policy(folder), loading.load_processing_class(None, folder)
    tokenizer, reader = loading.tokenizer_of(processing), reader_of(policy, processing, root)
    engine, ending = engine_of(policy, tokenizer, reader.eyes)
    sampling = Sampling(max_new_tokens=max_tokens, stop_ids=ending, **never_drawn(policy, tokenizer, ending))

    def sample(rows: Sequence[Row], group_size: int) -> list[list[PromptContent]]:
        read = [reader.read(row, number, (number,)) for number, row in enumerate(rows)]
        groups = engine.generate(read, group_size, sampling)
        by_row = {group.prompt.row: group.contents() for group in groups}
        return [by_row[number] for number in range(len(read))]

    return sample
