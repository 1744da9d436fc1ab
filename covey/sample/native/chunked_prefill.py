"""Cuts prompts into chunks that go through the layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PromptPart:
    """Tokens `start` to `stop` - 1 of a prompt."""

    prompt: int
    start: int
    stop: int


@dataclass(frozen=True)
class AlignedParts:
    """Parts of prompts that start and stop at the same tokens, side by side in a chunk."""

    prompts: list[int]
    first: int
    """First token of the chunk."""
    start: int
    stop: int


def chunks(lengths: Sequence[tuple[int, int]], size: int) -> list[list[PromptPart]]:
    """Cut prompts into chunks of at most `size` tokens; prompts of equal length are side by side.

    Args:
        lengths: number and tokens of each prompt.
    """
    result: list[list[PromptPart]] = [[]]
    room = size
    for prompt, length in sorted(lengths, key=lambda pair: (pair[1], pair[0])):
        start = 0
        while start < length:
            # A prompt is cut only where it does not fit into a chunk of its own.
            if room < min(length - start, size):
                result.append([])
                room = size
            stop = min(length, start + room)
            result[-1].append(PromptPart(prompt, start, stop))
            room -= stop - start
            start = stop
    return [parts for parts in result if parts]


def aligned_parts(parts: Sequence[PromptPart]) -> list[AlignedParts]:
    """Return the parts of a chunk, those of equal extent together."""
    batches: list[AlignedParts] = []
    first = 0
    for part in parts:
        if batches and (batches[-1].start, batches[-1].stop) == (part.start, part.stop):
            batches[-1].prompts.append(part.prompt)
        else:
            batches.append(AlignedParts([part.prompt], first, part.start, part.stop))
        first += part.stop - part.start
    return batches
