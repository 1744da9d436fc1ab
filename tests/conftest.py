"""Nothing in the tests reaches a hub, and tiny models compute on one thread."""

import os
import signal
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import settings

from tests.imports_stay import pytest_collection_finish  # noqa: F401

# How long an example takes depends on what else the machine does.
settings.register_profile("covey", deadline=None)
settings.load_profile("covey")


def pytest_sessionfinish() -> None:
    """End the processes that stand ready for tests of several, whichever folder's test has started them."""
    module = sys.modules.get("tests.trainer.distributed.processes")
    if module is not None and module.Team.standing is not None:
        module.Team.standing.end()
