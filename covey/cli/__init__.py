"""The command line: one file per verb, imported when it is used.

A verb's module has `add_parser(subparsers)`, which describes its arguments, and `run(arguments)`, which gives the exit
code: 0 for success, 1 where the answer is no (a check that fails), 2 for wrong input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from covey import __version__
from covey.errors import CoveyError

VERBS = {
    "quickstart": "watch the bundled policy learn, on a laptop, in three minutes",
    "check": "try rewards on a slice of the data before a run, and attack them",
    "generate": "sample completions from a model, prompts in, JSON lines out",
    "watch": "serve the page of a run that goes on, on 127.0.0.1",
    "report": "write one self-contained HTML file about a run, or several to compare",
    "doctor": "name what goes wrong in a run, with evidence and what to try",
    "rescore": "score the recorded groups of a run another way, and show which samples change sign",
}
"""Every verb and what it is for, in the order in which one needs them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `covey <verb> ...`; gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words and words[0] in VERBS else None
    arguments = _parser(verb).parse_args(words)
    if verb is None:
        _parser(None).print_help()
        return 2
    try:
        code: int = import_module(f"covey.cli.{verb}").run(arguments)
        return code
    except CoveyError as error:
        print(f"covey {verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser of one verb, or of all of them without their arguments."""
    parser = argparse.ArgumentParser(
        prog="covey", description="GRPO on any mixture of rewards: sample, score, update."
    )
    parser.add_argument("--version", action="version", version=f"covey {__version__}")
    subparsers = parser.add_subparsers(metavar="<verb>", dest="verb")
    if verb is not None:
        import_module(f"covey.cli.{verb}").add_parser(subparsers)
        return parser
    for name, purpose in VERBS.items():
        subparsers.add_parser(name, help=purpose)
    return parser
