"""Output on terminals, pipes and files whose encoding lacks some characters: those are replaced, and no run ends for them."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def any_encoding() -> Iterator[None]:
    """Let standard output and standard error write `?` for what their encoding lacks; afterwards they are as before.

    Completions hold any character, and so do Covey's own tables; a code page of Windows or the C locale does not.
    """
    streams = (sys.stdout, sys.stderr)
    strict = [s for s in streams if isinstance(s, io.TextIOWrapper) and s.errors == "strict" and not s.closed]
    for stream in strict:
        stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        for stream in strict:
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile, by its reader or by its owner
                stream.reconfigure(errors="strict")


def holds_any_character(stream: object) -> bool:
    """Return whether a stream can write every character; JSON is escaped for one that cannot, so that nothing is lost."""
    return str(getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")
