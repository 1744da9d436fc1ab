"""Splits of puzzles, decided by a hash of the puzzle itself, never by the seed that drew it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from random import Random
from typing import Literal, Protocol, TypeVar

from covey.errors import DatasetError

Split = Literal["train", "held_out"]

HELD_OUT_SHARE = 0.2
"""Share of all puzzles that no training row and no demonstration of the bundled policy may hold."""


class Puzzle(Protocol):
    """A question, and the key by which two of them are the same."""

    @property
    def key(self) -> Hashable: ...


P = TypeVar("P", bound=Puzzle)


def split_of(key: Hashable) -> Split:
    """Return the split of puzzles with this key; the same on every machine and in every Python."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return "held_out" if int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64 else "train"


def draw_distinct(
    draw: Callable[[Random], P], count: int, seed: str, split: Split, patience: int = 10_000
) -> list[P]:
    """Draw `count` different puzzles of one split, in the order in which `seed` draws them.

    Raises:
        DatasetError: an unknown split, or `patience` draws in a row without a new puzzle: there are no more.
    """
    if split not in ("train", "held_out"):
        raise DatasetError(f"split is {split!r}. Expected 'train' or 'held_out'.")
    rng = Random(seed)
    found: dict[Hashable, P] = {}
    in_vain = 0
    while len(found) < count:
        puzzle, in_vain = draw(rng), in_vain + 1
        if split_of(puzzle.key) == split and puzzle.key not in found:
            found[puzzle.key], in_vain = puzzle, 0
        if in_vain == patience:
            raise DatasetError(
                f"Asked for {count} different puzzles of split {split!r}; {patience} draws after the "
                f"{len(found)}th gave no new one. Ask for fewer, or for a harder level with more of them."
            )
    return list(found.values())
