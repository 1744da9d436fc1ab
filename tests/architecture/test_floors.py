"""Versions: the floors that pyproject promises are those that `make test-lowest` installs, and what CI uses is above them."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import covey

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    found = (re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines)
    return {m[1].lower().replace("_", "-"): m[2] for m in found if m}


def floors():
    return {
        r.name.lower(): spec.version
        for r in map(Requirement, PROJECT["dependencies"])
        for spec in r.specifier
        if spec.operator == ">="
    }


def test_every_floor_is_the_version_that_is_tested():
    lowest = pins("constraints-lowest.txt")
    different = {
        n: (f, lowest.get(n)) for n, f in floors().items() if Version(lowest.get(n, "0")) != Version(f)
    }
    assert different == {}


def test_what_ci_uses_is_above_the_floors():
    used = pins("constraints.txt")
    below = {n: used[n] for n, floor in floors().items() if n in used and Version(used[n]) < Version(floor)}
    assert below == {}


def test_the_version_has_one_source():
    assert "version" not in PROJECT or PROJECT["version"] == covey.__version__
    assert ("version" in PROJECT) != ("version" in PROJECT.get("dynamic", []))
