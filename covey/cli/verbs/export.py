"""`covey export RUN`: recorded completions as JSON lines, for other programs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import get_args

from covey.cli.line_output import line_output
from covey.errors import CoveyError
from covey.runs.terminal.any_encoding import holds_any_character
from covey.text.foreign import show, write_json
from covey.text.secrets import without_secrets

EXAMPLES = """
examples:
  covey export quickstart-run > completions.jsonl
  covey export runs/agent --min-reward 1 -o solved.jsonl       what to fine-tune on
  covey export runs/agent --steps 90:100 --format prompt_completion

A line has messages (the prompt's, then those of the policy and its tools), tools (the schemas that the policy read, where there
were any), reward, finish, and step, group, index, row and task. With --format prompt_completion it has prompt and completion in
place of messages: lists of messages, or texts where the prompts were text. Where a prompt shows pictures, "pictures" says of each, in
order, digest, size, the path that it came from, if any, and the file of the record that has it, or null.

Exit status: 0 done, 2 wrong input, or no texts recorded.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    from covey.runs.export import ExportFormat

    add = parser.add_argument
    add("run", metavar="RUN", help="output directory of a run, or its record folder")
    add("--format", choices=get_args(ExportFormat), default="messages", help="default: messages")
    add(
        "--min-reward",
        type=float,
        metavar="R",
        help="only completions whose total is at least R (default: all)",
    )
    add("--steps", metavar="FROM:TO", help="only these steps, both ends included")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write; replaced if it exists (default: standard output)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the lines, and on standard error how many."""
    from covey.cli.verbs.rescore import parse_steps
    from covey.runs import open as open_run
    from covey.runs.export import Export

    try:
        steps = parse_steps(args.steps)
        export = Export(open_run(args.run), args.format, steps, args.min_reward)
        with line_output(args.output) as out:
            for line in export:
                text = json.dumps(line, ensure_ascii=not holds_any_character(out))
                write_json(without_secrets(text), out)
    except (FileNotFoundError, ValueError, CoveyError) as error:
        show(f"covey export: {error}", sys.stderr)
        return 2
    if export.without_text:
        show(f"{export.without_text} completions are left out: their texts are not recorded.", sys.stderr)
    show(f"{export.written} completions", sys.stderr)
    return 2 if export.without_text and not export.written else 0
