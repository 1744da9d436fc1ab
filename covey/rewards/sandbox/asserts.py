"""Grading by statements, `assert f(2) == 4` or `check(candidate)`: they run in another zygote's child than the code."""

from __future__ import annotations

import ast
import builtins

from covey.rewards.sandbox.calls import ended_verdict, raised_verdict, with_rest
from covey.rewards.sandbox.child import Child, ChildEnded, TooLate, TooMuch
from covey.rewards.sandbox.grade import AssertsJob, Grade, Verdict
from covey.rewards.sandbox.inside.answers import NO_ANSWER, TESTS, checked
from covey.rewards.sandbox.inside.verdict import PEER
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.zygote import Zygote
from covey.rewards.syntax import parsed

_NAMED = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.ExceptHandler

GONE = "the code's process ended"
"""The detail of a verdict that says so; how the process ended is read from its exit."""


def grade_asserts(
    code_zygote: Zygote, tests_zygote: Zygote, job: AssertsJob, limits: Limits, stop_early: bool = False
) -> Grade:
    """Run the code in one child and the tests in another; the two speak over a socket."""
    verdicts: list[Verdict] = []
    with (
        Child(code_zygote, limits) as candidate,
        Child(tests_zygote, limits, {PEER: candidate.channel.fileno()}) as tests,
    ):
        try:
            undefined, objects = undefined_names([job.setup, *job.tests])
            names = {**{name: name for name in undefined}, **job.names}
            asked = {
                "mode": "serve",
                "code": job.code,
                "filename": "<solution>",
                "names": list(names.values()),
            }
            candidate.send(asked)
            candidate.hand_over()  # to the tests, which have a copy of the channel
            tests.send({"names": names, "objects": objects, "setup": job.setup, "tests": list(job.tests)})
            rest = _read_verdicts(tests, verdicts, len(job.tests), stop_early)
            tests.kill()  # both end at the same time, rather than one after the other
        except (ChildEnded, TooLate, TooMuch) as error:
            rest = ended_verdict(error, tests.close(), limits)
        end = candidate.close()
        if rest.detail == GONE:
            rest = ended_verdict(ChildEnded("it ended"), end, limits)
        return with_rest(verdicts, rest, len(job.tests), end)


def _read_verdicts(tests: Child, verdicts: list[Verdict], count: int, stop_early: bool) -> Verdict:
    """Collect verdicts as they come; return the verdict on tests that are not reached."""
    setup = _meaning(tests.receive())
    if setup.status != "ok":
        is_end = setup.detail in (GONE, NO_ANSWER)
        return Verdict(setup.status, setup.detail if is_end else f"the tests' setup: {setup.detail}")
    while len(verdicts) < count:
        verdict = _meaning(tests.receive())
        if verdict.status == "infrastructure" or verdict.detail in (GONE, NO_ANSWER):
            return verdict
        verdicts.append(verdict)
        if stop_early and verdict.status != "ok":
            break
    return Verdict("wrong", "not run")


def _meaning(message: object) -> Verdict:
    """Return the verdict that a message of the tests' process stands for."""
    match checked(message, TESTS):
        case ("passed",):
            return Verdict("ok")
        case ("failed", str(detail)):
            return Verdict("memory" if detail.startswith("MemoryError") else "wrong", detail)
        case ("raised", str(kind), str(text)):
            return raised_verdict(kind, text)
        case ("unsupported", str(detail)):
            return Verdict("unsupported", detail)
        case ("gone", detail):
            return Verdict("crash", NO_ANSWER if detail == NO_ANSWER else GONE)
        case ("broken", str(detail)):
            return Verdict("infrastructure", f"the tests cannot be run: {detail}")
    return Verdict("crash", NO_ANSWER)


def undefined_names(sources: list[str]) -> tuple[list[str], list[str]]:
    """Return the names that the tests use and neither define nor find among the builtins, and those that attributes are asked of.

    The first are functions of the code.
    """
    used: set[str] = set()
    objects: set[str] = set()
    defined: set[str] = set(dir(builtins))
    for source in sources:
        try:
            tree = parsed(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # reported where it is executed
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                objects.add(node.value.id)
            elif isinstance(node, _NAMED) and node.name:
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                defined.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return sorted(used - defined), sorted(objects - defined)
