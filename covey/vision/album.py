"""Pictures as rewards and environments get them: PIL images, opened once for all completions of a batch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from covey.types import Picture

if TYPE_CHECKING:
    from PIL.Image import Image


class Album:
    """Opens pictures: each digest once, whoever asks, from whichever thread."""

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}
        self._lock = threading.Lock()

    def __call__(self, picture: Picture) -> Image:
        """Return the pixels of a picture, upright and in RGB, the same object every time; raise a PictureError where it has changed."""
        from covey.vision.pictures import reopened  # rewards of text need nothing that decodes

        with self._lock:
            if picture.digest not in self._images:
                self._images[picture.digest] = reopened(picture)
            return self._images[picture.digest]
