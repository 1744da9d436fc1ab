"""Text: a friendly sentence about two things. No rule here can check it; a reward model scores it.

The reward is the bundled reward model, kept to the rows of this task by `reward(model, tasks="text")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from covey.tasks.split import Split, draw_distinct

_TOPICS = """
    baker badger boat bridge candle castle clock cloud dragon fox garden ghost goat harbour island
    kitten kite lantern library market meadow miller moon mountain nurse owl pirate poet rabbit river
    robin sailor snail teacher tower train violin wagon whale wizard
"""
TOPICS = tuple(_TOPICS.split())


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Two things that the sentence is to be about."""

    topics: tuple[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        """The order of the topics makes no other prompt."""
        return tuple(sorted(self.topics))

    def row(self) -> dict[str, object]:
        """Return the prompt as a row of a dataset."""
        first, second = (f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}" for noun in self.topics)
        content = f"Write a friendly sentence about {first} and {second}."
        return {"prompt": [{"role": "user", "content": content}], "task": "text", "topics": list(self.topics)}


def text_rows(count: int, *, seed: int = 0, split: Split = "train") -> list[dict[str, object]]:
    """Draw `count` rows of one split with `prompt`, `task` and `topics`, each with another pair of topics.

    Raises:
        DatasetError: an unknown split, or more pairs than there are.
    """
    return [prompt.row() for prompt in draw_distinct(draw_prompt, count, f"text {seed}", split)]


def draw_prompt(rng: Random) -> TextPrompt:
    """Draw two different topics."""
    first, second = rng.sample(TOPICS, 2)
    return TextPrompt((first, second))
