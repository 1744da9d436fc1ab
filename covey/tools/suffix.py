"""Suffix: what the chat template writes between a turn that calls tools and the next: the ids that answer the turn.

They are cut out of one render of a made-up chat, behind a sentinel in the arguments of the last call. What the policy wrote
is never rendered again, and nothing of it is taken away:

    the id that ended the turn stands behind the sentinel      what follows it
    it does not (another end, a stop string)                   from the first of the model's ends on, so that the template's
                                                               own closing comes too
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.errors import ToolError, warn
from covey.sample.chat import closing_tokens
from covey.tools.call_messages import CallStyle, call_message, result_messages
from covey.tools.render import Renderer, unused_mark

SENTINEL = "coveysentinel"
PROBE = "coveyresult"


@dataclass(frozen=True)
class Suffix:
    """Makes the ids that answer a turn.

    Args:
        stop_ids: ids that end a completion.
    """

    renderer: Renderer
    stop_ids: tuple[int, ...]
    style: CallStyle = field(default_factory=CallStyle)

    def ids(
        self,
        names: Sequence[str],
        results: Sequence[str],
        ended_by: int | None,
        template: Mapping[str, Any],
        goes_on: bool = True,
    ) -> tuple[int, ...]:
        """Return the ids between a turn and the next.

        Args:
            names: of the tools that were called, in order.
            results: what each came to.
            ended_by: the id that ended the turn; None: a stop string did.
            template: arguments of the chat template, the tools of this row included.
            goes_on: with the head of the policy's next turn.

        Raises:
            ToolError: the template writes nothing that ends such a turn.
        """
        mark = unused_mark(results)
        text = self.rendered(names, [self.renderer.neutral(r, mark) for r in results], template, goes_on)
        head, found, _ = text.partition(SENTINEL)
        if not found:
            raise ToolError(
                "The chat template does not write the arguments of a call, so that nothing can follow it."
            )
        ids = self.renderer.encode_neutral(text, mark)
        return tuple(ids[self.start(ids, self.renderer.encode(head + SENTINEL), ended_by, template) :])

    def start(
        self, ids: Sequence[int], before: Sequence[int], ended_by: int | None, template: Mapping[str, Any]
    ) -> int:
        """Return the place in the made-up chat from which ids follow a turn.

        Args:
            ids: of the chat.
            before: those up to the sentinel.
        """
        if ended_by is not None and (end := place_behind(ids, before, {ended_by})) is not None:
            return end + 1
        start = place_behind(ids, before, {*self.stop_ids})
        if start is None:
            start = place_behind(ids, before, {*closing_tokens(self.renderer.tokenizer, dict(template))})
        if start is None:
            raise ToolError(
                "The chat template ends a turn with calls by no token of its own, so that nothing can follow it. Use a template "
                "that closes each turn with a control token."
            )
        return start

    def rendered(
        self, names: Sequence[str], results: Sequence[str], template: Mapping[str, Any], goes_on: bool
    ) -> str:
        """Return the made-up chat: a question, the calls with the sentinel in the last, the results."""
        if self.style.is_single:
            names, results = names[:1], ["\n".join(results)]
        given = [{"x": "1"}] * (len(names) - 1) + [{"x": SENTINEL}]
        messages = [
            {"role": "user", "content": "x"},
            call_message(names, given, self.style),
            *result_messages(names, results),
        ]
        return self.renderer.render(messages, template, goes_on)


def place_behind(ids: Sequence[int], before: Sequence[int], wanted: set[int]) -> int | None:
    """Return the first place of one of `wanted` in `ids` behind those that `before` has; None where there is none.

    They are counted, for `before` alone may be encoded otherwise at its end.
    """
    seen = sum(i in wanted for i in before)
    places = [n for n, i in enumerate(ids) if i in wanted]
    return places[seen] if len(places) > seen else None


def style_of(
    renderer: Renderer, stop_ids: Sequence[int], template: Mapping[str, Any], name: str
) -> CallStyle:
    """Return how the template takes calls and results: tried, most ordinary first.

    Raises:
        ToolError: it does not write calls, or results.
    """
    errors: list[str] = []
    for style in (CallStyle(s, single) for single in (False, True) for s in (False, True)):
        number = 1 if style.is_single else 2
        probes = [f"{PROBE}{n}" for n in range(number)]
        try:
            text = Suffix(renderer, tuple(stop_ids), style).rendered([name] * number, probes, template, True)
        except Exception as error:  # templates raise what they like of what they do not know
            errors.append(f"{type(error).__name__}: {error}")
            continue
        behind = text.partition(SENTINEL)[2]
        if behind and all(probe in behind for probe in probes):
            return style
        errors.append("it leaves out the arguments" if SENTINEL not in text else "it leaves out the results")
    raise ToolError(
        f"The chat template cannot write a tool call and its result: {errors[0]}. Use a template that renders 'tool_calls' "
        "and messages of the role 'tool', or write calls between tags: tool_format=Tags(...)."
    )


def warn_if_rewritten(suffix: Suffix, template: Mapping[str, Any], name: str) -> None:
    """Warn where the template writes a prompt otherwise once calls and results follow it: the policy goes on from what it read.

    Nothing is rendered twice, so that training is right all the same; but a server that renders the chat anew shows the policy
    something else than it was trained with.
    """
    renderer = suffix.renderer
    prompt = renderer.encode(renderer.render([{"role": "user", "content": "x"}], template, goes_on=False))
    whole = renderer.encode(suffix.rendered([name], [PROBE], template, True))
    differing = [n for n, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b]
    if differing or len(whole) < len(prompt):
        first = differing[0] if differing else len(whole)
        warn(
            f"The chat template changes what it wrote of a prompt once a call follows, from token {first} on: "
            f"{renderer.decode(prompt[first : first + 8])!r} becomes {renderer.decode(whole[first : first + 8])!r}. Covey appends and "
            "renders nothing twice; a server that renders the chat anew shows the policy another one."
        )
