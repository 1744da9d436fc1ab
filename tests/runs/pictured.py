"""Scored groups whose prompts show pictures, read from rows as the trainer reads them, without a policy."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from covey.types import Completion, Group, Prompt, Score, ScoredGroup
from covey.vision.blocks import filled
from covey.vision.pictures import PictureLimits, picture_of
from covey.vision.row_pictures import pictures_of, references
from tests.runs.synthetic import with_advantages

EXIF_WORDS = b"made by a camera at home"
"""What the head of a photo says."""


def painting(seed: int = 0, size: tuple[int, int] = (400, 300)) -> Image.Image:
    """A picture with few colours, as drawn ones have."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST)


def photo(seed: int = 0, size: tuple[int, int] = (400, 300)) -> bytes:
    """A JPEG with EXIF, a place and a comment."""
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x010E] = EXIF_WORDS.decode()
    exif.get_ifd(0x8825)[1] = "N"
    painting(seed, size).save(out, "JPEG", exif=exif, comment=EXIF_WORDS)
    return out.getvalue()


def asked(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts) if parts else "What is it?"}]


def pictured(row: Mapping[str, Any], number: int = 0, root: Path | None = None, size: int = 3) -> ScoredGroup:
    """A group of completions of a row, whose pictures are opened as the trainer opens them."""
    shown, given = pictures_of(row, row["prompt"], number, PictureLimits(root=root), picture_of)
    pictures = tuple(picture for _, picture in given)
    columns = references(row, number, {(g.column, g.index): picture for g, picture in given})
    content = columns.pop("prompt") if isinstance(shown, str) else filled(shown, pictures)
    columns.pop("prompt", None)
    return answered(Prompt(content, (5, 6, 7), columns, number, pictures=pictures), size)


def answered(prompt: Prompt, size: int = 3) -> ScoredGroup:
    texts = [f"a disc {i}" for i in range(size)]
    group = Group(prompt, tuple(Completion((8, 9), (-0.5, -0.5), text, "stop") for text in texts))
    return with_advantages(group, {"accuracy": [Score(float(i)) for i in range(size)]}, {"accuracy": 1.0})


def files_below(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
