"""The house: what may stand where, what may know what, and no name for two things."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "covey"
FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if "assets" not in p.parts]
TORCH_FREE = ["rewards", "tasks", "score", "runs", "types", "metrics", "errors"]
HEAVY = {"torch", "transformers", "accelerate", "peft", "datasets"}


def repeated(named):
    """Names with more than one owner, each with its owners."""
    found = defaultdict(list)
    for name, owner in named:
        found[name].append(str(owner.relative_to(ROOT)))
    return {name: owners for name, owners in found.items() if len(owners) > 1}


def test_the_root_holds_at_most_four_nouns():
    loose = {p.name for p in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert loose == {"types.py", "metrics.py", "plan.py", "errors.py"}


def test_a_loose_file_serves_at_least_three_folders():
    for name in ("types", "metrics", "plan", "errors"):
        word = re.compile(rf"\bcovey\.{name}\b")
        users = {p.relative_to(PACKAGE).parts[0] for p in FILES if word.search(p.read_text())} - {
            f"{name}.py"
        }
        assert len(users) >= 3, (name, users)


def test_no_class_name_stands_for_two_things():
    classes = (
        (n.name, p) for p in FILES for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.ClassDef)
    )
    assert repeated(classes) == {}


def test_no_file_name_stands_twice_in_the_first_two_levels():
    near = [p for p in FILES if len(p.relative_to(PACKAGE).parts) <= 2 and p.name != "__init__.py"]
    assert repeated((p.name, p) for p in near) == {}


def test_every_folder_says_what_it_is_for():
    silent = [p for p in FILES if p.name == "__init__.py" and not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []


def test_a_file_of_the_trainer_touches_the_trainer_or_joins_two_steps():
    """Otherwise it has a room elsewhere: `trainer/` must not become the drawer for everything."""
    touches = re.compile(r"transformers|GRPOConfig|GRPOTrainer|torch\.distributed|covey\.trainer")
    strangers = []
    for path in (PACKAGE / "trainer").glob("*.py"):
        text = path.read_text()
        steps = set(re.findall(r"covey\.(sample|rewards|score|update|runs)\b", text))
        is_alias = len(text.splitlines()) <= 10  # TRL's module names, each one import
        if not touches.search(text) and len(steps) < 2 and not is_alias:
            strangers.append(path.name)
    assert strangers == []


LOADING = """
try:
    import {0}
except ImportError as error:  # a package of an extra; one of ours is no reason
    assert not error.name.startswith("covey"), error
print("{0}", *sys.modules)
"""


@pytest.mark.parametrize("name", TORCH_FREE)
def test_imports_without_torch(name):
    """Every module, for a folder loads little of itself."""
    folder = PACKAGE / name
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for p in files
        if not {"neural", "inside"} & set(p.parts) and not p.name.startswith("test_")
    ]
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    script += "".join(LOADING.format(module) for module in modules)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {line.split()[0]: sorted(HEAVY & set(line.split())) for line in done.stdout.splitlines()}
    assert {module: found for module, found in heavy.items() if found} == {}


def test_words_of_another_dialect_are_gone():
    """A docstring begins with the verb or the noun that one greps for."""
    openings = ("What ", "Those ", "Where ", "Which ", "How ", "Whatever ")
    nodes = ((p, n) for p in FILES for n in ast.walk(ast.parse(p.read_text())))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    found = [
        f"{p.relative_to(ROOT)}: {text.splitlines()[0]}"
        for p, n in nodes
        if isinstance(n, kinds) and (text := ast.get_docstring(n) or "").startswith(openings)
    ]
    assert found == []
