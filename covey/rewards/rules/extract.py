"""Places of a completion where its answer may stand.

Only what follows the reasoning counts. Each source gives one answer or none; the first source that gives one decides.

    answer   the content of the only `<answer>` block
    boxed    the last balanced `\\boxed{…}`
    hash     what follows `####` in the last line that has it, as in GSM8K
    phrase   what follows the last "answer is" or "answer:", up to the end of the line
    number   the last number in the text
    whole    the whole text
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from covey.rewards.rules.blocks import only_block
from covey.rewards.text import last_text_of, text_of
from covey.types import PromptContent

Source = Literal["answer", "boxed", "hash", "phrase", "number", "whole"]

MAX_REPEATS = 3
"""A box that is written more often than this is a chant, not an answer."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")
_PHRASE = re.compile(r"answer(?:\s{1,4}is\s{0,4}:?|\s{0,4}:)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"-?[0-9][0-9,]{0,400}(?:\.[0-9]{1,400})?(?:/[0-9]{1,400})?", re.ASCII)


def texts_without_echo(
    completions: Sequence[PromptContent], prompts: Sequence[PromptContent] | None
) -> list[str]:
    """Return the text of each completion; "" where it is its prompt, or the prompt's last message, once more."""
    texts = [text_of(completion) for completion in completions]
    if prompts is None:
        return texts
    return [
        "" if text.strip() in (last_text_of(prompt).strip(), text_of(prompt).strip()) else text
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def extract(text: str, sources: Sequence[Source] = ("answer", "boxed")) -> str | None:
    """Return the answer that a text gives, whitespace around it removed; None where there is none."""
    after = after_reasoning(text)
    if after is None:
        return None
    for source in sources:
        found = _READERS[source](after)
        if found is not None and found.strip():
            return found.strip()
    return None


def after_reasoning(text: str) -> str | None:
    """Return the text after `</think>`, or the whole text without one; None where reasoning is open or was closed twice."""
    after = text.rpartition("</think>")[2]
    return None if "<think>" in after or text.count("</think>") > 1 else after


def last_boxed(text: str) -> str | None:
    """Return the content of the last `\\boxed{…}` whose braces balance, in one pass."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    close = _closing_braces(text, starts[0])
    for start in reversed(starts):
        end = close.get(start - 1)
        if end is not None:
            content = text[start:end]
            return None if text.count("boxed{" + content + "}") > MAX_REPEATS else content
    return None


def _closing_braces(text: str, start: int) -> dict[int, int]:
    """Return the place of the closing brace for each opening one from `start` - 1 on."""
    closing: dict[int, int] = {}
    open_at: list[int] = []
    place = start - 1
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 1  # an escaped brace is a character
        elif character == "{":
            open_at.append(place)
        elif character == "}" and open_at:
            closing[open_at.pop()] = place
        place += 1
    return closing


def _after_hash(text: str) -> str | None:
    before, mark, after = text.rpartition("####")
    if not mark or before.count("####") >= MAX_REPEATS:
        return None
    return after.strip().partition("\n")[0]


def _after_phrase(text: str) -> str | None:
    ends = [match.end() for match in _PHRASE.finditer(text)]
    if not ends or len(ends) > MAX_REPEATS:
        return None
    return text[ends[-1] :].strip().partition("\n")[0].strip(" *_").removesuffix(".").strip(" *_")


def _last_number(text: str) -> str | None:
    found = [match[0] for match in _LAST_NUMBER.finditer(text)]
    if not found or (len(found) > MAX_REPEATS and len(set(found)) == 1):
        return None
    return found[-1].rstrip(",")


_READERS: dict[str, Callable[[str], str | None]] = {
    "answer": lambda text: only_block(text, "answer"),
    "boxed": last_boxed,
    "hash": _after_hash,
    "phrase": _after_phrase,
    "number": _last_number,
    "whole": lambda text: text,
}


def check_sources(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return the sources as a tuple.

    Raises:
        ValueError: a name that is no source.
    """
    listed: tuple[Source, ...] = (sources,) if isinstance(sources, str) else tuple(sources)  # type: ignore[assignment]
    unknown = [source for source in listed if source not in _READERS]
    if unknown or not listed:
        raise ValueError(f"sources={sources!r}: give one or more of {', '.join(get_args(Source))}.")
    return listed
