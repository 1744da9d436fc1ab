"""Discs: a picture of one disc, and two letters that say its colour and the quarter that it lies in.

    a | b
    --+--      A blue disc at the lower left is "bc": colours are r, g, b and y.
    c | d

Each letter is worth half a point. Place, size and shades are drawn anew for each picture, so that a held-out one has never been seen.
Drawing needs Pillow: pip install 'covey[vision]'.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import methodcaller
from random import Random

from covey.errors import ConfigError
from covey.rewards.text import text_of
from covey.tasks.split import Split, draw_distinct
from covey.types import PromptContent

Shade = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

COLOURS: Mapping[str, Shade] = {
    "r": (215, 45, 45),
    "g": (45, 180, 75),
    "b": (55, 85, 215),
    "y": (225, 200, 45),
}
"""Middle of a colour's shades, by its letter."""
QUARTERS: Mapping[str, tuple[int, int]] = {"a": (0, 0), "b": (1, 0), "c": (0, 1), "d": (1, 1)}
"""Steps to the right and down, by a quarter's letter."""
SIDE = 32
"""Pixels of a picture's side."""
RADII = (4, 5, 6)
"""Pixels."""
SHADES, DARKEST, BRIGHTEST = 28, 5, 75
"""How far a disc's shade lies from the middle at most, and the range of the ground's."""

QUESTION = "What colour is the disc, and in which quarter does it lie?"


@dataclass(frozen=True, slots=True)
class DiscPuzzle:
    """A picture of a disc before it is drawn; lengths in pixels from the upper left."""

    colour: str
    quarter: str
    radius: int
    centre: tuple[int, int]
    shade: Shade
    ground: Shade

    @property
    def key(self) -> tuple[object, ...]:
        return astuple(self)

    @property
    def answer(self) -> str:
        return self.colour + self.quarter

    def picture(self) -> bytes:
        """Draw it, and return it as PNG.

        Raises:
            ConfigError: Pillow is missing.
        """
        try:
            from PIL import Image, ImageDraw
        except ImportError as error:
            raise ConfigError(
                "Discs are drawn by the package pillow: pip install 'covey[vision]'."
            ) from error
        image = Image.new("RGB", (SIDE, SIDE), self.ground)
        x, y = self.centre
        corners = (x - self.radius, y - self.radius, x + self.radius - 1, y + self.radius - 1)
        ImageDraw.Draw(image).ellipse(corners, fill=self.shade)
        image.save(encoded := io.BytesIO(), "PNG")
        return encoded.getvalue()


def disc_puzzles(count: int, *, seed: int = 0, split: Split = "train") -> list[DiscPuzzle]:
    """Draw `count` different puzzles of one split.

    Raises:
        DatasetError: an unknown split.
    """
    return draw_distinct(draw_puzzle, count, f"discs {seed}", split)


def disc_rows(count: int, *, seed: int = 0, split: Split = "train") -> list[dict[str, object]]:
    """Draw rows with `prompt`, `image` (PNG), `task` and `answer`; see `disc_puzzles`.

    Raises:
        ConfigError: Pillow is missing.
    """
    return [
        {
            "prompt": [{"role": "user", "content": QUESTION}],
            "image": puzzle.picture(),
            "task": "discs",
            "answer": puzzle.answer,
        }
        for puzzle in disc_puzzles(count, seed=seed, split=split)
    ]


def discs_reward(
    completions: Sequence[PromptContent], answer: Sequence[str | None], **_: object
) -> list[float | None]:
    """Return half a point for each right letter of an answer that is two letters and nothing else, None for rows without one."""
    pairs = zip(map(text_of, completions), answer, strict=True)
    return [
        None if right is None else sum(map(str.__eq__, said, right)) / 2 if len(said) == 2 else 0.0
        for said, right in pairs
    ]


def discs_solved(
    completions: Sequence[PromptContent], answer: Sequence[str | None], **_: object
) -> list[float | None]:
    """Return 1 where both letters are right, 0 otherwise, None for rows without an answer."""
    return [None if share is None else float(share == 1) for share in discs_reward(completions, answer)]


discs_reward.gold_completion = discs_solved.gold_completion = methodcaller("get", "answer")  # type: ignore[attr-defined]


def draw_puzzle(rng: Random) -> DiscPuzzle:
    """Draw a colour and a quarter, and a disc of some size that lies wholly in it, on a dark ground."""
    colour, quarter, radius = rng.choice(list(COLOURS)), rng.choice(list(QUARTERS)), rng.choice(RADII)
    right, down = (step * SIDE // 2 for step in QUARTERS[quarter])
    centre = tuple(corner + rng.randint(radius, SIDE // 2 - radius) for corner in (right, down))
    shade = tuple(middle + rng.randint(-SHADES, SHADES) for middle in COLOURS[colour])
    ground = tuple(rng.randint(DARKEST, BRIGHTEST) for _ in range(3))
    return DiscPuzzle(colour, quarter, radius, centre, shade, ground)  # type: ignore[arg-type]
