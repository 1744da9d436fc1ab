"""reasoning-gym's answers are scored in the sandbox, and cannot do there what they can do to reasoning-gym."""

import importlib.util
import json

import pytest

from covey.errors import DatasetError
from covey.rewards.reasoning_gym import ReasoningGym, is_allowed
from covey.tasks.reasoning_gym_rows import reasoning_gym_rows

installed = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym"
)


@pytest.mark.parametrize(
    "family, answer, allowed",
    [
        ("countdown", "94*4 - 61 - 6", True),
        ("countdown", "__import__('os').system('true')", False),
        ("countdown", "x", False),
        ("simple_integration", "x**2/2 + 3*sin(x) + C", True),
        ("simple_integration", "exp(2*x)*log(x) + 0.5*x + C", True),
        ("simple_integration", "exec(chr(112))", False),
        ("simple_integration", "x.func", False),
        ("simple_integration", "sin(x).doit()", False),
        ("simple_integration", "x__y", False),
        ("simple_integration", "().__class__", False),
        ("polynomial_multiplication", "x**2 + 2*x*y + 1.5", True),
        ("string_insertion", "['A', 'B']", True),
        ("string_insertion", "print(1)", False),
        ("n_queens", "Q _ _\n_ Q _", True),
        ("game_of_life_halting", "True", True),
        ("game_of_life_halting", "garbage", False),
        ("leg_counting", "anything (at) all.", True),
        ("leg_counting", "x" * 20_000, False),
    ],
)
def test_what_an_answer_may_be_made_of(family, answer, allowed):
    assert is_allowed(family, answer) is allowed


def test_formulas_are_matched_in_linear_time():
    for text in ("sin" * 3000, "x" * 10_000, "((((" * 2500, "x+" * 5000, "sinx" * 2500):
        is_allowed("simple_integration", text)


@installed
def test_rows():
    rows = reasoning_gym_rows({"leg_counting": 3.0, "basic_arithmetic": 1.0}, 20, seed=1)
    assert rows == reasoning_gym_rows({"leg_counting": 3.0, "basic_arithmetic": 1.0}, 20, seed=1)
    assert {row["task"] for row in rows} == {"rg/leg_counting", "rg/basic_arithmetic"}
    assert json.loads(rows[0]["rg_entry"])["question"] in rows[0]["prompt"][0]["content"]
    with pytest.raises(DatasetError, match="no family 'nothing'"):
        reasoning_gym_rows(["nothing"], 1)


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is not None, reason="reasoning-gym is there")
def test_without_the_package_it_says_what_to_install():
    with pytest.raises(DatasetError, match="pip install"):
        reasoning_gym_rows(["leg_counting"], 1)


@pytest.fixture(scope="module")
def score():
    reward = ReasoningGym()

    def one(family, answer, size=1):
        (row,) = reasoning_gym_rows([family], 1, seed=3)
        if answer is None:
            answer = json.loads(row["rg_entry"])["answer"]
        return reward([f"so <answer>{answer}</answer>"], [family], [row["rg_entry"]])[0]

    yield one
    reward.sandbox.close()


NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


@installed
@pytest.mark.slow
def test_own_answers_of_all_families_score_in_the_sandbox(score):
    from reasoning_gym.factory import DATASETS

    families = sorted(set(DATASETS) - NO_ANSWER - {"composite"})
    assert {family: s for family in families if (s := score(family, None)) != 1.0} == {}
    assert {family: s for family in families if (s := score(family, "no idea")) != 0.0} == {}


@installed
def test_own_answers_of_families_whose_scoring_evaluates_them(score):
    for family in (
        "countdown",
        "simple_integration",
        "intermediate_integration",
        "polynomial_multiplication",
        "spiral_matrix",
    ):
        assert score(family, None) == 1.0, family
        assert score(family, "0") == 0.0, family


@installed
def test_hostile_answers(score):
    for answer in ("__import__('os').system('true')", "9**9**9**9", "(" * 5000, "", "1/0"):
        assert score("countdown", answer) == 0.0
    assert score("intermediate_integration", "x**9**9**9") == 0.0


@installed
def test_rows_without_an_item_are_not_applicable():
    assert ReasoningGym()(["<answer>1</answer>"], [None], [None]) == [None]
