"""The command line: one file per verb, imported when it is used.

A verb's module has `add_parser(subparsers)`, which describes its arguments, and `run(arguments)`, which gives the exit
code: 0 for success, 1 where the answer is no (a check that fails), 2 for wrong input, 3 for what broke off, 130 after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from covey import __version__
from covey.errors import CoveyError, RewardError

VERBS = {
    "quickstart": "watch the bundled policy learn, on a laptop, in three minutes",
    "plan": "show what a recipe means and what it will need: batches, steps, memory, time",
    "check": "try rewards on a slice of the data before a run, and attack them",
    "train": "train a policy as a recipe says it",
    "eval": "measure a policy on a dataset, and compare it with another one",
    "generate": "sample completions from a model, prompts in, JSON lines out",
    "watch": "serve the page of a run that goes on, on 127.0.0.1",
    "report": "write one self-contained HTML file about a run, or several to compare",
    "doctor": "name what goes wrong in a run, with evidence and what to try",
    "rescore": "score the recorded groups of a run another way, and show which samples change sign",
    "merge": "merge an adapter into its base model, and save the result",
    "completion": "print a script that completes covey's verbs and options in a shell",
}
"""Every verb and what it is for, in the order in which one needs them."""

EPILOG = """
a run, from beginning to end:
  covey plan recipe.yaml                  what will happen, before anything does
  covey check recipe.yaml                 whether the rewards can be trusted
  covey train recipe.yaml                 the run; covey watch RUN shows it live
  covey eval RUN/model recipe.yaml        what the policy is worth now, with intervals
  covey report RUN                        everything on one page

covey VERB --help has examples. Exit status: 0 done, 1 the answer is no, 2 wrong input, 3 the work broke off, 130 Ctrl-C.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `covey <verb> ...`; gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words and words[0] in VERBS else None
    if verb is None and words and not words[0].startswith("-"):
        return _unknown(words[0])
    arguments = _parser(verb).parse_args(words)
    if verb is None:
        _parser(None).print_help()
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = import_module("covey.cli.arguments").show_warning
        return _run(verb, arguments)


def _run(verb: str, arguments: argparse.Namespace) -> int:
    try:
        code: int = import_module(f"covey.cli.{verb}").run(arguments)
        return code
    except CoveyError as error:
        _show_users_traceback(error)
        print(f"covey {verb}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 3
    except KeyboardInterrupt:
        return 130
    except (
        Exception
    ):  # the last boundary: Python's own status for it is 1, which means "the answer is no" here
        traceback.print_exc()
        return 3


def _show_users_traceback(error: CoveyError) -> None:
    """Where a reward of the user's raised, which is not in any file of ours."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)
    ours = str(Path(__file__).parents[1])
    if isinstance(error, RewardError) and frames and not frames[-1].filename.startswith(ours):
        traceback.print_exception(cause)


def _unknown(word: str) -> int:
    close = difflib.get_close_matches(word, VERBS, n=2)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(VERBS)}."
    print(f"covey: there is no verb {word!r}. {hint}", file=sys.stderr)
    return 2


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser of one verb, or of all of them without their arguments."""
    parser = argparse.ArgumentParser(
        prog="covey",
        description="GRPO on any mixture of rewards: sample, score, update.",
        epilog=EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=16),
    )
    parser.add_argument("--version", action="version", version=f"covey {__version__}")
    subparsers = parser.add_subparsers(metavar="<verb>", dest="verb")
    if verb is not None:
        import_module(f"covey.cli.{verb}").add_parser(subparsers)
        return parser
    for name, purpose in VERBS.items():
        subparsers.add_parser(name, help=purpose)
    return parser
