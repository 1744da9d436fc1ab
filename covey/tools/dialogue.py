"""Dialogue: one completion's conversation. The policy's turn ends → calls → results → the ids that answer it.

A turn that a limit cut is never parsed. A call that cannot be read, names no tool, or has arguments that do not fit is answered
by what is wrong with it, beside its good neighbours. What the policy wrote is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from covey.errors import ToolError, warn
from covey.sample.turns import Answer, PendingAnswer, TurnEnd
from covey.tools.calling import Caller, DoneCall, Outcome, RunningCall
from covey.tools.episode_settings import EpisodeSettings
from covey.tools.formats.parsed import Parsed
from covey.tools.planned_call import PlannedCall, planned, with_text
from covey.tools.render import Renderer
from covey.tools.result_text import CHARACTERS_PER_TOKEN, Shortener, message_of
from covey.tools.tags import joined_messages
from covey.tools.turn_answer import TurnAnswer, TurnState
from covey.types import Completion, FinishReason, Message, PromptContent, Turn

if TYPE_CHECKING:
    from covey.tools.journal import CallJournal
    from covey.tools.language import Language
    from covey.tools.tool_contract import Tool

STILL_RUNS = "not called: an earlier call of this environment still runs past its deadline"


@dataclass(frozen=True)
class DialogueParts:
    """Parts that all conversations of a run share."""

    language: Language
    renderer: Renderer
    caller: Caller
    settings: EpisodeSettings
    stop_ids: tuple[int, ...]
    shortener: Shortener
    journal: CallJournal | None = None


@dataclass
class Seat:
    """The place of one completion: its tools, its environment, and where it starts."""

    tools: Mapping[str, Tool]
    template: Mapping[str, Any]
    """Arguments of the chat template, the schemas of the tools included."""
    environment: Any = None
    content: PromptContent = ""
    """The prompt as this completion sees it."""
    fault: Exception | None = None
    """Why there is no environment."""
    prompt_ids: tuple[int, ...] = ()
    opening: tuple[int, ...] = ()
    own_prompt: PromptContent | None = None
    key: tuple[int, ...] = ()
    """What tells this completion from all others of the run."""
    given_up: list[RunningCall] = field(default_factory=list)
    """Calls of its environment that nobody waits for any more."""

    def is_in_use(self) -> bool:
        """Return whether a call that was given up still runs in its environment."""
        return any(call.goes_on() for call in self.given_up)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {name: tool.schema for name, tool in self.tools.items()}

    def function(self, tool: Tool) -> Callable[..., Any]:
        """Return what a call of a tool calls: the function, or the method of this completion's environment."""
        if not tool.is_method:
            return tool.function
        made: Callable[..., Any] = getattr(self.environment, tool.function.__name__)
        return made


class Dialogue:
    """One completion's conversation, in its present state."""

    def __init__(self, parts: DialogueParts, seat: Seat) -> None:
        self.parts, self.seat = parts, seat
        self.turns: list[Turn] = []
        self.messages: list[Message] = []
        self.seconds = 0.0
        """Time that its calls took so far."""
        self._num_answered = 0
        self._start = len(seat.opening)
        self._prefix = parts.renderer.head_of([*seat.prompt_ids])

    def ended(self, ids: tuple[int, ...], reason: TurnEnd, room: int) -> Answer | PendingAnswer:
        """Say what follows a turn; see `covey.sample.turns.Turns.ended`. Calls that run inline are over at once."""
        parsed, ended_by = self._read(ids, reason)
        calls = [planned(written, n, self.seat.tools) for n, written in enumerate(parsed.calls)]
        if (finish := self._end_before_calls(reason, calls)) is not None:
            return self._over(ids, parsed, calls, finish)
        answer = TurnAnswer(self, TurnState(ids, room, ended_by, parsed, calls))
        is_inline = all(call.tool is None or call.tool.is_inline for call in calls)
        return answer.wait() if is_inline else answer

    def closed(self, completion: Completion) -> Completion:
        """Return the completion with its turns and messages."""
        ids = completion.ids[len(self.seat.opening) :]
        return replace(
            completion,
            text=self.parts.renderer.decode([i for i in ids if i not in self.parts.stop_ids]),
            turns=tuple(self.turns),
            messages=tuple(joined_messages(self.messages)),
            own_prompt=self.seat.own_prompt,
            opening=len(self.seat.opening),
        )

    def settle(self, state: TurnState) -> Answer:
        """Return the answer to a turn whose calls are over, and take it into the conversation."""
        self.seconds += sum(call.outcome.seconds for call in state.calls if call.outcome)
        self._num_answered += 1
        finish = self._end_after_calls(state)
        if finish in ("failed", "deadline"):
            return self._over(state.ids, state.parsed, state.calls, finish)
        answer = self._answer_ids(state, goes_on=finish is None)
        if len(answer) >= state.room and finish is None:
            return self._over(state.ids, state.parsed, state.calls, "length")
        # The end that a tool made holds, also without room for its result.
        answer = answer if len(answer) <= state.room else ()
        self._take(state.ids, answer, state.parsed, state.calls, is_answered=True)
        return Answer(answer, finish)

    def _read(self, ids: tuple[int, ...], reason: TurnEnd) -> tuple[Parsed, int | None]:
        """Return the turn taken apart, and the id that ended it."""
        ended_by = ids[-1] if reason == "stop" else None
        text = self.parts.renderer.decode(ids[self._start : len(ids) - (ended_by is not None)])
        if reason == "length":
            return self.parts.language.cut_short(text, self._prefix), None
        return self.parts.language.parse(text, self._prefix, self.seat.schemas), ended_by

    def _end_before_calls(self, reason: TurnEnd, calls: Sequence[PlannedCall]) -> FinishReason | None:
        """Return why the completion ends with this turn; None: it has calls that may be answered."""
        settings = self.parts.settings
        if self.seat.fault is not None:
            return "failed"
        if reason == "length" or not calls:
            return reason
        limit = settings.max_tool_calling_iterations
        if limit is not None and self._num_answered >= limit:
            return "turns"
        if settings.episode_timeout is not None and self.seconds >= settings.episode_timeout:
            return "deadline"
        return None

    def _end_after_calls(self, state: TurnState) -> FinishReason | None:
        """Return why the completion ends with these calls; None: it goes on."""
        for call in state.calls:
            assert call.outcome is not None, call
            if call.tool is not None and call.outcome.status in ("raised", "timeout"):
                if call.tool.options.on_error == "raise":
                    raise ToolError(
                        f"Tool {call.tool.name!r} failed, and its on_error is 'raise': {call.text}"
                    ) from call.outcome.error
                if call.tool.options.on_error == "fail":
                    return "failed"
        limit = self.parts.settings.episode_timeout
        if limit is not None and self.seconds >= limit:
            return "deadline"
        ended = (
            c.tool.options.ends for c in state.calls if c.tool and c.outcome and c.outcome.status == "ok"
        )
        if any(ended):
            return "tool"
        return end_of(self.seat.environment)

    def _answer_ids(self, state: TurnState, goes_on: bool) -> tuple[int, ...]:
        """Return the ids of the results; cut until they leave room, where `tool_overflow` says so."""
        names = [call.written.name or next(iter(self.seat.tools), "tool") for call in state.calls]
        write = self.parts.language.answer

        def written(most: int | None) -> tuple[int, ...]:
            texts = [self.parts.shortener.cut(call.text, most) for call in state.calls]
            ids = write(names, texts, state.ended_by, self.seat.template, goes_on)
            if len(ids) < state.room:
                for call, text in zip(state.calls, texts, strict=True):
                    call.text = text
            return ids

        # Encoding an endless result takes minutes, and it has no room.
        is_endless = max(len(call.text) for call in state.calls) > state.room * CHARACTERS_PER_TOKEN
        answer, most = written(state.room if is_endless else None), state.room // 2
        while len(answer) >= state.room and self.parts.settings.tool_overflow == "cut" and most > 0:
            answer, most = written(most), most // 2
        return answer

    def _over(
        self, ids: tuple[int, ...], parsed: Parsed, calls: Sequence[PlannedCall], finish: FinishReason
    ) -> Answer:
        """Take the last turn into the conversation, without an answer."""
        self._take(ids, (), parsed, calls, is_answered=False)
        return Answer((), finish)

    def _take(
        self,
        ids: tuple[int, ...],
        answer: tuple[int, ...],
        parsed: Parsed,
        calls: Sequence[PlannedCall],
        is_answered: bool,
    ) -> None:
        made = tuple(call.as_data(len(self.turns)) for call in calls)
        seconds = sum(call.seconds for call in made)
        reward = reward_of(self.seat.environment, calls)
        self.turns.append(Turn(self._start, len(ids), len(ids) + len(answer), made, reward, seconds))
        clean = replace(parsed, content=self.parts.renderer.plain(parsed.content))
        self.messages += self.parts.language.messages(clean, made, is_answered)
        self._start = len(ids) + len(answer)
        self._prefix = self.parts.renderer.head_of(answer)

    def start(self, call: PlannedCall) -> None:
        """Start a call, or take what the journal has of it."""
        tool, settings = call.tool, self.parts.settings
        assert tool is not None
        if self.parts.journal is not None and tool.replays:
            call.noted = self.parts.journal.noted(self.place(call), tool.name, call.arguments)
            if call.noted is not None:
                call.running = DoneCall(Outcome(call.noted.status, seconds=call.noted.seconds))
                return
        if tool.is_method and self.seat.is_in_use():
            call.running = DoneCall(Outcome("timeout", message=STILL_RUNS))
            return
        limits = [tool.options.timeout or settings.tool_timeout]
        limits += [settings.episode_timeout - self.seconds] if settings.episode_timeout is not None else []
        seconds = min((limit for limit in limits if limit is not None), default=None)
        call.running = self.parts.caller.start(tool, self.seat.function(tool), call.arguments, seconds)

    def finished(self, call: PlannedCall) -> None:
        """Take what a call came to, and note it before it is used."""
        assert call.running is not None and call.tool is not None
        call.outcome = call.running.outcome()
        if call.tool.is_method and call.running.goes_on():
            self.seat.given_up.append(call.running)
        if call.noted is not None:
            call.text = call.noted.text
            return
        call.outcome, text = with_text(call.outcome, call.tool.name)
        call.text = self.parts.shortener.cut(
            text, call.tool.options.max_result or self.parts.settings.max_tool_result
        )
        if self.parts.journal is not None:
            status, seconds = call.outcome.status, call.outcome.seconds
            self.parts.journal.note(
                self.place(call), call.tool.name, call.arguments, status, call.text, seconds
            )

    def place(self, call: PlannedCall) -> tuple[int, ...]:
        """Return the place of a call in the run."""
        return (*self.seat.key, len(self.turns), call.number)


def reward_of(environment: object | None, calls: Sequence[PlannedCall]) -> float | None:
    """Return what an environment says of a turn in which it was called, in its attribute `turn_reward`."""
    ran = (c for c in calls if c.tool is not None and c.tool.is_method and c.running is not None)
    said = getattr(environment, "turn_reward", None) if any(ran) else None
    return float(said) if isinstance(said, int | float) and not isinstance(said, bool) else None


def end_of(environment: object | None) -> FinishReason | None:
    """Return whether an environment says that its episode is over, or cannot say it."""
    try:
        done = getattr(environment, "done", False)
        return "environment" if not callable(done) and bool(done) else None
    except Exception as error:  # a property of the user's
        name = type(environment).__name__
        warn(f"{name}.done raised {type(error).__name__}: {message_of(error)}. Its completion has no score.")
        return "failed"
