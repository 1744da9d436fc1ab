"""Language: how calls and results are written in a conversation; found by what the chat template writes, or said by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from covey.errors import ConfigError, ToolError
from covey.sample.prompts import TOOLS_COLUMN, PromptReader
from covey.tools.chat_language import ChatLanguage
from covey.tools.episode_settings import EpisodeSettings
from covey.tools.formats.finding import checked_tools_are_shown, format_named, found_format
from covey.tools.formats.parsed import Format, Parsed, Schemas
from covey.tools.render import Renderer
from covey.tools.suffix import Suffix, style_of, warn_if_rewritten
from covey.tools.tags import TagLanguage, as_tags, checked_tags
from covey.tools.tool_contract import Tool
from covey.types import Message, ToolCall


class Language(Protocol):
    """Way in which calls and results are written in a conversation."""

    def parse(self, text: str, prefix: str, schemas: Schemas) -> Parsed: ...

    def cut_short(self, text: str, prefix: str) -> Parsed: ...

    def answer(
        self,
        names: Sequence[str],
        results: Sequence[str],
        ended_by: int | None,
        template: Mapping[str, Any],
        goes_on: bool,
    ) -> tuple[int, ...]:
        """Return the ids between a turn and the next."""
        ...

    def messages(self, parsed: Parsed, calls: Sequence[ToolCall], is_answered: bool) -> list[Message]:
        """Return the messages that a turn and its results make."""
        ...


NO_CALLS = Format("none", lambda text, schemas: (text, []))
"""Where no row has a tool: an environment that only resets and rewards."""


def made_language(
    renderer: Renderer,
    stop_ids: tuple[int, ...],
    settings: EpisodeSettings,
    tools: Mapping[str, Tool],
    reader: PromptReader,
) -> Language:
    """Return how calls are written: as `tool_format` says, or as the chat template writes them."""
    if tags := as_tags(settings.tool_format):
        checked_tags(tags, {name: tool.schema for name, tool in tools.items()})
        return TagLanguage(tags, renderer)
    if not tools:
        return ChatLanguage(NO_CALLS, Suffix(renderer, stop_ids))
    if getattr(reader.tokenizer, "chat_template", None) is None:
        raise ToolError(
            "Tools need a chat template that shows them to the policy, and the tokenizer has none. Give it one "
            "(tokenizer.chat_template = ...), or use tool_format=Tags(...)."
        )
    template = {**reader.arguments({}, 0), TOOLS_COLUMN: [tool.schema for tool in tools.values()]}
    return chat_language(renderer, stop_ids, settings.tool_format, template, next(iter(tools)))


def chat_language(
    renderer: Renderer, stop_ids: tuple[int, ...], chosen: object, template: Mapping[str, Any], name: str
) -> ChatLanguage:
    """Return the language of a chat template that has been tried on calls of one of the tools.

    Args:
        chosen: a format or its name; None: the one that the template writes.
    """
    if not isinstance(chosen, str | Format | None):
        raise ConfigError(
            f"tool_format is {type(chosen).__name__} {repr(chosen)[:80]}. It is the name of a format, a Format, Tags, or None."
        )
    checked_tools_are_shown(renderer, template)
    suffix = Suffix(renderer, stop_ids, style_of(renderer, stop_ids, template, name))
    suffix.ids([name], ["1"], None, template)
    warn_if_rewritten(suffix, template, name)
    if isinstance(chosen, str):
        return ChatLanguage(format_named(chosen), suffix)
    return ChatLanguage(chosen or found_format(renderer, stop_ids, suffix.style, template), suffix)
