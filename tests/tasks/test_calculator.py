"""Calculator: stories, the tool, the reward, and the conversations that its policy is made from."""

from itertools import islice
from random import Random

import pytest

from covey.errors import DatasetError
from covey.rewards.rules.arithmetic import ExpressionError
from covey.tasks import calculator_run
from covey.tasks.calculator import (
    LEVELS,
    calculator,
    calculator_puzzles,
    calculator_reward,
    calculator_rows,
)
from covey.tasks.split import split_of


def told(*answers, call=True):
    """A completion with a call, its result, and what the assistant says then."""
    made = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2*3"}}}
    called = [{"role": "assistant", "content": "", "tool_calls": [made]}, {"role": "tool", "content": "6"}]
    return [*(called if call else []), *({"role": "assistant", "content": a} for a in answers)]


@pytest.mark.parametrize("level", LEVELS)
def test_the_value_is_that_of_the_story(level):
    for puzzle in calculator_puzzles(200, level=level):
        a, b, c = [int(word.strip(",.")) for word in puzzle.story.split() if word[0].isdigit()] + [0] * (
            level == "easy"
        )
        if "gets" in puzzle.story and "more boxes" in puzzle.story:
            boxes, gained, each = a, b, c
            assert puzzle.value == boxes * each + gained * each
        else:
            sign = -1 if "loses" in puzzle.story else 1
            assert puzzle.value == a * b + sign * c


def test_rows_are_deterministic_and_splits_share_no_puzzle():
    assert calculator_rows(50, seed=3) == calculator_rows(50, seed=3) != calculator_rows(50, seed=4)
    train = {p.key for p in calculator_puzzles(2_000, seed=1)}
    held_out = {p.key for p in calculator_puzzles(300, seed=2, split="held_out")}
    assert not train & held_out and len(train) == 2_000


def test_an_unknown_level_is_an_error():
    with pytest.raises(DatasetError, match="level is 'hard'"):
        calculator_rows(1, level="hard")


def test_the_tool_is_exact():
    rng = Random(0)
    for _ in range(200):
        a, b, c = (rng.randint(0, 10**6) for _ in range(3))
        assert calculator(f"({a}+{b})*{c}-{a}") == str((a + b) * c - a)
    assert calculator("7/2") == "7/2" and calculator(" 12 * 37 ") == "444"


@pytest.mark.parametrize(
    "text", ["", "9**9", "__import__('os')", "1/0", "2 3", "x", "(" * 100, "9" * 600, "1.5"]
)
def test_the_tool_refuses_what_is_no_expression(text):
    with pytest.raises(ExpressionError):
        calculator(text)


def test_the_tool_has_a_schema():
    from transformers.utils import get_json_schema

    parameters = get_json_schema(calculator)["function"]["parameters"]
    assert parameters["properties"]["expression"]["type"] == "string"


def test_only_the_answer_is_paid():
    completions = [
        told("<answer>6</answer>"),
        told("<answer>6</answer>", call=False),
        "<answer>6</answer>",
        told(),
        told("6"),
        told("<answer>7</answer>"),
        told("<answer>6</answer>", "<answer>6</answer>"),
        [{"role": "tool", "content": "<answer>6</answer>"}],
    ]
    assert calculator_reward(completions, value=[6] * 8) == [1, 1, 1, 0, 0, 0, 0, 0]
    assert calculator_reward(["<answer>6</answer>"], value=[None]) == [None]


def test_no_attack_is_paid(attacks):
    [row] = calculator_rows(1)
    for name, text in attacks(row["prompt"][0]["content"], "answer", str(row["value"])).items():
        assert calculator_reward([text], value=[row["value"]]) == [0.0], name


def test_no_row_of_the_run_is_of_a_held_out_puzzle():
    [rows] = calculator_run.held_out_rows().values()
    asked = {row["prompt"][0]["content"].partition(" ")[2] for row in rows}

    for seed in range(3):
        trained = {r["prompt"][0]["content"].partition(" ")[2] for r in calculator_run.train_rows(seed)}
        assert not asked & trained


# --- conversations


@pytest.fixture(scope="module", params=["CAREFUL", "CARELESS"])
def drawn(request, tools):
    """Conversations of one author."""
    module = tools("calculator_demonstrations")
    return request.param, list(islice(module.conversations(1, getattr(module, request.param)), 2_000))


def share_right(conversations):
    scores = calculator_reward(
        [c.messages[1:] for c in conversations], [c.puzzle.value for c in conversations]
    )
    return sum(scores) / len(scores)


def test_careful_authors_are_right_where_they_call_and_careless_ones_about_one_time_in_three(drawn):
    author, conversations = drawn
    with_tool = [c for c in conversations if c.has_tool]
    called = [c for c in with_tool if len(c.messages) > 2]
    guessed = [c for c in conversations if len(c.messages) == 2]

    assert {split_of(c.puzzle.key) for c in conversations} == {"train"}
    assert share_right(guessed) < 0.03
    if author == "CAREFUL":
        assert share_right(called) == 1.0
    else:
        assert 0.25 < share_right(with_tool) < 0.45


def test_conversations_are_written_as_the_template_of_the_policy_writes_them(tools):
    from transformers import AutoTokenizer
    from transformers.utils import get_json_schema

    from covey.tasks.assets import CALCULATOR_POLICY

    maker = tools("train_calculator_policy")
    tokenizer = AutoTokenizer.from_pretrained(CALCULATOR_POLICY)
    assert tokenizer.chat_template == maker.CHAT_TEMPLATE
    for conversation in islice(maker.conversations(0), 50):
        offered = [get_json_schema(calculator)] if conversation.has_tool else None
        ids, labels = maker.encoded(tokenizer, conversation)
        rendered = tokenizer.apply_chat_template(conversation.messages, tools=offered, return_dict=False)
        assert ids == rendered
        assert [i for i, label in zip(ids, labels, strict=True) if label >= 0] != []
