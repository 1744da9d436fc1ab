"""Code of a reward's own process: holds its function and calls it."""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING, Any

from covey.rewards.batch import Notes
from covey.rewards.execution import held_function
from covey.rewards.execution.loop import awaited
from covey.rewards.results import listed, number
from covey.types import Picture
from covey.vision.album import Album

if TYPE_CHECKING:
    from PIL.Image import Image


class RecordedNotes(Notes):
    """Notes that also keep each metric as it was logged."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.logged: list[tuple[str, float]] = []

    def log_metric(self, name: str, value: float) -> None:
        self.logged.append((name, number(value)))


_pictures: dict[str, Picture] = {}
"""Those of the last call, by digest."""
_album = Album()
"""Opens those of the present call."""


def shown_picture(digest: str) -> Image:
    """Return a picture of the present call, opened."""
    return _album(_pictures[digest])


def call(arguments: bytes, size: int, callbacks: list[str], new: bytes, shown: list[str]) -> bytes:
    """Call the function, with those callbacks that it asks for; return (result, extras, metrics, error), pickled.

    Args:
        new: pictures that this process does not have yet, by digest, pickled.
        shown: digests of all pictures of this call. Where one is missing, nothing is called, and nothing comes back.
    """
    global _album, _pictures
    known = _pictures | pickle.loads(new)
    if any(digest not in known for digest in shown):
        return b""
    _pictures, _album = {digest: known[digest] for digest in shown}, Album()
    notes = RecordedNotes(size)
    outcome: tuple[object, dict[str, list[Any]], list[tuple[str, float]], BaseException | None]
    try:
        keywords = pickle.loads(arguments)
        keywords |= {name: getattr(notes, name) for name in callbacks}
        result = awaited(held_function.held(**keywords))
        values = listed(result, size)
        result = result if values is None else values
        outcome = (result, notes.extras, notes.logged, None)
    except (Exception, SystemExit) as error:
        error.add_note("In the reward's own process:\n" + traceback.format_exc())
        outcome = (None, {}, [], error)
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        reported = outcome[3] or error
        text = "".join(traceback.format_exception_only(type(reported), reported)).strip()
        return pickle.dumps((None, {}, [], RuntimeError(text)))
