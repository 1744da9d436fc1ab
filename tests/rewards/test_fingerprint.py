"""The lasting cache: a score is another reward's as soon as anything that it hangs on is another; a file is not trusted."""

import functools
import sqlite3
import subprocess
import sys
import threading
import types

import pytest

from covey.errors import CoveyWarning, RewardError
from covey.rewards import Mixture, reward
from covey.rewards.cache import MAKE
from covey.rewards.fingerprint import fingerprint

FORMS = {
    "a closure": "def make(gold):\n def f(completions, **_): return [float(gold in c) for c in completions]\n return f\nf = make(GOLD)",
    "a default": "def f(completions, gold=GOLD, **_): return [float(gold in c) for c in completions]",
    "a keyword default": "def f(completions, *, gold=GOLD, **_): return [float(gold in c) for c in completions]",
    "a constant": "def f(completions, **_): return [float(GOLD in c) for c in completions]".replace("GOLD", "{GOLD}"),
    "a global": "gold = GOLD\ndef f(completions, **_): return [float(gold in c) for c in completions]",
    "a global of a function inside": "gold = GOLD\ndef f(completions, **_):\n def g(c): return float(gold in c)\n return [g(c) for c in completions]",
    "a function of a function": "gold = [GOLD]\ndef g(c): return float(gold[0] in c)\ndef f(completions, **_): return [g(c) for c in completions]",
    "a method": "class R:\n def __init__(self, gold): self.gold = gold\n def f(self, completions, **_): return [float(self.gold in c) for c in completions]\nf = R(GOLD).f",
    "an object": "class R:\n def __init__(self, gold): self.gold = gold\n def __call__(self, completions, **_): return [float(self.gold in c) for c in completions]\nf = R(GOLD)",
    "slots": "class R:\n __slots__ = ('gold',)\n def __call__(self, completions, **_): return [float(self.gold in c) for c in completions]\nf = R()\nf.gold = GOLD",
    "a class's attribute": "class B:\n gold = GOLD\nclass R(B):\n def __call__(self, completions, **_): return [float(self.gold in c) for c in completions]\nf = R()",
    "a partial": "import functools\ndef g(completions, gold, **_): return [float(gold in c) for c in completions]\nf = functools.partial(g, gold=GOLD)",
    "a wrapped function": "import functools\ndef deco(g):\n @functools.wraps(g)\n def w(*a, **k): return g(*a, **k)\n return w\n@deco\ndef f(completions, gold=GOLD, **_): return [float(gold in c) for c in completions]",
    "a decorator that is an object": "import functools\nclass D:\n def __init__(self, g, gold): self.gold = gold; functools.update_wrapper(self, g)\n def __call__(self, completions, **_): return [float(self.gold in c) for c in completions]\ndef g(completions): ...\nf = D(g, GOLD)",
    "a cached helper": "import functools\n@functools.lru_cache\ndef g(c, gold=GOLD): return float(gold in c)\ndef f(completions, **_): return [g(c) for c in completions]",
    "an attribute of a function": "def f(completions, **_): return [float(f.gold in c) for c in completions]\nf.gold = GOLD",
    "a pattern": "import re\npattern = re.compile(GOLD)\ndef f(completions, **_): return [float(bool(pattern.search(c))) for c in completions]",
    "an array": "import numpy as np\ngold = np.array([ord(GOLD)])\ndef f(completions, **_): return [float(ord(c) in gold) for c in completions]",
    "a lambda": "f = lambda completions, **_: [float({GOLD} in c) for c in completions]",
}  # fmt: skip


def made(form, gold):
    names = {"__name__": "recipe_of_a_user"}
    exec(FORMS[form].replace("{GOLD}", repr(gold)).replace("GOLD", repr(gold)), names)
    return reward(names["f"], name="same", pure=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_score_is_kept_for_the_same_reward_and_for_no_other(form, tmp_path):
    scores = [
        Mixture(made(form, gold), cache=tmp_path / "c.sqlite")(prompts=["p"], completions=["a"])
        for gold in ("a", "b", "a")
    ]
    assert scores == [[1.0], [0.0], [1.0]]
    assert fingerprint(made(form, "a")) == fingerprint(made(form, "a")) != None  # noqa: E711
    rows = (
        sqlite3.connect(tmp_path / "c.sqlite").execute("SELECT value FROM scores ORDER BY value").fetchall()
    )
    assert rows == [(0.0,), (1.0,)], "the third call found the first one's score"


def test_what_a_users_module_holds_counts_too():
    names = {"helper": types.ModuleType("helper_of_a_user")}
    exec("def f(completions, **_): return [float(helper.gold in c) for c in completions]", names)
    found = set()
    for names["helper"].gold in ("a", "b"):
        found.add(fingerprint(reward(names["f"], name="same", pure=True)))
    assert len(found) == 2 and None not in found


def test_a_fingerprint_is_the_same_in_another_process():
    code = f"""
import sys; sys.path.insert(0, {str(__file__).rpartition("/")[0]!r})
from test_fingerprint import FORMS, fingerprint, made
from covey.rewards import Countdown, AssertTests, ThinkFormat
print([fingerprint(made(form, "a")).hex() for form in FORMS], end="")
from covey.rewards import reward
print([fingerprint(reward(r, name="r")).hex() for r in (Countdown(), AssertTests(), ThinkFormat())])
"""
    printed = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(printed) == 1 and len(printed.pop()) > 64 * len(FORMS)


def test_what_cannot_be_told_is_kept_in_memory_only_and_said_once(tmp_path):
    lock, calls = threading.Lock(), []

    def f(completions, **_):
        with lock:
            calls.append(1)
            return [1.0 for _ in completions]

    mix = Mixture(reward(f, name="locked", pure=True), cache=tmp_path / "c.sqlite")
    with pytest.warns(CoveyWarning, match="'locked': its scores are not kept") as said:
        for _ in range(3):
            mix(prompts=["p"], completions=["a"])
    assert len(said) == 1 and len(calls) == 1


def foreign(*statements):
    def write(path):
        with sqlite3.connect(path) as file:
            for statement in statements:
                file.execute(statement)
        file.close()

    return write


def half(path):
    with sqlite3.connect(path) as file:
        file.execute(MAKE)
        file.executemany(
            "INSERT INTO scores VALUES (?, 0.5)", [(i.to_bytes(64, "big"),) for i in range(3000)]
        )
    file.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGES = {
    "garbage": lambda path: path.write_bytes(b"\x00\xffgarbage" * 1000),
    "text": lambda path: path.write_text("hello"),
    "half a file": half,
    "other columns": foreign("CREATE TABLE scores (a, b, c)"),
    "a view": foreign("CREATE VIEW scores AS SELECT 1 AS key, 2 AS value"),
    "a constraint": foreign("CREATE TABLE scores (key BLOB PRIMARY KEY, value REAL CHECK (value > 5))"),
}


@functools.cache
def constant():
    return reward(lambda completions, **_: [1.0 for _ in completions], name="one", pure=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_file_is_set_aside_and_kept(damage, tmp_path):
    path = tmp_path / "c.sqlite"
    DAMAGES[damage](path)
    before = path.read_bytes()
    with pytest.warns(CoveyWarning, match="It is now 'c.sqlite.damaged'"):
        for i in range(40):
            assert Mixture(constant(), cache=path)(prompts=["p"], completions=[f"a{i}"]) == [1.0]
    assert (tmp_path / "c.sqlite.damaged").read_bytes() == before
    assert sqlite3.connect(path).execute("SELECT count(*) FROM scores").fetchone()[0] > 0


@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "9e999", "-9e999", "'nan'"])
def test_a_value_that_is_no_score_is_scored_anew(value, tmp_path):
    path = tmp_path / "c.sqlite"
    assert Mixture(constant(), cache=path)(prompts=["p"], completions=["a"]) == [1.0]
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE scores SET value = {value}")
    assert Mixture(constant(), cache=path)(prompts=["p"], completions=["a"]) == [1.0]
    assert sqlite3.connect(path).execute("SELECT value FROM scores").fetchall() == [(1.0,)]


@pytest.mark.parametrize("place", ["a folder", "no folder above"])
def test_a_place_that_cannot_hold_a_file_is_an_error_that_names_it(place, tmp_path):
    path = tmp_path if place == "a folder" else tmp_path / "missing" / "c.sqlite"
    with pytest.raises(RewardError, match="cannot be used"):
        Mixture(constant(), cache=path)(prompts=["p"], completions=["a"])
