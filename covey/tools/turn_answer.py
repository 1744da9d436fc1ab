"""Answer to a turn whose calls are under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.sample.turns import Answer
from covey.tools.result_text import error_text

if TYPE_CHECKING:
    from covey.tools.dialogue import Dialogue
    from covey.tools.formats.parsed import Parsed
    from covey.tools.planned_call import PlannedCall


@dataclass
class TurnState:
    """A turn whose calls are to be answered."""

    ids: tuple[int, ...]
    room: int
    ended_by: int | None
    parsed: Parsed
    calls: list[PlannedCall]


class TurnAnswer:
    """The answer to a turn with calls: stand-alone ones run side by side, those of an environment one after the other."""

    def __init__(self, dialogue: Dialogue, state: TurnState) -> None:
        self._dialogue, self._state = dialogue, state
        runnable = [call for call in state.calls if call.outcome is None]
        own = [call for call in runnable if call.tool is not None and call.tool.is_method]
        self._chains = [[call] for call in runnable if call not in own] + ([own] if own else [])
        self._chains.sort(key=lambda chain: chain[0].number)
        for call in state.calls:
            if call.outcome is not None:
                call.text = error_text(call.outcome.message or "")
        self._advance(waits=False)

    def ready(self) -> bool:
        self._advance(waits=False)
        return not any(self._chains)

    def wait(self) -> Answer:
        self._advance(waits=True)
        return self._dialogue.settle(self._state)

    def _advance(self, waits: bool) -> None:
        """Take in the calls that are over, and start those that stood behind them."""
        for chain in self._chains:  # all that can run do, before anything is waited for
            if chain and chain[0].running is None:
                self._dialogue.start(chain[0])
        # The longest first: an environment's calls go on while others are waited for.
        for chain in sorted(self._chains, key=len, reverse=True):
            while chain and (waits or (chain[0].running is not None and chain[0].running.ready())):
                self._dialogue.finished(chain.pop(0))
                if chain:
                    self._dialogue.start(chain[0])
