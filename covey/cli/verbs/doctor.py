"""`covey doctor RUN`: the problems of a run, with evidence and advice."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from covey.text.foreign import clean, show, show_json

if TYPE_CHECKING:
    from covey.runs.hints import HintWatch

EXAMPLES = """
examples:
  covey doctor quickstart-run          every hint, the gravest first
  covey doctor quickstart-run --json   the same for machines

Exit status: 0 no problem holds at the end of the record, 1 one does, 2 there is no record.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "run", help="output directory of a run, or its record folder; the run may still go on"
    )
    parser.add_argument("--json", action="store_true", help="print the hints as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the hints of a run; the exit code is 1 where a problem holds at its end."""
    from covey.runs import open as open_run
    from covey.runs.hints import watch_record

    try:
        record = open_run(args.run)
    except (FileNotFoundError, ValueError) as error:
        show(f"covey doctor: {error}", sys.stderr)
        return 2
    watch = watch_record(record.folder)
    if args.json:
        show_json(json.dumps([h.as_dict() | {"holds": watch.holds(h)} for h in watch.hints], indent=2))
    else:
        print_hints(record.name, record.state, watch)
    return int(any(h.severity == "problem" and watch.holds(h) for h in watch.hints))


def print_hints(name: str, state: str, watch: HintWatch) -> None:
    """Print every hint with its evidence and advice, the gravest first."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    styles = {"problem": "bold red", "warning": "bold yellow", "note": "bold cyan"}
    console.print(Text(f"{clean(name)}: {state}, {watch.history.length} steps recorded"))
    if not watch.hints:
        console.print("Nothing found.")
    for hint in watch.hints:
        until = "now" if watch.holds(hint) else f"step {hint.last_step}"
        when = f"  from step {hint.first_step} until {until}"
        console.print()
        console.print(
            Text.assemble(
                (f"{hint.severity}  ", styles[hint.severity]), (clean(hint.title), "bold"), (when, "dim")
            )
        )
        console.print(Padding(Text(clean(hint.evidence)), (0, 0, 0, 2)))
        for advice in hint.advice:
            console.print(Padding(Text(clean(f"· {advice}")), (0, 0, 0, 2)))
        if hint.metrics:
            console.print(
                Padding(Text(clean(f"curves: {', '.join(hint.metrics)}"), style="dim"), (0, 0, 0, 2))
            )
