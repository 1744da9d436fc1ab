"""TRL's reward names: scripts that import them change one word and see the same numbers.

The worked numbers are those of the examples in TRL's own documentation, and of the papers that it names.
"""

import inspect

import pytest

from covey.rewards import (
    Reward,
    accuracy_reward,
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    reasoning_accuracy_reward,
    think_format_reward,
)
from tests.clocks import own_seconds

THIRD = "\\frac{1}{3}"


def chats(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_accuracy_reward():
    completions = chats("My answer is \\boxed{\\frac{1}{3}}", "My answer is \\boxed{\\frac{1}{2}}")
    assert accuracy_reward(completions, [THIRD, THIRD]) == [1.0, 0.0]
    assert accuracy_reward(chats("It is \\boxed{2/6}", "no idea"), [THIRD, "$\\frac13$"]) == [1.0, 0.0]
    assert accuracy_reward(["The answer is $5$.", "\\boxed{5}"], ["So $x = \\boxed{5}$.", "5"]) == [1.0, 1.0]


def test_a_solution_that_cannot_be_read_is_not_applicable_and_counted():
    noted = {}
    scores = accuracy_reward(chats("\\boxed{5}", "\\boxed{5}"), ["?!", "5"], log_metric=noted.__setitem__)
    assert scores == [None, 1.0] and noted == {"golds/unreadable_share": 0.5}
    words = accuracy_reward(chats("Answer is forty two.", "no"), ["Answer is forty two.", "Yes"])
    assert words == [None, None]


def test_reasoning_accuracy_reward():
    completions = chats(
        "<think> Reasoning content </think> The final answer is \\boxed{\\frac{1}{3}}",
        "<think> Reasoning content </think> The final answer is \\boxed{\\frac{1}{2}}",
        "<think> Reasoning content with partial answers \\boxed{\\frac{1}{3}} but no final answer",
        "<think> \\boxed{\\frac{1}{3}} </think> I forgot",
    )
    assert reasoning_accuracy_reward(completions, [THIRD] * 4) == [1.0, 0.0, 0.0, 0.0]
    assert reasoning_accuracy_reward(chats("still thinking", "</think> \\boxed{5}"), ["?!", "?!"]) == [
        0.0,
        None,
    ]


def test_other_delimiters_end_the_reasoning_where_the_last_of_them_stands():
    text = "\\boxed{5}</reason>\\boxed{6}[DONE]\\boxed{7}"
    for delimiters, gold in ((["</reason>"], "7"), (["[DONE]", "</reason>"], "7"), (["</think>"], None)):
        (score,) = reasoning_accuracy_reward([text], [gold or "7"], reasoning_delimiters=delimiters)
        assert score == float(gold is not None)
    assert reasoning_accuracy_reward([text.replace("\\boxed{7}", "")], ["6"], ["[DONE]", "</reason>"]) == [
        0.0
    ]


@pytest.mark.parametrize(
    "text, score",
    [
        ("<think>\nThis is my reasoning.\n</think>\nThis is my answer.", 1.0),
        ("<think>\nThis is my reasoning.\nThis is my answer.", 0.0),
        ("This is my reasoning.\n</think>\nThis is my answer.", 0.0),
        (" <think>a</think>b", 0.0),
        ("<think>a<think>b</think>c", 0.0),
        ("<think>a</think>b<think>", 0.0),
        ("<think></think>", 1.0),
        ("<think>a</think>b</think>", 1.0),
        ("</think><think>", 0.0),
        ("", 0.0),
    ],
)
def test_think_format_reward(text, score):
    assert think_format_reward(chats(text)) == think_format_reward([text]) == [score]


def test_soft_overlong_punishment_is_dapos_equation_13():
    """L_max 100, L_cache 20: 0 up to 80, (80 - 85) / 20 = -0.25 at 85, -0.5 at 90, -1 at 100 and beyond."""
    reward = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert reward([[1] * n for n in (0, 80, 85, 90, 100, 101)]) == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert get_soft_overlong_punishment(100, 0)([[1] * n for n in (100, 101)]) == [0.0, -1.0]
    with pytest.raises(ValueError, match="cache"):
        get_soft_overlong_punishment(100, 101)


def test_cosine_scaled_reward():
    """Half of `max_len`: the middle of each range; at 0 and from `max_len` on its ends."""
    reward = get_cosine_scaled_reward(max_len=100)
    completions = chats("\\boxed{\\frac{1}{3}}", "\\boxed{\\frac{1}{2}}")
    for length, expected in ((0, [1.0, -1.0]), (50, [0.75, -0.75]), (100, [0.5, -0.5]), (300, [0.5, -0.5])):
        assert reward(completions, [THIRD, THIRD], [[1] * length] * 2) == pytest.approx(expected)
    assert reward(completions, ["?!", THIRD], [[1] * 50] * 2) == [None, pytest.approx(-0.75)]


def test_repetition_penalty_reward():
    """Bigrams of 5 5 5 5 5: 4, one of them different: (1 - 1/4) × -1."""
    reward = get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.0)
    assert reward([[1, 2, 3, 4], [5, 5, 5, 5, 5], [5], []]) == [0.0, -0.75, 0.0, 0.0]
    assert reward([]) == []
    for wrong in ({"ngram_size": 0}, {"max_penalty": 0.5}):
        with pytest.raises(ValueError):
            get_repetition_penalty_reward(**wrong)


def test_names_in_metrics_and_required_columns_are_trls():
    made = {
        "soft_overlong_punishment_reward": get_soft_overlong_punishment(100, 20),
        "cosine_scaled_reward": get_cosine_scaled_reward(100),
        "repetition_penalty_reward": get_repetition_penalty_reward(),
    }
    assert all(reward.__name__ == name for name, reward in made.items())
    assert Reward(accuracy_reward, "a").missing_columns(["answer"]) == ["solution"]
    assert Reward(made["cosine_scaled_reward"], "c").missing_columns([]) == ["solution"]
    assert Reward(made["repetition_penalty_reward"], "r").missing_columns([]) == []


RIGHT = [["\\boxed{\\frac{1}{3}}"], [THIRD]]
REASONED = [["<think>a</think> \\boxed{\\frac{1}{3}}"], [THIRD]]


@pytest.mark.parametrize(
    "function, arguments, values, result",
    [
        (accuracy_reward, "completions solution log_extra", [*RIGHT, print], [1.0]),
        (
            reasoning_accuracy_reward,
            "completions solution reasoning_delimiters log_extra",
            [*REASONED, ["</think>"], print],
            [1.0],
        ),
        (think_format_reward, "completions", [["<think>a</think>b"]], [1.0]),
        (get_soft_overlong_punishment, "max_completion_len soft_punish_cache", [100, 20], None),
        (get_soft_overlong_punishment(100, 20), "completion_ids", [[[1] * 90]], [-0.5]),
        (
            get_cosine_scaled_reward,
            "max_len min_value_wrong max_value_wrong min_value_correct max_value_correct",
            [100, -1.0, -0.5, 0.5, 1.0],
            None,
        ),
        (get_cosine_scaled_reward(100), "completions solution completion_ids", [*RIGHT, [[1] * 50]], [0.75]),
        (get_repetition_penalty_reward, "ngram_size max_penalty", [2, -1.0], None),
        (get_repetition_penalty_reward(2), "completion_ids", [[[5] * 5]], [-0.75]),
    ],
)
def test_trls_arguments_work_by_position_and_by_name(function, arguments, values, result):
    """As `trl.rewards` documents them; a trainer gives further columns by name."""
    names = arguments.split()
    parameters = list(inspect.signature(function).parameters.values())
    assert [p.name for p in parameters[: len(names)]] == names
    by_name = dict(zip(names, values, strict=True))
    if result is None:
        made = function(*values), function(**by_name)
        assert made[0].__name__ == made[1].__name__ and callable(made[0])
    else:
        assert function(*values) == pytest.approx(result)
        assert function(**by_name, prompts=["What is 1/3?"], trainer_state=None) == pytest.approx(result)


def test_hostile_text_takes_linear_time():
    with own_seconds(1.0):
        think_format_reward(["<think>" * 100_000, "<think>" + "</think>" * 100_000])
        reasoning_accuracy_reward(["</think>" * 100_000], ["5"])
