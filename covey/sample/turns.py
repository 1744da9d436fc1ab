"""Turns: the side that answers the policy in a completion, as the sampler asks it: tools, environments, a user.

Without turns a completion is one turn, and the sampler does not do one operation more. With them, a row whose turn has
ended either ends with it or goes on behind ids that it did not draw: they are read like a prompt, are in no loss, and
each takes the place of one random number, so that what is drawn behind them hangs on nothing but the text so far. Those of an
opening take none: they belong to the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from covey.types import Completion, FinishReason, Prompt

TurnEnd = Literal["stop", "stop_string", "length"]
"""Why the policy's turn ended: an end-of-sequence id, a stop string, or a limit of tokens."""

Schedule = Literal["fixed", "eager"]
"""When a row with a late answer goes on: a fixed number of steps after its turn ended, so that the time an answer takes
never shows in the bits; or as soon as the answer is there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a turn: ids to read, or the end of the completion."""

    ids: tuple[int, ...] = ()
    """Ids that are put behind the turn. Fewer than the room that was left, so that at least one more can be drawn; as many as
    there is room where `finish` ends the completion."""
    finish: FinishReason | None = None
    """Why the completion ends here; None: the policy goes on behind `ids`. Ids before an end are put there too."""


class PendingAnswer(Protocol):
    """An answer that may not be there yet."""

    def ready(self) -> bool:
        """Return whether `wait` returns at once."""
        ...

    def wait(self) -> Answer:
        """Return the answer, and wait for it where it is late. Called once."""
        ...


class Turns(Protocol):
    """The other side of every completion of a call. A completion is told by its prompt and its index in the group."""

    def opening(self, prompt: Prompt, index: int) -> tuple[int, ...]:
        """Return ids that stand between the prompt and the first turn: what this member's own prompt has more.

        They count to no limit of new tokens, and to no turn.
        """
        ...

    def ended(
        self, prompt: Prompt, index: int, ids: tuple[int, ...], reason: TurnEnd, room: int
    ) -> Answer | PendingAnswer:
        """Say what follows a turn of the policy: at once, or later, where what is needed for it starts here.

        An `Answer` goes on at once. Whatever is pending waits its steps under the fixed schedule, also where it is ready
        soon: whether it was ready is a question of time, and time must not show in the bits. Called for every turn, the last one
        too, in the order of rows where several end at the same step. Where `reason`
        is `length`, the answer must end the completion.

        Args:
            ids: the whole completion so far, opening included; its end is the end of the turn.
            reason: why the turn ended.
            room: tokens that may still follow: the limit of new tokens and the context, less what is used.
        """
        ...

    def closed(self, prompt: Prompt, index: int, completion: Completion) -> Completion:
        """Return a completion that has ended, with its calls, messages and text filled in.

        Called once the whole group has ended, in the order of the group. `completion.turns` has the places of the turns, and
        `completion.finish` what the last answer said.
        """
        ...
