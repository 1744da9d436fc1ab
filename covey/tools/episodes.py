"""Episodes: what stands between the trainer and the conversations of a call of the sampler.

EpisodeMaker   made once; knows tools, environments and the chat template, and refuses what cannot work
Episodes       the conversations of one call; answers the sampler (`covey.sample.turns.Turns`)
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from covey.errors import ConfigError, DatasetError, ToolError, warn
from covey.rewards.execution.loop import awaited
from covey.rewards.own import own
from covey.sample.prompts import TOOLS_COLUMN, PromptReader, named_tools
from covey.sample.turns import Answer, PendingAnswer, TurnEnd
from covey.tools.calling import Caller
from covey.tools.dialogue import Dialogue, DialogueParts, Seat
from covey.tools.environments import Environments, with_observation
from covey.tools.episode_settings import EpisodeSettings
from covey.tools.journal import CallJournal
from covey.tools.language import made_language
from covey.tools.openings import common_start
from covey.tools.render import Renderer
from covey.tools.result_text import Shortener, message_of
from covey.tools.tags import TagLanguage
from covey.tools.tool_contract import Tool, by_name
from covey.types import Completion, Group, Prompt
from covey.vision.album import Album


class EpisodeMaker:
    """Makes the episodes of each call of the sampler.

    Args:
        tools: functions that every row may call.
        environments: whose methods are tools of their rows; None: there are none.
        reader: turns rows into prompts; see `reader` below.
        stop_ids: ids that end a completion.
        seed: of the run; `reset` may ask for what is made of it.
        journal: results that were noted before the run stopped, and where new ones are noted.

    Raises:
        ToolError: a tool without a schema, two of one name, or a chat template that shows no tools, cannot write calls, or
            writes them in no known format.
        ConfigError: a setting that would do nothing.
    """

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]],
        environments: Environments | None,
        reader: PromptReader,
        stop_ids: Sequence[int],
        settings: EpisodeSettings | None = None,
        seed: int = 0,
        journal: CallJournal | None = None,
    ) -> None:
        settings = settings or EpisodeSettings()
        self.environments, self.seed = environments, seed
        self._has_begun = False
        """Whether an episode ever began: one row that cannot be used does not end a run that could go on without it."""
        self._everywhere = [Tool.of(function) for function in tools]
        kinds = [] if environments is None else list(environments.kinds.values())
        for kind in kinds:
            by_name([*self._everywhere, *kind.tools])
        listed = [*self._everywhere, *(tool for kind in kinds for tool in kind.tools)]
        refuse_idle(settings, listed)
        self.tools = [tool.function for tool in listed]
        """The functions given, and the methods of environments, in the order in which they are rendered."""
        self.known = {tool.name: tool for tool in listed}
        """Every tool by its name; of environments with tools of one name, the last."""
        self.tool_names = list(self.known)
        """Names that the policy calls them by."""
        renderer, ends = Renderer(reader.tokenizer), tuple(stop_ids)
        self.language = made_language(renderer, ends, settings, self.known, reader)
        caller, shortener = Caller(settings.tool_concurrency), Shortener(renderer.encode, renderer.decode)
        self.parts = DialogueParts(self.language, renderer, caller, settings, ends, shortener, journal)
        self.reader = replace(reader, tools_of=self.reader_tools)
        """The reader that prints to each prompt the tools that it may call."""

    def keep_journal(self, journal: CallJournal) -> None:
        """Note what tools return, and replay what was noted, from here on."""
        self.parts = replace(self.parts, journal=journal)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end a turn, which the sampler must know."""
        return self.language.stop_strings if isinstance(self.language, TagLanguage) else ()

    def reader_tools(
        self, row: Mapping[str, Any], number: int | None = None
    ) -> list[Mapping[str, Any]] | None:
        """Return the schemas that the chat template is given for a row; None: it is given none.

        Raises:
            DatasetError: an unknown environment, an unknown tool in the column `tools`, or a prompt that is text.
        """
        named = self.row_tools(row, number)
        if isinstance(self.language, TagLanguage):
            return None
        if named and isinstance(row.get("prompt"), str):
            raise DatasetError(
                f"{row_name(number)} has a prompt that is text, and tools need a chat: the chat template shows them to the policy. "
                "Make the prompt a list of messages, [{'role': 'user', 'content': ...}], or use tool_format=Tags(...)."
            )
        return [tool.schema for tool in named.values()] or None

    def row_tools(self, row: Mapping[str, Any], number: int | None = None) -> dict[str, Tool]:
        """Return the tools that the policy may call in a row, by name: the column `tools` names some of them, or none."""
        kind = None if self.environments is None else self.environments.selected(row, number)
        named = by_name([*self._everywhere, *(kind.tools if kind else ())])
        names = named_tools(row.get(TOOLS_COLUMN))
        if names is None:
            return named
        for name in names:
            if name not in named:
                raise DatasetError(
                    f"{row_name(number)} has {name!r} in the column 'tools', which is none of its tools: "
                    f"{', '.join(map(repr, named)) or 'it has none'}. The column names the tools that the row may call; one that "
                    "means something else needs another name."
                )
        return {name: tool for name, tool in named.items() if name in names}

    def begin(self, prompts: Sequence[Prompt], group_size: int, step: tuple[int, ...]) -> Episodes:
        """Begin an episode for each completion: environments are reset in the order of the rows.

        Args:
            step: what tells this call of the sampler from others, as for its random numbers.

        Raises:
            ToolError: no environment of any completion could be reset: of several prompts, or none so far.
        """
        seats: dict[tuple[tuple[int, ...], int], Seat] = {}
        album = Album()
        for prompt in prompts:
            assert (prompt.seed_key, prompt.first) not in seats, f"two prompts with the key {prompt.seed_key}"
            row = {**prompt.columns, "prompt": prompt.content}
            tools, template = self.row_tools(row, prompt.row), self.reader.arguments(row, prompt.row)
            given = own(row, album)
            for index in range(prompt.first, prompt.first + group_size):
                key = (*step, *prompt.seed_key, index)
                seats[prompt.seed_key, index] = seat = Seat(tools, template, content=prompt.content, key=key)
                if self.environments is not None:
                    self._reset(self.environments, seat, prompt, given, step)
        faults = [seat.fault for seat in seats.values() if seat.fault is not None]
        tell_failed(faults, len(seats), may_go_on=self._has_begun and len(prompts) == 1)
        self._has_begun |= len(faults) < len(seats)
        begun = [
            self._with_common_start(
                prompt, [seats[prompt.seed_key, prompt.first + n] for n in range(group_size)]
            )
            for prompt in prompts
        ]
        return Episodes(begun, seats, self.parts, self.environments)

    def for_evaluation(self) -> EpisodeMaker:
        """Return a maker with environments of its own, and without a journal: evaluation changes nothing of training."""
        other = copy.copy(self)
        other.environments = None if self.environments is None else self.environments.for_evaluation()
        caller = Caller(self.parts.settings.tool_concurrency)
        other.parts = replace(self.parts, caller=caller, journal=None)
        other.reader = replace(self.reader, tools_of=other.reader_tools)
        return other

    def close(self) -> None:
        """Close all environments, end all processes of tools, and close the journal."""
        if self.environments is not None:
            self.environments.close()
        self.parts.caller.close()
        if self.parts.journal is not None:
            self.parts.journal.close()
            self.parts = replace(self.parts, journal=None)

    def _reset(
        self,
        environments: Environments,
        seat: Seat,
        prompt: Prompt,
        row: Mapping[str, Any],
        step: tuple[int, ...],
    ) -> None:
        """Give a completion an environment that has been reset, and the prompt with what it said; or the fault of either."""
        kind = environments.selected(row, prompt.row)
        given = kind.reset_arguments(row, seed_of(self.seed, step, prompt.seed_key))
        try:
            seat.environment = environments.take(kind)
            observation = awaited(seat.environment.reset(**given))
            seat.content = with_observation(prompt.content, observation, kind.title)
        except (Exception, SystemExit) as error:  # a factory, or a reset: code of the user's
            seat.fault = ToolError(f"{kind.title}: {type(error).__name__}: {message_of(error)}")
            seat.fault.__cause__ = error

    def _with_common_start(self, prompt: Prompt, seats: Sequence[Seat]) -> Prompt:
        """Return the prompt that all members share, and give each what its own has more.

        Where they differ, the group's prompt is the longest start that they have in common. A member that failed starts as its
        siblings do.
        """
        good = [seat for seat in seats if seat.fault is None] or list(seats)
        read: list[tuple[Any, Prompt]] = [(prompt.content, prompt)]
        for seat in good:
            if all(content != seat.content for content, _ in read):
                row = {**prompt.columns, "prompt": seat.content}
                read.append((seat.content, self.reader.read(row, prompt.row, prompt.seed_key)))
        theirs = [next(p for content, p in read if content == seat.content) for seat in good]
        shared = common_start([p.ids for p in theirs])
        if not shared:
            raise ToolError(
                f"Row {prompt.row}: the prompts of its episodes have not one token in common. Begin them alike, for example with a "
                "system message."
            )
        is_equal = all(p is theirs[0] for p in theirs)
        for seat, member in zip(good, theirs, strict=True):
            seat.prompt_ids, seat.opening = member.ids, member.ids[len(shared) :]
            seat.own_prompt = None if is_equal else member.content
        for seat in (seat for seat in seats if seat.fault is not None):
            seat.prompt_ids, seat.opening = good[0].prompt_ids, good[0].opening
            seat.own_prompt = good[0].own_prompt
        return replace(theirs[0] if is_equal else prompt, ids=shared, first=prompt.first)


class Episodes:
    """The conversations of one call of the sampler; see `covey.sample.turns.Turns` for what it is asked."""

    def __init__(
        self,
        prompts: list[Prompt],
        seats: Mapping[tuple[tuple[int, ...], int], Seat],
        parts: DialogueParts,
        pool: Environments | None,
    ) -> None:
        self.prompts = prompts
        """What the sampler continues, in the order of the prompts given."""
        self._seats, self._pool = dict(seats), pool
        self._dialogues = {key: Dialogue(parts, seat) for key, seat in seats.items()}

    def opening(self, prompt: Prompt, index: int) -> tuple[int, ...]:
        return self._seats[prompt.seed_key, prompt.first + index].opening

    def ended(
        self, prompt: Prompt, index: int, ids: tuple[int, ...], reason: TurnEnd, room: int
    ) -> Answer | PendingAnswer:
        return self._dialogues[prompt.seed_key, prompt.first + index].ended(ids, reason, room)

    def closed(self, prompt: Prompt, index: int, completion: Completion) -> Completion:
        return self._dialogues[prompt.seed_key, prompt.first + index].closed(completion)

    def environments(self, groups: Sequence[Group]) -> list[object]:
        """Return one environment per completion, in the order of the groups, each in its final state; None where it failed."""
        return [
            self._seats[group.prompt.seed_key, group.prompt.first + index].environment
            for group in groups
            for index in range(len(group.completions))
        ]

    def release(self) -> None:
        """Give the environments back: what they hold may be overwritten from here on. A second call does nothing."""
        for seat in self._seats.values():
            if self._pool is not None and seat.environment is not None:
                self._pool.give_back(seat.environment, seat.is_in_use)
                seat.environment = None


def refuse_idle(settings: EpisodeSettings, tools: Sequence[Tool]) -> None:
    """Raise a ConfigError for a setting that nothing here can keep."""
    is_idle = bool(tools) and all(tool.is_inline for tool in tools)
    for name in ("tool_timeout", "tool_concurrency") if is_idle else ():
        if (value := getattr(settings, name)) != getattr(EpisodeSettings, name):
            raise ConfigError(
                f"{name} is {value}, and every tool runs in the trainer's own thread, one call after the other, where it cannot "
                "be interrupted. Make them coroutine functions, or decorate them: @tool(where='thread')."
            )


def tell_failed(faults: Sequence[Exception], number: int, may_go_on: bool) -> None:
    """Warn of environments that could not be reset, out of so many; raise where not one could, unless the run may go on."""
    if faults and len(faults) == number and not may_go_on:
        raise ToolError(f"No environment could be reset. {faults[0]}") from faults[0]
    if faults:
        warn(
            f"{len(faults)} of {number} environments could not be reset, and their completions have no score: {faults[0]}"
        )


def seed_of(seed: int, step: Sequence[int], key: Sequence[int]) -> int:
    """Return a seed between 0 and 2³¹ − 1 for the environments of a group: equal for its members, another for all others."""
    text = ",".join(map(str, (seed, *step, -1, *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def row_name(number: int | None) -> str:
    return "A row" if number is None else f"Row {number}"
