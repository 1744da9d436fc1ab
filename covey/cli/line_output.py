"""The place where a verb writes its lines: a file, or standard output as far as somebody reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from covey.errors import ConfigError


@contextmanager
def line_output(path: str | None) -> Iterator[TextIO]:
    """Lend the file of `--output`, or standard output. A reader that has enough, as in `| head`, ends the block and is no error.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        try:
            yield sys.stdout
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # nor is what Python flushes at its end
        return
    try:
        file = Path(path).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error}") from error
    with file:
        yield file
