"""`covey check`: try rewards out on a dataset before a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import CoveyError, DatasetError, RewardError

if TYPE_CHECKING:
    from covey.groups import PromptContent
    from covey.rewards.check import Sampler

HELP = "try rewards out on a dataset before a run: coverage, right answers, attacks, speed"

EXAMPLES = """
examples:
  covey check data.jsonl --reward SameAnswer --reward ThinkFormat
  covey check data.jsonl --reward my_rewards:mixture --rows 200 --json
  covey check data.jsonl --reward my_rewards:correct --completions samples.jsonl
  covey check data.jsonl --reward Countdown --model path/to/policy

A reward is a bundled one by name, or `module:attribute`: a function, a callable, or a Mixture.
Completions are made up from the right answers, unless a file or a model gives them.

Exit status: 0 nothing stands in the way of a run, 1 an error was found, 2 wrong input.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "check",
        help=HELP,
        description=HELP,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dataset", help="a .jsonl, .json, .csv or .parquet file, or a dataset's name")
    parser.add_argument(
        "--reward", action="append", required=True, metavar="NAME", help="may be given several times"
    )
    parser.add_argument("--split", default="train", help="of a dataset given by name (train)")
    parser.add_argument(
        "--prompt", default="prompt", metavar="COLUMN", help="the column with the prompts (prompt)"
    )
    parser.add_argument("--rows", type=int, default=64, help="rows to look at (64)")
    parser.add_argument(
        "--completions", metavar="FILE", help="JSON lines with `completion`, and `prompt` or `row`"
    )
    parser.add_argument("--model", metavar="FOLDER", help="sample the completions from this policy")
    parser.add_argument("--group-size", type=int, default=4, help="completions per prompt, with --model (4)")
    parser.add_argument(
        "--max-tokens", type=int, default=256, help="tokens per completion, with --model (256)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run_command=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; its exit code."""
    from covey.rewards import check_rewards

    try:
        rewards = [load_reward(name) for name in args.reward]
        report = check_rewards(
            rewards,
            load_rows(args.dataset, args.split, args.prompt),
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


def load_reward(name: str) -> Any:
    """A bundled reward by its name, or `module:attribute`; a class is made with its defaults.

    Raises:
        RewardError: there is no such thing.
    """
    import covey.rewards

    module, colon, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute) if colon else getattr(covey.rewards, name)
        return found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError) as error:
        raise RewardError(
            f"--reward {name}: {error}. Give a bundled reward ({', '.join(bundled())}), or module:attribute."
        ) from error
    finally:
        sys.path.pop(0)


def bundled() -> list[str]:
    """Names of the bundled rewards that can be made without arguments."""
    return [
        *(
            "AssertTests",
            "BoxedFormat",
            "CallTests",
            "Countdown",
            "ExactMatch",
            "JsonFormat",
            "MultipleChoice",
        ),
        *("NumberMatch", "Repetition", "SameAnswer", "StdioTests", "ThinkFormat", "code_reward_func"),
        *("format_reward_func", "math_reward_func", "simple_math_reward_func"),
    ]


def load_rows(source: str, split: str, prompt: str) -> Any:
    """The rows of a file or of a dataset by name, with the prompts in the column `prompt`.

    Raises:
        DatasetError: it cannot be loaded, or has no such column.
    """
    from datasets import load_dataset

    kind = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}.get(Path(source).suffix)
    try:
        rows = (
            load_dataset(kind, data_files=source, split="train")
            if kind
            else load_dataset(source, split=split)
        )
    except Exception as error:  # whatever a loader raises, the user named something that cannot be loaded
        raise DatasetError(f"{source} cannot be loaded: {type(error).__name__}: {error}") from error
    if prompt not in rows.column_names:
        raise DatasetError(
            f"{source} has no column {prompt!r}; it has {', '.join(rows.column_names)}. Use --prompt."
        )
    return rows if prompt == "prompt" else rows.rename_column(prompt, "prompt")


def sampler(folder: str, max_tokens: int) -> Sampler:
    """Samples completions from a policy, as training would at temperature 1."""
    from covey import loading
    from covey.sample.chat import decode_text, stop_ids
    from covey.sample.native import NativeEngine
    from covey.sample.prompts import PromptReader
    from covey.sample.settings import Sampling

    policy, tokenizer = loading.load_policy(folder), loading.load_tokenizer(None, folder)
    ending = stop_ids(tokenizer, loading.generation_config(policy))
    unsaid = frozenset(i for i in (*ending, tokenizer.pad_token_id) if i is not None)
    engine = NativeEngine(lambda ids: decode_text(tokenizer, ids, unsaid))
    engine.load(policy)
    reader = PromptReader(tokenizer)

    def sample(prompts: Sequence[PromptContent], group_size: int) -> list[list[PromptContent]]:
        read = [reader.read({"prompt": prompt}, number, (number,)) for number, prompt in enumerate(prompts)]
        groups = engine.generate(read, group_size, Sampling(max_new_tokens=max_tokens, stop_ids=ending))
        by_row = {group.prompt.row: group.contents() for group in groups}
        return [by_row[number] for number in range(len(read))]

    return sample
