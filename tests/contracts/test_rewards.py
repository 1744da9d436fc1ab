"""One suite that every bundled reward passes: shapes, kinds of prompts, order, company, pickling, hostile text."""

import json
import pickle

import pytest

import covey.rewards as bundled
from covey.rewards.check.attacks import SHAPE_ONLY, attacks
from covey.rewards.contract import Reward

TESTS = json.dumps([{"name": "f", "args": [2], "expected": 4}])
ROW = {
    "target": "4",
    "solution": "4",
    "nums": [1, 3],
    "tests": TESTS,
    "limit": 10,
    "program": '[{"input": "2", "output": "4"}]',
    "asserts": ["assert f(2) == 4"],
}
TEXTS = [
    "<think>\nr\n</think>\n<answer>4</answer>",
    "<think>\nr\n</think>\n<answer>1+3</answer>",
    "r</think> <answer>B</answer>",
    "so \\boxed{4}",
    '{"a": 4}',
    "```python\ndef f(x):\n    return x * x\n```",
    "```python\nprint(int(input()) * 2)\n```",
    "<code>def f(x): return x</code>",
    "",
]
REWARDS = {
    "format_reward_func": bundled.format_reward_func,
    "simple_math_reward_func": bundled.simple_math_reward_func,
    "math_reward_func": bundled.math_reward_func,
    "code_reward_func": bundled.code_reward_func,
    "countdown": bundled.Countdown("all"),
    "think": bundled.ThinkFormat(strict=True),
    "tagged": bundled.Tagged("think", "answer"),
    "boxed": bundled.BoxedFormat(),
    "json": bundled.JsonFormat(),
    "exact": bundled.ExactMatch(),
    "number": bundled.NumberMatch(),
    "same": bundled.SameAnswer(seconds=0.3),
    "choice": bundled.MultipleChoice(),
    "cosine": bundled.CosineLength(bundled.ExactMatch(), 50),
    "overlong": bundled.SoftOverlong(40, 20),
    "budget": bundled.LengthBudget("limit"),
    "repetition": bundled.Repetition(2),
    "accuracy_reward": bundled.accuracy_reward,
    "reasoning_accuracy_reward": bundled.reasoning_accuracy_reward,
    "think_format_reward": bundled.think_format_reward,
    "get_soft_overlong_punishment": bundled.get_soft_overlong_punishment(40, 20),
    "get_cosine_scaled_reward": bundled.get_cosine_scaled_reward(50),
    "get_repetition_penalty_reward": bundled.get_repetition_penalty_reward(2),
    "calls": bundled.CallTests(),
    "stdio": bundled.StdioTests(tests="program"),
    "asserts": bundled.AssertTests(tests="asserts"),
    "mixture": bundled.Mixture(
        bundled.reward(bundled.ExactMatch(), requires="think_format"), bundled.ThinkFormat()
    ),
}


def test_every_reward_is_here():
    homes = ("rules.", "trl_names", "sandbox.rewards")
    names = {name for name, home in bundled._HOMES.items() if home.startswith(homes)}
    kinds = {type(made).__name__ for made in REWARDS.values()}
    assert (
        names - kinds - {getattr(made, "__name__", "") for made in REWARDS.values()} - set(REWARDS) == set()
    )


@pytest.fixture(params=REWARDS)
def function(request):
    return REWARDS[request.param]


def call(function, texts, prompts=None, **changed):
    columns = {name: [value] * len(texts) for name, value in (ROW | changed).items()}
    ids = [list(str(text).encode()) for text in texts]
    reward = Reward(function, "r")
    return reward(
        prompts=prompts or ["Say four."] * len(texts), completions=list(texts), completion_ids=ids, **columns
    )


def same(one, other):
    """Equal, with NaN equal to NaN."""
    return len(one) == len(other) and all(
        a == b or (a != a and b != b) for a, b in zip(one, other, strict=True)
    )


def test_one_number_or_none_per_completion(function):
    for texts in ([], TEXTS[:1], TEXTS):
        scores = call(function, texts)
        assert len(scores) == len(texts)
        assert all(s is None or isinstance(s, int | float) for s in scores)


def test_chats_score_like_texts(function):
    """Lengths in tokens are not compared: ids stand for the text here."""
    chats = [[{"role": "assistant", "content": text}] for text in TEXTS]
    prompts = [[{"role": "user", "content": "Say four."}]] * len(TEXTS)
    columns = {name: [value] * len(TEXTS) for name, value in ROW.items()}
    ids = [list(text.encode()) for text in TEXTS]
    as_chat = Reward(function, "r")(prompts=prompts, completions=chats, completion_ids=ids, **columns)
    assert same(as_chat, call(function, TEXTS))


def test_neither_order_nor_company_matters(function):
    together = call(function, TEXTS)
    assert same(call(function, TEXTS[::-1])[::-1], together)
    assert same([call(function, [text])[0] for text in TEXTS], together)
    assert same(call(function, TEXTS), together), "asked again"


def test_goes_through_pickle(function):
    assert same(call(pickle.loads(pickle.dumps(function)), TEXTS), call(function, TEXTS))


def test_has_a_name(function):
    assert isinstance(function.__name__, str) and function.__name__.isidentifier()


def test_hostile_text_is_scored_and_not_paid_for(function):
    row = {"prompt": "Say four.", "target": "4"}
    # TRL's pattern takes blocks without content.
    excepted = SHAPE_ONLY | ({"tags only"} if function is bundled.think_format_reward else set())
    hostile = {name: text for name, text in attacks(row).items() if name not in excepted}
    scores = call(function, list(hostile.values()), [row["prompt"]] * len(hostile))
    assert not [
        name for name, score in zip(hostile, scores, strict=True) if score is not None and not score <= 0
    ]


@pytest.mark.parametrize("name, column", [(n, c) for n, c in [("exact", "target"), ("number", "target"), ("same", "target"), ("choice", "target"), ("countdown", "nums"), ("countdown", "target"), ("budget", "limit"), ("calls", "tests"), ("stdio", "program"), ("asserts", "asserts"), ("math_reward_func", "target"), ("simple_math_reward_func", "target"), ("cosine", "target")]])  # fmt: skip
def test_rows_without_what_it_needs_are_not_applicable(name, column):
    assert call(REWARDS[name], TEXTS[:2], **{column: None}) == [None, None]
