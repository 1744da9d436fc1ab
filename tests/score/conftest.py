"""Groups to score: one completion per entry, its text and its length are all that rewards see here."""

import pytest

from covey.types import Completion, Group, Prompt


@pytest.fixture
def group():
    def build(*texts, prompt="p", truncated=(), **columns):
        completions = tuple(
            Completion(
                ids=tuple(range(len(text))),
                logprobs=(-1.0,) * len(text),
                text=text,
                finish="length" if number in truncated else "stop",
            )
            for number, text in enumerate(texts)
        )
        return Group(Prompt(prompt, (1, 2), columns=columns), completions)

    return build
