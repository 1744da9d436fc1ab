"""Find how a policy writes calls: the format that reads back what its own chat template writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covey.errors import ToolError
from covey.tools.call_messages import CallStyle, call_message
from covey.tools.formats.deepseek import DEEPSEEK
from covey.tools.formats.gemma import GEMMA
from covey.tools.formats.glm import GLM
from covey.tools.formats.harmony import HARMONY
from covey.tools.formats.hermes import HERMES
from covey.tools.formats.llama import LLAMA
from covey.tools.formats.mistral import MISTRAL
from covey.tools.formats.parsed import Format, WrittenCall
from covey.tools.formats.pythonic import PYTHONIC
from covey.tools.formats.response_template import ResponseTemplate
from covey.tools.formats.xml_parameters import XML_PARAMETERS
from covey.tools.render import Renderer
from covey.tools.schema import InvalidArguments, fitted_arguments
from covey.types import Message

FORMATS: tuple[Format, ...] = (
    HERMES,
    XML_PARAMETERS,
    GLM,
    HARMONY,
    MISTRAL,
    DEEPSEEK,
    GEMMA,
    LLAMA,
    PYTHONIC,
)
"""In the order in which they are tried: what only looks like another stands behind it."""

PROBE_NAME, PROBE_ARGUMENTS = "covey_probe", {"count": 7, "label": "0042"}
QUESTION: Message = {"role": "user", "content": "x"}
PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "Probes.",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer", "description": "A number."},
                "label": {"type": "string", "description": "Text that looks like a number."},
            },
            "required": ["count", "label"],
        },
    },
}


def found_format(
    renderer: Renderer, stop_ids: Sequence[int], style: CallStyle, template: Mapping[str, Any]
) -> Format | ResponseTemplate:
    """Return the format in which the chat template writes calls: the first that reads a call back as it was.

    Where none does, the tokenizer's own `response_template` is tried.

    Raises:
        ToolError: none does.
    """
    prefix, turn = written_turn(renderer, stop_ids, style, template)
    schemas = {PROBE_NAME: PROBE_TOOL}
    own = []
    if getattr(renderer.tokenizer, "response_template", None):
        own = [ResponseTemplate(renderer.tokenizer, renderer.render([QUESTION], template))]
    tried: tuple[Format | ResponseTemplate, ...] = (*FORMATS, *own)
    for one in tried:
        calls = one.parse(turn, prefix, schemas).calls
        if len(calls) == 1 and calls[0].fault is None and reads_back(calls[0]):
            return one
    raise ToolError(
        f"No format reads the calls that this chat template writes: {turn[:200]!r}. Formats are {', '.join(f.name for f in FORMATS)}; "
        "say one with tool_format=, or give tool_format=Tags(...) or a Format of your own."
    )


def reads_back(call: WrittenCall) -> bool:
    """Return whether a call is the probe."""
    try:
        return call.name == PROBE_NAME and fitted_arguments(call.arguments, PROBE_TOOL) == PROBE_ARGUMENTS
    except InvalidArguments:
        return False


def written_turn(
    renderer: Renderer, stop_ids: Sequence[int], style: CallStyle, template: Mapping[str, Any]
) -> tuple[str, str]:
    """Return what the template writes of a turn before the policy begins, and the turn with a call, without its end."""
    template = {**template, "tools": [PROBE_TOOL]}
    before = renderer.render([QUESTION], template)
    call = call_message([PROBE_NAME], [PROBE_ARGUMENTS], style)
    whole = renderer.render([QUESTION, call], template, goes_on=False)
    shared = next(
        (n for n, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b),
        min(len(before), len(whole)),
    )
    head = renderer.head_of(renderer.encode(whole[:shared]))
    ends = [text for i in stop_ids if (text := renderer.token_text(i))]
    places = [at for text in ends if (at := whole.find(text, shared)) >= 0]
    return head, whole[shared : min(places, default=len(whole))]


def format_named(name: str) -> Format:
    """Return a format by its name; raise a ToolError that lists them."""
    for one in FORMATS:
        if one.name == name:
            return one
    raise ToolError(
        f"tool_format is {name!r}; formats are {', '.join(one.name for one in FORMATS)}. None finds the one that the chat "
        "template writes."
    )


def checked_tools_are_shown(renderer: Renderer, template: Mapping[str, Any]) -> None:
    """Raise a ToolError where the chat template does not show the policy its tools."""
    try:
        text = renderer.render([QUESTION], {**template, "tools": [PROBE_TOOL]})
    except Exception as error:  # whatever a template raises
        raise ToolError(f"The chat template refuses tools: {type(error).__name__}: {error}") from error
    if PROBE_NAME not in text:
        raise ToolError(
            "The chat template shows no tools: the policy would not know what it may call. Use a model whose template renders "
            "'tools', give the tokenizer such a chat_template, or have calls written between tags: tool_format=Tags(...)."
        )
