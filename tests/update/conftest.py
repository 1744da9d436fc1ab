"""Samples, scored groups and micro-batches with numbers that are easy to follow."""

import pytest

from covey.types import Completion, Group, Prompt, ScoredGroup
from covey.update.samples import Sample


@pytest.fixture
def completion():
    def build(length, finish="stop", written=None, start=10, logprob=-1.0):
        ids = tuple(range(start, start + length))
        return Completion(ids, (logprob,) * length, "text", finish, written)

    return build


@pytest.fixture
def sample(completion):
    def build(length, advantage=1.0, group=0, in_loss=True, **kwargs):
        prompt = Prompt("p", (1, 2, 3), row=group, seed_key=(group, 0))
        return Sample(prompt, completion(length, **kwargs), advantage, group, in_loss)

    return build


@pytest.fixture
def scored(completion):
    def build(lengths, advantages, truncated=(), number=0):
        completions = tuple(
            completion(n, "length" if i in truncated else "stop") for i, n in enumerate(lengths)
        )
        prompt = Prompt("p", (1, 2), row=number, seed_key=(number, 0))
        return ScoredGroup(Group(prompt, completions), {}, (0.0,) * len(lengths), tuple(advantages))

    return build
