"""The pictures of a record: each once, under the digest that prompts name it by.

    pictures/<digest>.webp         at most 256 pixels wide and high, for people
    pictures/<digest>.full.webp    as it was, without loss, for rewards that are run again: record_pictures="full"

They are encoded anew from pixels: EXIF, places, comments and whatever else a file said are gone. The same picture gives the same
bytes. Needs Pillow where pictures are written; readers hand on bytes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.runs.record.schema import PICTURES
from covey.types import Picture
from covey.vision.marks import is_digest
from covey.vision.pictures import PictureError, reopened

if TYPE_CHECKING:
    from PIL.Image import Image

    from covey.config.vision_settings import RecordPictures

SIDE = 256
"""Pixels of a thumbnail's longer side at most."""
WIDEST = 16_383
"""Pixels of a side that WebP holds at most."""
QUALITY = 80
WITHOUT_LOSS: Mapping[str, Any] = {"lossless": True, "method": 0}
"""Other methods take thirty times as long, and a tenth off the bytes."""
MOST_BYTES = 2**20
"""Of a thumbnail; what is larger is none."""


def small(image: Image) -> Image:
    """Return an image of at most `SIDE` pixels in width and height; the same where it is no larger."""
    if max(image.size) <= SIDE:
        return image
    from PIL.Image import Resampling

    image = image.copy()
    image.thumbnail((SIDE, SIDE), Resampling.LANCZOS)
    return image


def thumbnail(image: Image) -> bytes:
    """Return a small image as WebP: with loss, or without where that takes less, as it does for what was drawn."""
    image, found = small(image), []
    for loss in ({"quality": QUALITY, "method": 4}, WITHOUT_LOSS):
        out = io.BytesIO()
        image.save(out, "WEBP", **loss)
        found.append(out.getvalue())
    return min(found, key=len)


def picture_path(record: Path, digest: str, is_full: bool = False) -> Path:
    """Return where a record has a picture, or would have it.

    Raises:
        ValueError: that is no digest: it would lead out of the folder.
    """
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is no digest of a picture")
    return record / PICTURES / f"{digest}{'.full' * is_full}.webp"


def read_thumbnail(record: Path, digest: str) -> bytes | None:
    """Return a small picture of a record as WebP; None where it has none, or something else stands there."""
    path = picture_path(record, digest)
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    is_sound = len(data) <= MOST_BYTES and data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    return data if is_sound and int.from_bytes(data[4:8], "little") + 8 == len(data) else None


class PictureFiles:
    """The pictures of a running run. Nothing is made before there is one to write."""

    def __init__(self, record: Path, kind: RecordPictures) -> None:
        self.record, self.kind = record, kind
        self.faults: list[str] = []
        """Why pictures are not here, since the last look."""
        self._known: set[str] = set()
        self._unsynced: list[Path] = []

    def add(self, pictures: Iterable[Picture]) -> None:
        """Write those that are not here yet.

        Raises:
            OSError: the disk takes no more.
        """
        for picture in pictures if self.kind != "none" else ():
            if picture.digest in self._known:
                continue
            self._known.add(picture.digest)
            paths = [picture_path(self.record, picture.digest, full) for full in (False, True)]
            missing = [path for path in paths[: 2 if self.kind == "full" else 1] if not path.exists()]
            if not missing:
                continue
            try:
                image = reopened(picture)
            except PictureError as error:
                self.faults.append(str(error))
                continue
            for path in missing:
                self._write(image, path, is_full=path == paths[1])

    def _write(self, image: Image, path: Path, is_full: bool) -> None:
        """Write beside, and move into place."""
        if is_full and max(image.size) > WIDEST:
            self.faults.append(f"A picture of {image.width} x {image.height} is too wide for WebP.")
            return
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(".tmp")
        if is_full:
            image.save(beside, "WEBP", **WITHOUT_LOSS)
        else:
            beside.write_bytes(thumbnail(image))
        os.replace(beside, path)
        self._unsynced.append(path)

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        while self._unsynced:
            with open(self._unsynced[-1], "r+b") as file:  # Windows flushes only what is open for writing
                os.fsync(file.fileno())
            self._unsynced.pop()
