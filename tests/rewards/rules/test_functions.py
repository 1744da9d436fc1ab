"""The tutorial's functions: its own asserts, and what its versions got wrong."""

import pytest

from covey.rewards import code_reward_func, format_reward_func, math_reward_func, simple_math_reward_func
from tests.clocks import own_seconds

RIGHT = """Let's use the numbers 4, 8, 2, and 1 to get 15.
We can try: 8 * 2 - 1 = 15... </think>
<answer> 8 * 2 - 1 </answer>"""
SHORT = " ... </think>\n<answer> 8 * 2 - 1 </answer>"
NO_TAGS = "Using 4, 8, 2, 1, make 15: 8 * 2 - 1 = 15"
WRONG_ORDER = "<answer> 8 + 4 + 2 + 1 </answer>\n<think> This should equal 15 </think>"
WRONG_RESULT = " ... </think>\n<answer> 8 + 4 - 2 </answer>"
WRONG_NUMBERS = " ... </think>\n<answer> 10 * 2 - 5 </answer>"
COMPLETIONS = [RIGHT, SHORT, NO_TAGS, WRONG_ORDER, WRONG_RESULT, WRONG_NUMBERS]


def test_the_documents_own_asserts():
    target, nums = ["15"] * 6, [[4, 8, 2, 1]] * 6
    assert format_reward_func(COMPLETIONS, target) == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert simple_math_reward_func(COMPLETIONS, target, nums=nums) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_equivalence_reads_the_answer_block():
    """It knows nothing of the numbers that may be used: 10 * 2 - 5 is 15."""
    assert math_reward_func(COMPLETIONS, target=["15"] * 6) == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "completion, verdict",
    [
        ("r</think>\n<answer>x</answer>", 1.0),
        ("<think>r</think>\n<answer>x</answer>", 1.0),
        ("r</think>\r\n<answer>x</answer>", 1.0),
        ("r</think>\n<answer>x</answer>\n", 1.0),
        ("r</think>\n\n<answer>x</answer>", 0.0),
        ("r</think><answer>x</answer>", 0.0),
        ("r</think>\n<answer></answer>", 0.0),
        ("r</think>\n<answer> \n </answer>", 0.0),
        ("</think>\n<answer>x</answer>", 0.0),
        ("r</think>\n<answer>x</answer><answer>x</answer>", 0.0),
        ("r</think>\n<answer><answer>x</answer></answer>", 0.0),
        ("r</think>\n<answer>x</answer> and more", 0.0),
        ("", 0.0),
    ],
)
def test_format(completion, verdict):
    assert format_reward_func([completion]) == [verdict]


@pytest.mark.parametrize(
    "code, verdict",
    [
        ("x = 1", 1.0),
        ("def f(a):\n    return a + 1", 1.0),
        ("import math\nprint(math.pi)", 1.0),
        ("# open the file\nx = 'os'", 1.0),
        ("def f(:", 0.3),
        ("import os", 0.0),
        ("import os (", 0.0),
        ("__import__('o' + 's').system('true')", 0.0),
        ("().__class__.__base__.__subclasses__()", 0.0),
        ("eval('1')", 0.0),
        ("f = open", 0.0),
        ("from subprocess import run", 0.0),
        ("from . import x", 0.0),
        ("", 0.0),
        ("  \n", 0.0),
        ("pass", 0.0),
        ("# nothing", 0.0),
        ("'text'", 0.0),
        ("x = 1\0", 0.3),
        ("(" * 300, 0.3),
        ("-" * 15_000 + "1", 0.3),
        ("x = 1\n" * 10_000, 0.3),
    ],
)
def test_code(code, verdict):
    assert code_reward_func([f"Here:\n<code>{code}</code>"]) == [verdict]


def test_code_needs_exactly_one_block():
    assert (
        code_reward_func(["x = 1", "<code>x = 1", "<code>x = 1</code>" * 2, "</code>x = 1<code>"])
        == [0.0] * 4
    )


def test_a_chat_is_read_like_text():
    chats = [[{"role": "assistant", "content": c}] for c in COMPLETIONS]
    assert format_reward_func(chats) == format_reward_func(COMPLETIONS)
    assert math_reward_func(chats, target=["15"] * 6) == math_reward_func(COMPLETIONS, target=["15"] * 6)
    assert code_reward_func([[{"role": "assistant", "content": "<code>x = 1</code>"}]]) == [1.0]


@pytest.mark.parametrize(
    "unit", ["<code>", "<think>", "<answer>", "</answer>", "(", "<", "\\boxed{", "x = 1\n"]
)
def test_hostile_text_ends_at_once(unit):
    text = unit * 50_000
    with own_seconds(2.0):
        format_reward_func([text])
        code_reward_func([text, f"<code>{text}</code>"])
        math_reward_func([text, f"</think><answer>{text}</answer>"], target=["1", "1"])
        simple_math_reward_func([text], ["1"], [[1]])


def test_the_power_bomb_is_not_computed():
    bomb = "r</think>\n<answer>9**9**9</answer>"
    assert simple_math_reward_func([bomb], ["9"], [[9]]) == [0.0]


OPENED = "Let me solve this step by step.\n<think>"


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("1+2=3</think>\n<answer>3</answer>", 1.0),
        ("<think>1+2=3</think>\n<answer>3</answer>", 1.0),
        ("1+2=3</think>\nSo: <answer>3</answer>", 0.0),
        ("</think>\n<answer>3</answer>", 0.0),
    ],
)
def test_the_message_that_a_chat_prompt_begins_is_gone_on_with(said, reward):
    prompt = [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": OPENED}]
    completion = [{"role": "assistant", "content": OPENED + said}]
    assert format_reward_func([completion], target=["3"], prompts=[prompt]) == [reward]
    assert format_reward_func([completion], target=["3"]) == [0.0]
