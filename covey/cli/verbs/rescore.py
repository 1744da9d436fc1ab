"""`covey rescore RUN`: recorded groups under other weights, estimators, filters or a changed reward, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import ConfigError, CoveyError
from covey.text.foreign import show, show_json

if TYPE_CHECKING:
    from rich.table import Table

    from covey.runs.what_if import Rescored, WhatIf

EXAMPLES = """
examples:
  covey rescore quickstart-run --weight format=0            without the reward for the format
  covey rescore quickstart-run --scale-rewards none         Dr. GRPO's advantages
  covey rescore quickstart-run --aggregation normalize_then_sum
  covey rescore quickstart-run --reward accuracy=my_rewards:accuracy    a changed function, on the recorded texts
  covey rescore quickstart-run --weight format=0 -o rows.csv            every completion, before and after

Exit status: 0 done, 2 wrong input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("run", metavar="RUN", help="output directory of a run, or its record folder")
    add("--weight", action="append", default=[], metavar="NAME=W", help="another weight of a reward")
    add(
        "--reward",
        action="append",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help="a function instead of a reward",
    )
    add("--aggregation", metavar="NAME", help="sum_then_normalize or normalize_then_sum")
    add("--scale-rewards", metavar="NAME", help="group, batch or none")
    add("--estimator", metavar="NAME", help="grpo, rloo, leave_one_out, maxrl, opo, …")
    add("--loss-type", metavar="NAME", help="grpo, dr_grpo, dapo, bnpo, prompt_mean, …")
    add(
        "--mask-truncated",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="leave out what was cut off",
    )
    add("--drop-without-spread", action="store_true", help="leave out groups without spread")
    add("--steps", metavar="FROM:TO", help="only these steps, both ends included")
    add("--show", type=int, default=10, metavar="N", help="how many samples to show (default: 10)")
    add("--json", action="store_true", help="print the summary as JSON")
    add("-o", "--output", metavar="FILE", help="write every completion as .csv or .parquet")


def run(args: argparse.Namespace) -> int:
    """Rescore, and print what changes."""
    from covey.runs import open as open_run
    from covey.runs.what_if import rescore

    check_output(args.output)
    try:
        steps, record = parse_steps(args.steps), open_run(args.run)
        result = rescore(record, what_if(args), steps)
    except (FileNotFoundError, ValueError, CoveyError) as error:
        show(f"covey rescore: {error}", sys.stderr)
        return 2
    if args.output:
        frame, is_parquet = result.frame(), Path(args.output).suffix == ".parquet"
        frame.to_parquet(args.output) if is_parquet else frame.to_csv(args.output, index=False)
    if args.json:
        show_json(json.dumps(result.summary(), indent=2))
    else:
        print_result(result, args.show)
    return 0


def check_output(path: str | None) -> None:
    """Refuse a file whose name does not say its form."""
    if path and Path(path).suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--output is {path}; its name must end in .csv or .parquet, which says the form.")


def what_if(args: argparse.Namespace) -> WhatIf:
    """Return what is to be different, from the options.

    Raises:
        ConfigError: an option that cannot be read, or a function that cannot be imported.
    """
    from covey.recipes.objects import import_object
    from covey.runs.what_if import WhatIf

    weights, functions = split_pairs(args.weight), split_pairs(args.reward)
    return WhatIf(
        weights={name: parse_weight(name, value) for name, value in weights.items()},
        rewards={name: import_object(path) for name, path in functions.items()},
        multi_objective_aggregation=args.aggregation,
        advantage_estimator=args.estimator,
        scale_rewards=args.scale_rewards,
        loss_type=args.loss_type,
        mask_truncated_completions=args.mask_truncated,
        drop_groups_without_spread=args.drop_without_spread,
    )


def split_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return values by name, from NAME=VALUE."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"{text!r} is no NAME=VALUE.")
        pairs[name] = value
    return pairs


def parse_weight(name: str, value: str) -> float:
    """Return the number."""
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"The weight of {name!r} is {value!r}; give a number.") from None


def parse_steps(text: str | None) -> range | None:
    """Return the steps of FROM:TO, both ends included, or of one number; None for all."""
    if text is None:
        return None
    first, separator, last = text.partition(":")
    try:
        if not separator:
            return range(int(first), int(first) + 1)
        steps = range(int(first or 0), int(last or 10**9) + 1)
    except ValueError:
        raise ConfigError(f"--steps is {text!r}; give FROM:TO, for example 100:200.") from None
    if not steps:
        raise ConfigError(
            f"--steps is {text!r}: it ends before it begins. Give FROM:TO, for example 100:200."
        )
    return steps


def print_result(result: Rescored, show: int) -> None:
    """Print the change in numbers, and the samples whose advantage changes its sign most."""
    from rich.console import Console
    from rich.table import Table

    console, table, found = Console(highlight=False), Table.grid(padding=(0, 2)), result.summary()
    add = table.add_row
    add("completions", f"{found['completions']:,.0f}")
    add("advantage changes its sign", f"{found['flips']:,.0f} ({found['flip_share']:.1%})")
    add("begins to count", f"{found['starts_to_count']:,.0f}")
    add("no longer counts", f"{found['stops_to_count']:,.0f}")
    add("groups with signal", f"{found['signal_share_before']:.1%} → {found['signal_share_after']:.1%}")
    add("loss at the first pass, mean", f"{found['loss_before']:.4g} → {found['loss_after']:.4g}")
    add("correlation of advantages", f"{found['correlation']:.3f}")
    if found["skipped"]:
        add("left out, texts not recorded", f"{found['skipped']:,.0f}")
    console.print(table)
    if (flips := flips_table(result, show)).row_count:
        console.print("\nStrongest changes of sign", style="bold")
        console.print(flips)


def flips_table(result: Rescored, show: int) -> Table:
    """Return a row for each sample whose advantage changes its sign, the largest change first, `show` at most."""
    import numpy as np
    from rich.table import Table

    a, b = result.before, result.after
    rows = np.flatnonzero(result.flips)
    table = Table("step", "group", "completion", "total", "advantage", box=None, padding=(0, 2, 0, 0))
    for i in rows[np.argsort(-np.abs(a.advantages[rows] - b.advantages[rows]), kind="stable")][:show]:
        table.add_row(
            str(result.keys["step"][i]), str(result.keys["group"][i] + 1), f"#{result.keys['index'][i] + 1}",
            f"{a.totals[i]:.3f} → {b.totals[i]:.3f}", f"{a.advantages[i]:+.2f} → {b.advantages[i]:+.2f}",
        )  # fmt: skip
    return table
