"""Stop strings: texts that end a completion.

Text is looked at on the host, every few tokens; tokens that were sampled after the one that completed a stop string are
dropped, so it does not matter how often one looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Token ids → text, without end and padding tokens."""

INTERVAL = 8
"""Tokens between two looks."""


class StopStrings:
    """Finds where completions end by a stop string, and remembers how far it has looked.

    Args:
        stops: the texts.
        decode: token ids → text.
    """

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        self.stops, self.decode = stops, decode
        # A token adds at least one byte, so this many tokens hold the whole string and the start of the next token.
        self.reach = max((len(stop.encode()) for stop in stops), default=0) + 1
        self.looked: dict[int, int] = {}
        """Tokens of each row that were looked at."""
        self.starts: dict[int, int] = {}
        """Where the present turn of a row begins; what stands before it was not drawn, or has been answered."""
        self.stopped: set[int] = set()
        """Rows that a stop string has ended."""

    def end(self, row: int, ids: Sequence[int]) -> int | None:
        """Return the number of tokens with which a stop string is complete in this row; None: it is not.

        Args:
            ids: all tokens of the completion so far.
        """
        seen, start = self.looked.get(row, 0), self.starts.get(row, 0)
        if len(ids) <= seen:
            return None
        self.looked[row] = len(ids)
        if not self.stops or not self._occurs(ids[max(start, seen + 1 - self.reach) :]):
            return None
        for end in range(seen + 1, len(ids) + 1):
            if self._occurs(ids[max(start, end - self.reach) : end]):
                self.stopped.add(row)
                return end
        return None

    def start_turn(self, row: int, start: int) -> None:
        """Look only at what follows `start` from now on."""
        self.looked[row] = self.starts[row] = start
        self.stopped.discard(row)

    def _occurs(self, ids: Sequence[int]) -> bool:
        text = self.decode(ids)
        return any(stop in text for stop in self.stops)
