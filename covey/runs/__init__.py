"""The record of a run, and ways to look at it. Needs no torch.

import covey.runs
run = covey.runs.open("quickstart-run")
"""

from covey.runs.record.reader import Run
from covey.runs.record.reader import Run as open
from covey.runs.record.writer import RunWriter

__all__ = ["Run", "RunWriter", "open"]
