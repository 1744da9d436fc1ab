"""Calls between tags, in plain text: `<search>question</search>` is answered by `<information>…</information>`.

No chat template is needed, and prompts may be text. The policy's turn ends at the closing tag; what answers it stands in the
same message (Search-R1, arXiv:2503.09516).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import ToolError
from covey.tools.formats.parsed import THINK, Parsed, Schemas, WrittenCall, without_thinking
from covey.tools.render import Renderer, unused_mark
from covey.tools.schema import parameters_of
from covey.types import Message, ToolCall


@dataclass(frozen=True)
class Tags:
    """The way one tool is called between tags.

    Args:
        opens: the tag before the text, such as "<search>".
        closes: the tag behind it, which ends the turn.
        answer: what the policy reads; {} is the result.
        tool: the tool's name; None: the run has one tool.
    """

    opens: str
    closes: str
    answer: str = "<information>{}</information>"
    tool: str | None = None

    def __post_init__(self) -> None:
        for name in ("opens", "closes"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise ToolError(f"Tags: {name}={getattr(self, name)!r}; it is a tag such as '<search>'.")
        if self.answer.count("{}") != 1:
            raise ToolError(f"Tags: answer={self.answer!r}; it has {{}} once, where the result stands.")
        if self.opens == self.closes:
            raise ToolError(
                f"Tags: {self.opens!r} opens and closes, so that no text between them is told apart."
            )


@dataclass(frozen=True)
class TagLanguage:
    """Calls between tags, results as text in the same message."""

    tags: tuple[Tags, ...]
    renderer: Renderer

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tag.closes for tag in self.tags))

    def tag_of(self, name: str) -> Tags:
        """Return the tags between which a tool is called."""
        return next((tag for tag in self.tags if tag.tool in (None, name)), self.tags[0])

    def parse(self, text: str, prefix: str, schemas: Schemas) -> Parsed:
        """Return the turn as it stands, with the call that its last tag makes."""
        spoken, _ = without_thinking(text, prefix, (THINK,))
        for tag in self.tags:
            _, opened, inside = spoken.rpartition(tag.opens)
            if opened and inside.rstrip().endswith(tag.closes):
                body = inside.rstrip().removesuffix(tag.closes)
                name = tag.tool or next(iter(schemas), "")
                return Parsed(text, None, (tag_call(body, name, schemas),))
        return Parsed(text)

    def cut_short(self, text: str, prefix: str) -> Parsed:
        return Parsed(text)

    def answer(
        self,
        names: Sequence[str],
        results: Sequence[str],
        ended_by: int | None,
        template: Mapping[str, Any],
        goes_on: bool,
    ) -> tuple[int, ...]:
        mark = unused_mark(results)
        text = self.tag_of(names[0]).answer.replace("{}", self.renderer.neutral(results[0], mark))
        return tuple(self.renderer.encode_neutral(text, mark))

    def messages(self, parsed: Parsed, calls: Sequence[ToolCall], is_answered: bool) -> list[Message]:
        """Return one assistant's message of the turn and its answer; those of all turns are joined when it closes."""
        text = parsed.content
        if calls and is_answered:
            text += self.tag_of(calls[0].name).answer.replace("{}", calls[0].result)
        return [{"role": "assistant", "content": text}]


def tag_call(body: str, name: str, schemas: Schemas) -> WrittenCall:
    """Return the call that the text between two tags makes: the tool's one argument."""
    known = parameters_of(schemas[name]).get("properties", {}) if name in schemas else {}
    argument = next(iter(known), None)
    return WrittenCall(body, name, {argument: body.strip()} if argument is not None else {})


def checked_tags(tags: Sequence[Tags], schemas: Schemas) -> None:
    """Raise a ToolError where tags name no tool, or a tool that takes more than one argument.

    Args:
        schemas: of all tools, by name.
    """
    for tag in tags:
        if tag.tool is None and len(schemas) != 1:
            raise ToolError(
                f"Tags({tag.opens!r}, ...) says no tool, and there are {len(schemas)}: {', '.join(schemas) or 'none'}. Say which: "
                "Tags(..., tool=name)."
            )
        if tag.tool is not None and tag.tool not in schemas:
            raise ToolError(
                f"Tags({tag.opens!r}, ...): there is no tool {tag.tool!r}; tools are {', '.join(schemas) or 'none'}."
            )
        check_takes_one_text(tag, tag.tool or next(iter(schemas)), schemas)


def check_takes_one_text(tag: Tags, name: str, schemas: Schemas) -> None:
    """Raise a ToolError where a tool does not take one text."""
    parameters = parameters_of(schemas[name])
    taken = list(parameters.get("properties", {}))
    if not taken or not set(parameters.get("required", ())) <= {taken[0]}:
        raise ToolError(
            f"Tool {name!r} takes {', '.join(taken) or 'no argument'}, and what stands between {tag.opens} and {tag.closes} is one "
            "text: the tool must take one argument, or the others must have defaults."
        )


def joined_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a conversation, with those of an assistant that follow one another as one."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] == "assistant" and "tool_calls" not in joined[-1]:
            joined[-1] = {**joined[-1], "content": joined[-1]["content"] + message["content"]}
        else:
            joined.append(message)
    return joined


def as_tags(given: object) -> tuple[Tags, ...]:
    """Return the tags that `tool_format` says: one, or a list of them; empty where it says something else."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    return tuple(tag for tag in several if isinstance(tag, Tags)) if several else ()
