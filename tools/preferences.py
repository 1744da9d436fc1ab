"""Pairs of sentences of which one is better: what the bundled reward model is trained on.

Nobody was asked; a hidden score stands in for people. It is used here and nowhere else: the trainer, the policy and the
rest of the package know only the reward model that learned it. A sentence is better when it

- names both topics of the prompt (2 points each),
- uses warm words and no cold ones (1 point for each of its two adjectives, its verb and its ending; -1 if cold),
- is whole: one sentence of the usual length that ends with a full stop (else -3),
- repeats no word of its content (-2 for each repetition).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from demonstrations import (
    COLD,
    COLD_ENDS,
    COLD_VERBS,
    PLAIN,
    PLAIN_ENDS,
    PLAIN_VERBS,
    WARM,
    WARM_ENDS,
    WARM_VERBS,
    sentence,
)

from covey.tasks.friendly_text import TOPICS, TextPrompt, draw_prompt
from covey.tasks.split import Split, split_of

WARM_WORDS = frozenset([*WARM, *WARM_VERBS, *WARM_ENDS])
COLD_WORDS = frozenset([*COLD, *COLD_VERBS, *COLD_ENDS])
CONTENT = (*TOPICS, *WARM, *PLAIN, *COLD, *WARM_VERBS, *PLAIN_VERBS, *COLD_VERBS)
ENDS = (*WARM_ENDS, *PLAIN_ENDS, *COLD_ENDS)
USUAL_WORDS = range(7, 12)


@dataclass(frozen=True, slots=True)
class Preference:
    """Two sentences for one prompt; `chosen` is the better one."""

    prompt: TextPrompt
    chosen: str
    rejected: str


def preferences(seed: int, split: Split = "train") -> Iterator[Preference]:
    """Yield an endless stream of pairs of different quality, for prompts of one split."""
    rng = Random(f"preferences {split} {seed}")
    for _ in count():
        prompt = draw_prompt(rng)
        if split_of(prompt.key) != split:
            continue
        first, second = (_draw_sentence(rng, prompt) for _ in range(2))
        gap = quality(prompt, first) - quality(prompt, second)
        if gap:
            yield Preference(prompt, *((first, second) if gap > 0 else (second, first)))


def quality(prompt: TextPrompt, text: str) -> float:
    """Return the hidden score; higher is better."""
    words = re.findall("[a-z]+", text.lower())
    repeats = sum(n - 1 for word, n in Counter(words).items() if word in CONTENT)
    whole = (
        text.endswith(".")
        and text.count(".") == 1
        and len(words) in USUAL_WORDS
        and _ending(text) is not None
    )
    topics = sum(2 for topic in prompt.topics if topic in words)
    return topics + min(4, _warmth(words, text)) - 2 * repeats - (0 if whole else 3)


def _warmth(words: list[str], text: str) -> int:
    parts = [*words, _ending(text) or ""]
    return sum((part in WARM_WORDS) - (part in COLD_WORDS) for part in parts)


def _ending(text: str) -> str | None:
    return next((end for end in ENDS if text.endswith(f" {end}.")), None)


def _draw_sentence(rng: Random, prompt: TextPrompt) -> str:
    """Return what a careless author writes; one time in three, something broken."""
    text = sentence(rng, prompt.topics)
    return rng.choice(_BREAKS)(rng, text) if rng.random() < 1 / 3 else text


def _cut(rng: Random, text: str) -> str:
    words = text.split()
    return " ".join(words[: rng.randrange(len(words))])


def _shuffle(rng: Random, text: str) -> str:
    words = text.rstrip(".").split()
    rng.shuffle(words)
    return " ".join(words) + "."


def _stutter(rng: Random, text: str) -> str:
    words = text.split()
    at = rng.randrange(len(words) - 1)
    return " ".join([*words[:at], *[words[at]] * rng.randint(2, 6), *words[at + 1 :]])


def _stuff(rng: Random, text: str) -> str:
    """Warm words without a sentence around them."""
    return " ".join(rng.choices([*WARM, *WARM_VERBS], k=rng.randint(3, 14))) + rng.choice(("", "."))


def _twice(rng: Random, text: str) -> str:
    return f"{text} {text}"


def _without_stop(rng: Random, text: str) -> str:
    return text.rstrip(".")


_BREAKS: tuple[Callable[[Random, str], str], ...] = (_cut, _shuffle, _stutter, _stuff, _twice, _without_stop)
