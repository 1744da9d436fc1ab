"""`covey rescore RUN`: recorded groups under other weights, estimators, filters or a changed reward, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.arguments import add_verb
from covey.errors import ConfigError, CoveyError

if TYPE_CHECKING:
    from covey.runs.what_if import Rescored, WhatIf

HELP = "score the recorded groups of a run another way, and show which samples change sign"

EXAMPLES = """
examples:
  covey rescore quickstart-run --weight format=0            without the reward for the format
  covey rescore quickstart-run --scale-rewards none         Dr. GRPO's advantages
  covey rescore quickstart-run --aggregation normalize_then_sum
  covey rescore quickstart-run --reward accuracy=my_rewards:accuracy    a changed function, on the recorded texts
  covey rescore quickstart-run --weight format=0 -o rows.csv            every completion, before and after

Exit status: 0 done, 2 wrong input.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = add_verb(subparsers, "rescore", HELP, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="output directory of a run, or its record folder")
    parser.add_argument(
        "--weight", action="append", default=[], metavar="NAME=W", help="another weight of a reward"
    )
    parser.add_argument(
        "--reward",
        action="append",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help="a function instead of a reward",
    )
    parser.add_argument("--aggregation", metavar="NAME", help="sum_then_normalize or normalize_then_sum")
    parser.add_argument("--scale-rewards", metavar="NAME", help="group, batch or none")
    parser.add_argument("--estimator", metavar="NAME", help="grpo, rloo, leave_one_out, maxrl, opo, …")
    parser.add_argument("--loss-type", metavar="NAME", help="grpo, dr_grpo, dapo, bnpo, prompt_mean, …")
    parser.add_argument(
        "--mask-truncated",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="leave out what was cut off",
    )
    parser.add_argument("--drop-without-spread", action="store_true", help="leave out groups without spread")
    parser.add_argument("--steps", metavar="FROM:TO", help="only these steps, both ends included")
    parser.add_argument(
        "--show", type=int, default=10, metavar="N", help="how many samples to show (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write every completion as .csv or .parquet")


def run(args: argparse.Namespace) -> int:
    """Rescore and print what changes."""
    from covey.runs import open as open_run
    from covey.runs.what_if import rescore

    try:
        record = open_run(args.run)
        result = rescore(record, what_if(args), _steps(args.steps))
    except (FileNotFoundError, ValueError, CoveyError) as error:
        print(f"covey rescore: {error}", file=sys.stderr)
        return 2
    if args.output:
        _write(result, Path(args.output))
    if args.json:
        print(json.dumps(result.summary(), indent=2))
    else:
        _print(result, args.show)
    return 0


def what_if(args: argparse.Namespace) -> WhatIf:
    """What the options say is to be different."""
    from covey.runs.what_if import WhatIf

    return WhatIf(
        weights={name: _number(value, name) for name, value in map(_pair, args.weight)},
        rewards={name: import_function(value) for name, value in map(_pair, args.reward)},
        multi_objective_aggregation=args.aggregation,
        advantage_estimator=args.estimator,
        scale_rewards=args.scale_rewards,
        loss_type=args.loss_type,
        mask_truncated_completions=args.mask_truncated,
        drop_groups_without_spread=args.drop_without_spread,
    )


def import_function(path: str) -> Callable[..., Any]:
    """The function at `module:name`; modules of the working directory are found.

    Raises:
        ConfigError: there is no such module, or it has no such function.
    """
    from covey.recipes.objects import import_object

    function: Callable[..., Any] = import_object(path)
    return function


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"{text!r} is no NAME=VALUE.")
    return name, value


def _number(value: str, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"The weight of {name!r} is {value!r}; give a number.") from None


def _steps(text: str | None) -> range | None:
    if text is None:
        return None
    first, separator, last = text.partition(":")
    try:
        return (
            range(int(first or 0), int(last or 10**9) + 1) if separator else range(int(first), int(first) + 1)
        )
    except ValueError:
        raise ConfigError(f"--steps is {text!r}; give FROM:TO, for example 100:200.") from None


def _write(result: Rescored, path: Path) -> None:
    frame = result.frame()
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)


def _print(result: Rescored, show: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    found = result.summary()
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(found):
        table.add_row(name, value)
    console.print(table)
    rows = _strongest_flips(result, show)
    if not rows:
        return
    flips = Table("step", "group", "completion", "total", "advantage", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        flips.add_row(*row)
    console.print("\nStrongest changes of sign", style="bold")
    console.print(flips)


def _rows(found: dict[str, float]) -> list[tuple[str, str]]:
    rows = [
        ("completions", f"{found['completions']:,.0f}"),
        ("advantage changes its sign", f"{found['flips']:,.0f} ({found['flip_share']:.1%})"),
        ("begins to count", f"{found['starts_to_count']:,.0f}"),
        ("no longer counts", f"{found['stops_to_count']:,.0f}"),
        ("groups with signal", f"{found['signal_share_before']:.1%} → {found['signal_share_after']:.1%}"),
        ("loss at the first pass, mean", f"{found['loss_before']:.4g} → {found['loss_after']:.4g}"),
        ("correlation of advantages", f"{found['correlation']:.3f}"),
    ]
    if found["skipped"]:
        rows.append(("left out, texts not recorded", f"{found['skipped']:,.0f}"))
    return rows


def _strongest_flips(result: Rescored, show: int) -> list[Sequence[str]]:
    import numpy as np

    a, b = result.before, result.after
    rows = np.flatnonzero(result.flips)
    order = rows[np.argsort(-np.abs(a.advantages[rows] - b.advantages[rows]), kind="stable")][:show]
    return [
        (
            str(result.keys["step"][i]), str(result.keys["group"][i] + 1), f"#{result.keys['index'][i] + 1}",
            f"{a.totals[i]:.3f} → {b.totals[i]:.3f}", f"{a.advantages[i]:+.2f} → {b.advantages[i]:+.2f}",
        )
        for i in order
    ]  # fmt: skip
