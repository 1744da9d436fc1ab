"""The text of a completion is one law: whatever its form, rewards, checks, records and prefill read the same."""

import pytest

from covey.rewards.check.attacks import attacks
from covey.rewards.rules.extract import texts_without_echo
from covey.rewards.text import last_text_of, text_of, without_reasoning
from covey.types import Completion, Group, Prompt, message_text, prefill_of

PARTS = [
    {"type": "text", "text": "4"},
    {"type": "image", "image": "…"},
    {"type": "text", "text": "2"},
    "loose",
]


def answer(content, role="assistant"):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("42", "42"),
        ("", ""),
        ([], ""),
        ([answer("42")], "42"),
        ([answer("4"), answer("2")], "4\n2"),
        ([answer("4"), answer("no", "tool"), answer("2")], "4\n2"),
        ([{"content": "42"}], "42"),
        (answer("42"), "42"),
        ((answer("42"),), "42"),
        ([answer(PARTS)], "42"),
        ([answer(None)], ""),
        ([answer([])], ""),
        ([{"role": "assistant"}], ""),
        ([{"role": "assistant", "tool_calls": [{"name": "f"}]}], ""),
        ([answer(None), "loose", answer("42")], "\n42"),
        (None, ""),
        (3, ""),
    ],
)
def test_the_text_of_every_form(completion, text):
    assert text_of(completion) == text
    if isinstance(completion, str | list):
        assert texts_without_echo([completion], ["Say it."]) == [text]


@pytest.mark.parametrize(
    ("content", "text"), [("Let me see: ", "Let me see: "), (PARTS, "42"), (None, ""), ([], "")]
)
def test_a_prefill_is_the_text_of_the_message_that_began_the_answer(content, text):
    prompt = Prompt([answer("Q", "user"), answer(content)], (1,))
    completion = Completion((1,), (-1.0,), "42", "stop")
    (said,) = Group(prompt, (completion,)).contents()
    assert prefill_of(prompt.content) == text == message_text(answer(content)) == last_text_of(prompt.content)
    assert text_of(said) == text + "42"


def test_a_prompt_that_nobody_began_to_answer_has_no_prefill():
    assert prefill_of("text") == prefill_of([]) == prefill_of([answer("Q", "user")]) == ""


def test_the_end_of_a_prompt():
    assert last_text_of("whole") == "whole" and last_text_of([]) == last_text_of([None]) == ""
    assert last_text_of([answer("S", "system"), answer(PARTS, "user")]) == "42"


def test_an_echo_is_all_that_the_prompt_says():
    chat = [answer("S", "system"), answer(PARTS, "user")]
    assert attacks({"prompt": chat})["echo of the prompt"] == "S\n42"
    assert attacks({"prompt": "Q"})["echo of the prompt"] == "Q"


def test_without_reasoning_every_form_keeps_its_form():
    assert without_reasoning("r</think> 42") == "42" and without_reasoning("42") == "42"
    assert without_reasoning([answer("r</think> 42")]) == [answer("42")]
    assert without_reasoning([answer(PARTS), answer(None)]) == [answer(PARTS), answer(None)]
