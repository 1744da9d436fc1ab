"""How the code is built, held to the figures that tools/house.py prints."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import house  # noqa: E402


@pytest.fixture(scope="module")
def modules():
    return house.read_package(ROOT / "covey")


@pytest.fixture(scope="module")
def functions(modules):
    return [f for m in modules for f in m.functions]


def test_few_pieces(modules, functions):
    assert 100 * len(functions) / sum(m.code_lines for m in modules) <= 8.0


def test_few_helpers_are_private_and_called_once(modules, functions):
    assert len(house.called_once(modules)) / len(functions) <= 0.15


def test_functions_are_short(functions):
    _, p90, longest = house.quantiles(map(house.length, functions))
    assert p90 <= 20 and longest <= 60


def test_any_is_rare_in_signatures(functions):
    assert sum(map(house.says_any, functions)) / len(functions) <= 0.10


def test_chains_of_imports_are_short(modules):
    chain = house.longest_chain(house.imports(modules))
    assert len(chain) <= 12, " → ".join(chain)


def test_classes_hold_little(modules):
    assert house.attributes(modules)[1] <= 21
