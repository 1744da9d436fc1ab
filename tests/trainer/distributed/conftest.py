"""Ends what stood ready for the tests of several processes."""

import pytest

from tests.trainer.distributed.processes import Pair


@pytest.fixture(scope="session", autouse=True)
def end_of_the_pair():
    yield
    if Pair.standing is not None:
        Pair.standing.end()
