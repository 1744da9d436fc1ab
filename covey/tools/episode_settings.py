"""Limits of an episode, and how its calls are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Overflow = Literal["end", "cut"]
"""The effect of a result that leaves no room: the episode ends without it; or it is cut until some is left."""


@dataclass(frozen=True)
class EpisodeSettings:
    """Settings of an episode. The defaults are those of TRL."""

    max_tool_calling_iterations: int | None = None
    """Turns whose calls are answered; None: no limit."""
    max_tool_result: int | None = None
    """Tokens of a result that are kept; None: all."""
    tool_overflow: Overflow = "end"
    tool_timeout: float | None = None
    """Seconds per call of tools that do not run inline; None: no limit."""
    episode_timeout: float | None = None
    """Seconds that the calls of an episode may take together; None: no limit."""
    tool_concurrency: int = 32
    """Calls that run at once in threads and processes, and as coroutines."""
    tool_format: Any = None
    """The name of a format, a `Format`, or `Tags`; None: found by what the chat template writes."""
