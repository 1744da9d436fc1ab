"""The command line: `covey VERB ...`. Every verb has a file in `covey/cli/verbs`, which is imported when it is used.

A verb's module has `EXAMPLES`, the end of its help; `add_arguments(parser)`; and `run(args)`, which returns the exit code:
0 for success, 1 where the answer is no (a check that fails), 2 for wrong input, 3 for what broke off, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import traceback
import warnings
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path

from covey import __version__
from covey.cli.arguments import show_warning
from covey.errors import CoveyError, RewardError
from covey.runs.terminal.any_encoding import any_encoding
from covey.text.foreign import fit, show

VERBS = {
    "quickstart": "watch the bundled policy learn, on a laptop, in three minutes",
    "recipes": "list the recipes that come along, or print one to start from",
    "plan": "show what a recipe means and what it will need: batches, steps, memory, time",
    "check": "try rewards on a slice of the data before a run: coverage, right answers, attacks, speed",
    "try": "answer one row of a recipe as in training, and print it turn by turn with its rewards",
    "train": "train a policy as a recipe says it",
    "eval": "measure a policy on a dataset, and compare it with another one",
    "generate": "sample completions from a model, prompts in, JSON lines out",
    "serve": "serve a model over HTTP, for runs that sample elsewhere than where they train",
    "engines": "prove servers before a run: speed, exactness, and that every weight reaches them",
    "watch": "serve the page of a run that goes on, on 127.0.0.1",
    "report": "write one self-contained HTML file about a run, or several to compare",
    "doctor": "name what goes wrong in a run, with evidence and what to try",
    "rescore": "score the recorded groups of a run another way, and show which samples change sign",
    "export": "write the recorded conversations of a run as JSON lines, for other programs",
    "merge": "merge an adapter into its base model, and save the result",
    "completion": "print a script that completes covey's verbs and options in a shell",
}
"""Every verb and its help, in the order in which one needs them."""

MAX_TRACEBACK = 20_000
"""Characters of a traceback that are printed; what a reward raised may quote completions."""

EPILOG = """
a run, from beginning to end:
  covey plan recipe.yaml                  what will happen, before anything does
  covey check recipe.yaml                 whether the rewards can be trusted
  covey try MODEL recipe.yaml             one answer, turn by turn, with what the rewards say
  covey train recipe.yaml                 the run; covey watch RUN shows it live
  covey eval RUN/model recipe.yaml        what the policy is worth now, with intervals
  covey report RUN                        everything on one page

covey VERB --help has examples. Exit status: 0 done, 1 the answer is no, 2 wrong input, 3 the work broke off, 130 Ctrl-C.
"""


@any_encoding()
def main(argv: Sequence[str] | None = None) -> int:
    """Run `covey VERB ...` and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] not in VERBS and not words[0].startswith("-"):
        close = difflib.get_close_matches(words[0], VERBS, n=2)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(VERBS)}."
        show(f"covey: there is no verb {words[0]!r}. {hint}", sys.stderr)
        return 2
    verbs = [word for word in words[:1] if word in VERBS]
    parser = build_parser(verbs)
    own = words[: words.index("--")] if verbs == ["serve"] and "--" in words else words
    args, unknown = parser.parse_known_args(own)
    args.passed_on = words[len(own) + 1 :]
    if unknown:
        return refuse(unknown, args)
    if not verbs:
        parser.print_help()
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        return run_verb(verbs[0], args)


def refuse(unknown: Sequence[str], args: argparse.Namespace) -> int:
    """Name the options that a verb does not have, and return the exit code."""
    way = " A setting is given by --set NAME=VALUE." if hasattr(args, "set") else ""
    show(f"covey: there is no option {' '.join(unknown)}.{way} See covey {args.verb} --help.", sys.stderr)
    return 2


def build_parser(verbs: Collection[str] = ()) -> argparse.ArgumentParser:
    """Build the parser of these verbs; of none, the list of all verbs without their arguments."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="covey",
        description="GRPO on any mixture of rewards: sample, score, update.",
        epilog=EPILOG,
        formatter_class=lambda prog: plain(prog, max_help_position=16),
    )
    parser.add_argument("--version", action="version", version=f"covey {__version__}")
    subparsers = parser.add_subparsers(metavar="<verb>", dest="verb")
    for verb in verbs or VERBS:
        subparser = subparsers.add_parser(verb, help=VERBS[verb])
        if verbs:
            module = import_module(f"covey.cli.verbs.{verb}")
            subparser.description, subparser.epilog = VERBS[verb], module.EXAMPLES
            subparser.formatter_class = plain
            module.add_arguments(subparser)
    return parser


def run_verb(verb: str, args: argparse.Namespace) -> int:
    """Run a verb and return its exit code; an error becomes a message on standard error."""
    try:
        code: int = import_module(f"covey.cli.verbs.{verb}").run(args)
        return code
    except CoveyError as error:
        if isinstance(error, RewardError):
            show_users_traceback(error)
        show(f"covey {verb}: {error}", sys.stderr)
        return 2 if isinstance(error, ValueError) else 3
    except KeyboardInterrupt:
        return 130
    except Exception:  # the last boundary: Python's own status is 1, which means "the answer is no" here
        show(fit(traceback.format_exc(), MAX_TRACEBACK), sys.stderr)
        return 3


def show_users_traceback(error: RewardError) -> None:
    """Print where a reward of the user's raised; nothing where it was a file of Covey's."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)
    if frames and not frames[-1].filename.startswith(str(Path(__file__).parents[1])):
        show(fit("".join(traceback.format_exception(cause)), MAX_TRACEBACK), sys.stderr)
