"""Text: a friendly sentence about two things. No rule here can check it; a reward model scores it.

The reward is the bundled reward model, given to the trainer as a reward model is (see `docs/tasks.md`); `ForTask` keeps
it to the rows of this task.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from covey.tasks.split import Split, draw_distinct

TOPICS = (
    "baker",
    "badger",
    "boat",
    "bridge",
    "candle",
    "castle",
    "clock",
    "cloud",
    "dragon",
    "fox",
    "garden",
    "ghost",
    "goat",
    "harbour",
    "island",
    "kitten",
    "kite",
    "lantern",
    "library",
    "market",
    "meadow",
    "miller",
    "moon",
    "mountain",
    "nurse",
    "owl",
    "pirate",
    "poet",
    "rabbit",
    "river",
    "robin",
    "sailor",
    "snail",
    "teacher",
    "tower",
    "train",
    "violin",
    "wagon",
    "whale",
    "wizard",
)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """What the sentence is to be about."""

    topics: tuple[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        """The order of the topics makes no other prompt."""
        return tuple(sorted(self.topics))

    def row(self) -> dict[str, Any]:
        """The prompt as a row of a dataset."""
        first, second = self.topics
        content = (
            f"Write a friendly sentence about {_article(first)} {first} and {_article(second)} {second}."
        )
        return {"prompt": [{"role": "user", "content": content}], "task": "text", "topics": list(self.topics)}


def text_prompts(count: int, *, seed: int = 0, split: Split = "train") -> list[TextPrompt]:
    """`count` different pairs of topics of one split.

    Raises:
        DatasetError: an unknown split, or more pairs than there are.
    """
    return draw_distinct(draw_prompt, count, f"text {seed}", split)


def text_rows(count: int, *, seed: int = 0, split: Split = "train") -> list[dict[str, Any]]:
    """Rows with `prompt`, `task` and `topics`; see `text_prompts`."""
    return [prompt.row() for prompt in text_prompts(count, seed=seed, split=split)]


def draw_prompt(rng: Random) -> TextPrompt:
    """Two different topics."""
    first, second = rng.sample(TOPICS, 2)
    return TextPrompt((first, second))


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
