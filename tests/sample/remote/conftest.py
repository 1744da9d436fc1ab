"""Every fake of a server here serves one tiny policy, unless its test has another."""

import pytest

from tests.tiny import tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=3.0)
