"""Saving without progress bars, which would run through the live display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers draws no progress bars inside, and draws them after as it did before."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
