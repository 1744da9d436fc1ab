"""What a run leaves behind, and how one looks at it. Needs no torch.

import covey.runs
run = covey.runs.open("quickstart-run")
"""

from covey.runs.record.reader import Run
from covey.runs.record.reader import open_run as open
from covey.runs.record.writer import RunWriter

__all__ = ["Run", "RunWriter", "open"]
