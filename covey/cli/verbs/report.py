"""`covey report RUN`: one HTML file about a run, or about several to compare."""

from __future__ import annotations

import argparse
import sys

from covey.text.foreign import show

EXAMPLES = """
examples:
  covey report quickstart-run                        writes quickstart-run/report.html
  covey report run-a run-b -o compare.html           both in one page
  covey report big-run --max-size 200                allow 200 MB of completions

The file needs no network and no server. Where the completions take more than the limit, those of evenly spread steps
are kept, and the page says so; numbers are always complete.

Exit status: 0 written, 2 there is no record.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="output directory of a run, or its record folder"
    )
    parser.add_argument(
        "-o", "--output", help="the file to write (default: report.html in the first run's directory)"
    )
    parser.add_argument(
        "--max-size",
        type=float,
        default=64.0,
        metavar="MB",
        help="bound of the completions in the file (default: 64)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the report and print where it is."""
    from covey.runs.record import schema
    from covey.runs.report import write_report

    try:
        beside_record = schema.record_folder(args.runs[0]).resolve().parent / "report.html"
        path = write_report(args.runs, args.output or beside_record, args.max_size)
    except (FileNotFoundError, ValueError) as error:
        show(f"covey report: {error}", sys.stderr)
        return 2
    show(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0
