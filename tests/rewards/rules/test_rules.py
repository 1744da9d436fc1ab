"""Formats, answers and lengths: what pays, and what does not."""

import math

import pytest

from covey.errors import RewardError
from covey.rewards import (
    BoxedFormat,
    CosineLength,
    Countdown,
    ExactMatch,
    Failure,
    JsonFormat,
    LengthBudget,
    MultipleChoice,
    NumberMatch,
    Repetition,
    Reward,
    SameAnswer,
    SoftOverlong,
    Tagged,
    ThinkFormat,
)
from covey.rewards.rules.extract import extract, last_boxed
from covey.rewards.rules.numbers import exact_number
from tests.clocks import own_seconds

GOOD = "so</think> <answer>5</answer>"
CORRECT = {  # a completion that each reward pays for, with gold 5 (or B)
    "think_format": (ThinkFormat(), GOOD),
    "tagged": (Tagged("plan", "code"), "<plan>p</plan>\n<code>c</code>"),
    "boxed_format": (BoxedFormat(), "so \\boxed{5}"),
    "json_format": (JsonFormat(), '{"a": 5}'),
    "exact_match": (ExactMatch(), GOOD),
    "number_match": (NumberMatch(), GOOD),
    "same_answer": (SameAnswer(), GOOD),
    "multiple_choice": (MultipleChoice(), "The answer is (B)."),
    "countdown": (Countdown(), "so</think> <answer>2+3</answer>"),
}


def call(reward, completions, prompts=None, gold="5"):
    gold = "B" if isinstance(reward, MultipleChoice) else gold
    columns = {"target": [gold] * len(completions), "nums": [[2, 3]] * len(completions)}
    ids = [[0] * len(c) for c in completions]
    prompts = prompts or ["What?"] * len(completions)
    function = Reward(reward, "r")
    return function(prompts=prompts, completions=completions, completion_ids=ids, **columns)


@pytest.mark.parametrize("name", CORRECT)
def test_pays_for_the_right_completion_as_text_and_as_chat(name):
    reward, completion = CORRECT[name]
    assert call(reward, [completion]) == [1.0]
    assert (
        call(reward, [[{"role": "assistant", "content": completion}]] * 1) == [1.0] if name != "x" else True
    )


@pytest.mark.parametrize("name", CORRECT)
def test_pays_for_nothing_empty_blank_repeated_or_echoed(name):
    reward, completion = CORRECT[name]
    gold = "B" if name == "multiple_choice" else "5"
    attacks = {
        "empty": "",
        "blank": " \n\t ",
        "gold repeated": gold * 100,
        "gold repeated in words": f"{gold} " * 100,
        "boxed gold repeated": f"\\boxed{{{gold}}} " * 100,
        "repeated": f"{completion}\n" * 100,
        "tags only": "<think></think><answer></answer>",
        "empty box": "\\boxed{}",
        "other digits": "so</think> <answer>５</answer>",
        "unclosed": "<think> so <answer>5</answer> \\boxed{5} answer is B",
        "tower": "so</think> <answer>9**9**9**9</answer>",
        "long": "a" * 100_000,
    }
    scores = dict(zip(attacks, call(reward, list(attacks.values())), strict=True))
    if name == "think_format":  # it looks at the shape; what the answer says is another reward's business
        assert scores.pop("other digits") == scores.pop("tower") == 1.0
    assert not {attack: score for attack, score in scores.items() if score != 0.0}
    assert call(reward, [completion], prompts=[completion])[0] in (0.0, 1.0 if name == "countdown" else 0.0)


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize(
    "unit",
    ["\\boxed{", "{", "}", "<answer>", "</think>", "answer is ", "####", "5,", "((", "```", '{"a":', "\\"],
)
def test_hostile_text_ends_at_once(name, unit):
    reward, _ = CORRECT[name]
    text = unit * (100_000 // len(unit))
    with own_seconds(1.5):
        call(reward, [text, f"so</think> <answer>{text}</answer>", text[::-1]])


@pytest.mark.parametrize(
    "text, sources, found",
    [
        ("<answer>1</answer>", ["answer"], "1"),
        ("a <answer> 1 </answer> b", ["answer"], "1"),
        ("<answer>1</answer><answer>2</answer>", ["answer"], None),
        ("<answer>1</answer> no </think> <answer>2</answer>", ["answer"], "2"),
        ("\\boxed{1} and \\boxed{2}", ["boxed"], "2"),
        ("\\boxed{\\frac{1}{2}}", ["boxed"], "\\frac{1}{2}"),
        ("\\boxed{1} and \\boxed{2", ["boxed"], "1"),
        ("\\boxed{a \\} b}", ["boxed"], "a \\} b"),
        ("\\boxed {3}", ["boxed"], "3"),
        ("reason\n#### 18", ["hash"], "18"),
        ("The answer is: **42**.", ["phrase"], "42"),
        ("1 then 2,000", ["number"], "2,000"),
        ("costs -3.5.", ["number"], "-3.5"),
        ("7 7 7 7 7", ["number"], None),
        ("x", ["answer", "whole"], "x"),
        ("<think> \\boxed{1}", ["boxed"], None),
    ],
)
def test_extraction(text, sources, found):
    assert extract(text, sources) == found


def test_last_box_of_many_unclosed_ones_is_found_in_one_pass():
    assert last_boxed("\\boxed{" * 20_000 + "7}" + "}" * 10) is not None


@pytest.mark.parametrize(
    "text, value",
    [
        ("12", 12),
        ("-3", -3),
        ("1,234,567", 1234567),
        ("1,2", None),
        ("12,34", None),
        ("0.5", "1/2"),
        (".5", "1/2"),
        ("5.", 5),
        ("1/2", "1/2"),
        ("1 / 2", "1/2"),
        ("1/0", None),
        ("1.5e3", 1500),
        ("1e9999", None),
        ("−4", -4),
        ("٥", None),
        ("", None),
        (".", None),
        ("9" * 2000, None),
        (7, 7),
        (0.5, "1/2"),
        (True, None),
        (float("inf"), None),
    ],
)
def test_numbers_are_read_exactly(text, value):
    from fractions import Fraction

    assert exact_number(text) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    "gold, answer, verdict",
    [
        ("1/2", "0.5", 1.0),
        ("0.5", "\\frac12", 1.0),
        ("0.5", "$\\dfrac{1}{2}$", 1.0),
        ("1/3", "0.3333", 0.0),
        ("1/3", "0.333333", 0.0),
        ("1000", "1,000", 1.0),
        ("1000", "1{,}000", 1.0),
        ("12", "1,2", 0.0),
        ("3", "1+2", 1.0),
        ("15", "8 \\times 2 - 1", 1.0),
        ("Paris", "paris", 1.0),
        ("Paris", "London", 0.0),
        ("A", "B", 0.0),
        ("A", "\\text{A}", 1.0),
        ("... so 18\n#### 18", "18", 1.0),
        ("... so \\boxed{18}", "18", 1.0),
        (18, "18", 1.0),
        (0.5, "1/2", 1.0),
        ("1e-7", "2e-7", 0.0),
        (10**17, "100000000000000001", 0.0),
        ("", "", None),
        ("  ", "5", None),
        (None, "5", None),
        (True, "True", None),
    ],
)
def test_equivalence_by_exact_comparison(gold, answer, verdict):
    assert SameAnswer(symbolic=False)([f"</think><answer>{answer}</answer>"], target=[gold]) == [verdict]


def test_unreadable_golds_are_counted_and_absent_ones_are_not():
    seen = {}
    golds = ["", "five", "5", None]
    scores = NumberMatch()([GOOD] * 4, log_metric=seen.__setitem__, target=golds)
    assert scores == [None, None, 1.0, None] and seen == {"golds/unreadable_share": 2 / 3}


def test_a_missing_gold_column_is_named():
    with pytest.raises(RewardError, match="'target' or 'answer' or 'solution'; the batch has question"):
        SameAnswer()([GOOD], question=["?"])
    assert Reward(SameAnswer("label"), "r").missing_columns(["target"]) == ["'label'"]
    assert Reward(SameAnswer(), "r").missing_columns(["answer"]) == []


def test_number_tolerance():
    given = ["</think><answer>3.14</answer>"]
    assert NumberMatch()(given, target=["3.14159"]) == [0.0]
    assert NumberMatch(rel=0.001)(given, target=["3.14159"]) == [1.0]
    assert NumberMatch(abs=0.001)(given, target=["-3.14"]) == [0.0]


@pytest.mark.parametrize(
    "answer, letter",
    [
        ("B", "B"),
        ("(B)", "B"),
        ("b.", "B"),
        ("B) because it is", "B"),
        ("Option B", "B"),
        ("**B**", "B"),
        ("\\text{(B)}", "B"),
        ("B: a plan", "B"),
        ("A or B", None),
        ("(A) (B) (C)", None),
        ("Because", None),
        ("BC", None),
        ("F", None),
        ("A, B, C, D", None),
    ],
)
def test_choice(answer, letter):
    score = MultipleChoice("ABCDE")([f"</think><answer>{answer}</answer>"], target=[letter or "A"])
    assert score == [1.0 if letter else 0.0]


def test_choice_golds():
    assert MultipleChoice()(["</think><answer>C</answer>"] * 4, answer=["(C)", 2, 9, "none"]) == [
        1.0,
        1.0,
        None,
        None,
    ]


def test_tagged():
    good = "<plan>p</plan> then <code>c</code>"
    assert Tagged("plan", "code")([good, "<code>c</code><plan>p</plan>", "<plan> </plan><code>c</code>"]) == [
        1,
        0,
        0,
    ]
    assert Tagged("plan", "code", only=True)([good, "<plan>p</plan>\n<code>c</code>"]) == [0.0, 1.0]


def test_soft_overlong_is_dapos_equation_13():
    """L_max 100, L_cache 20: 0 up to 80, (80 - 90) / 20 = -0.5 at 90, -1 from 100 on."""
    ids = [[0] * n for n in (0, 80, 90, 100, 500)]
    assert SoftOverlong(100, 20)(completion_ids=ids) == [0.0, 0.0, -0.5, -1.0, -1.0]


def test_length_budget():
    ids = [[0] * n for n in (0, 10, 15, 20, 99)]
    assert LengthBudget(10)(completion_ids=ids) == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert LengthBudget("limit")(completion_ids=ids[:2], limit=[5, None]) == [0.0, None]
    assert Reward(LengthBudget("limit"), "r").missing_columns(["x"]) == ["limit"]


def test_cosine_length():
    """Ends and middle of the half cosine; beyond the end it does not turn round."""
    given = {"completions": ["</think><answer>5</answer>"] * 4, "target": ["5"] * 4}
    ids = [[0] * n for n in (0, 50, 100, 150)]
    assert CosineLength(SameAnswer(), 100)(**given, completion_ids=ids) == pytest.approx(
        [1.0, 0.75, 0.5, 0.5]
    )
    wrong = CosineLength(SameAnswer(), 100)(**{**given, "target": ["6"] * 4}, completion_ids=ids)
    assert wrong == pytest.approx([-1.0, -0.75, -0.5, -0.5])
    assert CosineLength(SameAnswer(), 100)(completions=["x"], target=[None]) == [None]


def test_cosine_length_keeps_failures_apart():
    def broken(completions):
        return [Failure("down"), None]

    scores = CosineLength(broken, 10)(completions=["a", "b"])
    assert math.isnan(scores[0]) and scores[0].reason == "down" and scores[1] is None


def test_repetition():
    scores = Repetition(2)(["a b c d", "a a a a a", "", "x"])
    assert scores == [0.0, -0.75, 0.0, 0.0]  # 4 bigrams, 1 of them different: (1 - 1/4) × -1
    assert Repetition(1)(["ignored"], completion_ids=[[7, 7]]) == [-0.5]
