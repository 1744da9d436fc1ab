"""Rewards stand alone: no torch, no numpy, no computer algebra comes along until something needs it."""

import subprocess
import sys

import covey.rewards

HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "numpy",
    "sympy",
    "math_verify",
    "asyncio",
    "sqlite3",
    "accelerate",
)


def imported_by(code):
    script = f"import sys\nsys.path[:0] = {sys.path!r}\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    return set(
        subprocess.run(
            [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_the_package_alone():
    assert not imported_by("import covey.rewards") & set(HEAVY)


def test_every_name_without_a_model():
    names = [n for n in covey.rewards.__all__ if n not in ("RewardModel", "load_reward_model")]
    loaded = imported_by(f"import covey.rewards\nfor name in {names!r}: getattr(covey.rewards, name)")
    assert not loaded & {"torch", "transformers", "datasets", "numpy", "sympy", "math_verify", "accelerate"}


def test_scoring_without_a_model():
    code = """
from covey.rewards import Mixture, SameAnswer, ThinkFormat
assert Mixture(SameAnswer(), ThinkFormat())(completions=["r</think> <answer>1/2</answer>"], prompts=["p"], target=["0.5"]) == [2.0]
"""
    assert not imported_by(code) & {"torch", "transformers", "numpy", "sympy"}


def test_names_are_what_they_say():
    for name in covey.rewards.__all__:
        found = getattr(covey.rewards, name)
        assert found.__name__ == name, "no module hides behind a name"
