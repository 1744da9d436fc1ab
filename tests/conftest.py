"""Nothing in the tests reaches a hub, and tiny models compute on one thread."""

import os
import signal
import sys
from dataclasses import replace

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from tests.clocks import PATIENCE
from tests.imports_stay import pytest_collection_finish  # noqa: F401

# How long an example takes, or to think of one, depends on what else the machine does. The examples are those of the run before,
# so that a change is told from chance; `pytest --hypothesis-profile=search` looks for others.
LOAD = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("covey", **LOAD, derandomize=True)
settings.register_profile("search", **LOAD)
settings.load_profile("covey")


def pytest_sessionfinish() -> None:
    """End the processes that stand ready for tests of several, whichever folder's test has started them."""
    module = sys.modules.get("tests.trainer.distributed.processes")
    if module is not None and module.Team.standing is not None:
        module.Team.standing.end()


@pytest.fixture(scope="session", autouse=True)
def patient_sandbox():
    """Have honest code not run out of time where others use the machine; busy code ends by its processor time as ever."""
    if sys.platform == "linux":
        from covey.rewards.sandbox.sandbox import shared_sandbox

        shared = shared_sandbox()
        shared.limits = replace(shared.limits, wall_seconds=PATIENCE)
