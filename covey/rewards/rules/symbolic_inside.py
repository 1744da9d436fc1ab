"""Comparison of two answers by math-verify, for a worker process.

The limit is processor time, kept by the kernel: a busy machine makes nobody wrong, and no C code escapes it. The import
is slow and the first comparisons are slower, so both happen before the worker is forked.
"""

from __future__ import annotations

import signal

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify


def compare(gold: str, answer: str, cpu_seconds: float) -> bool | None:
    """Return whether an answer equals the right one; None where the right one cannot be read.

    When the processor time is up, SIGPROF ends the process, which nothing handles.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        wanted = _read(gold)
        if not wanted:
            return None
        given = _read(answer)
        return bool(given) and bool(verify(wanted, given, allow_set_relation_comp=True, timeout_seconds=None))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _read(answer: str) -> list[object]:
    """Parse an answer as LaTeX in a box, with all of math-verify's repairs; or as plain text, for what is no LaTeX."""
    boxed = "\\boxed{" + answer + "}"
    for text, config in (
        (boxed, LatexExtractionConfig(boxed_match_priority=0)),
        (answer, ExprExtractionConfig()),
    ):
        found = [part for part in parse(text, [config], parsing_timeout=None) if not isinstance(part, str)]
        if found:
            return found
    return []


for pair in (
    ("\\frac{1}{2}", "0.5"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("(-\\infty,1)", "x<1"),
    ("x=\\sqrt{2}", "\\sqrt{2}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    ("2\\pi", "\\pi\\cdot 2"),
    ("(x+1)^2", "x^2+2x+1"),
    ("3\\pm\\sqrt{2}", "3+\\sqrt{2}"),
    ("\\sin x", "\\cos x"),
    ("10\\%", "0.1"),
):
    compare(*pair, cpu_seconds=3_600.0)
