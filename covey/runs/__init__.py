"""The record of a run, and ways to look at it. Needs no torch.

import covey.runs
run = covey.runs.open("quickstart-run")

Names are loaded on first use: what prints to a terminal needs no tables.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.runs.record.reader import Run
    from covey.runs.record.reader import Run as open
    from covey.runs.record.writer import RunWriter

__all__ = ["Run", "RunWriter", "open"]


def __getattr__(name: str) -> Any:
    if name in ("Run", "open"):
        from covey.runs.record import reader

        return reader.Run
    if name == "RunWriter":
        from covey.runs.record import writer

        return writer.RunWriter
    raise AttributeError(f"module 'covey.runs' has no attribute {name!r}")
