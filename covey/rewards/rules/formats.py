"""Rewards for the shape of a completion: tags, boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.rewards.rules.blocks import only_block, parse_blocks
from covey.rewards.rules.extract import after_reasoning, last_boxed, texts_without_echo
from covey.types import PromptContent, prefill_of


@dataclass(eq=False)
class ThinkFormat:
    """1.0 for `<think>reasoning</think> <answer>answer</answer>` and nothing else, else 0.0.

    The opening `<think>` may stand in the prompt, also in a message of the assistant that the policy goes on with: what
    that message says before it is not held against the policy. The answer must not be blank.

    Args:
        strict: exactly one line break between the blocks, and reasoning that is not blank.
        think, answer: names of the tags.
    """

    strict: bool = False
    think: str = "think"
    answer: str = "answer"

    pure = True
    __name__ = "think_format"

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        **_: object,
    ) -> list[float]:
        texts = texts_without_echo(completions, prompts)
        begun = [prefill_of(prompt) for prompt in prompts] if prompts is not None else [""] * len(texts)
        return [
            float(self._holds(text) or (text.startswith(start) and self._holds(text[len(start) :])))
            for text, start in zip(texts, begun, strict=True)
        ]

    def _holds(self, text: str) -> bool:
        blocks = parse_blocks(text, self.think, self.answer)
        if blocks is None or not blocks.answer.strip():
            return False
        return not self.strict or (blocks.gap in ("\n", "\r\n") and bool(blocks.reasoning.strip()))


class Tagged:
    """1.0 where each of the named tags holds one block that is not blank, in the given order, else 0.0.

    Args:
        tags: names in order, for example `("plan", "code")`.
        only: nothing but whitespace may stand outside the blocks.
    """

    pure = True

    def __init__(self, *tags: str, only: bool = False) -> None:
        if not tags or len(set(tags)) != len(tags):
            raise ValueError(f"Tagged{tags!r}: give one or more different tag names.")
        self.tags = tags
        self.only = only
        self.__name__ = "tagged_" + "_".join(tags)

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        **_: object,
    ) -> list[float]:
        return [float(self._holds(text)) for text in texts_without_echo(completions, prompts)]

    def _holds(self, text: str) -> bool:
        place, outside = 0, []
        for tag in self.tags:
            content = only_block(text, tag)
            start = text.find(f"<{tag}>")
            if content is None or not content.strip() or start < place:
                return False
            outside.append(text[place:start])
            place = text.find(f"</{tag}>") + len(tag) + 3
        outside.append(text[place:])
        return not self.only or not "".join(outside).strip()


class BoxedFormat:
    """1.0 where the completion has a balanced `\\boxed{…}` that is not blank after its reasoning, else 0.0."""

    pure = True
    __name__ = "boxed_format"

    def __call__(
        self,
        completions: Sequence[PromptContent],
        prompts: Sequence[PromptContent] | None = None,
        **_: object,
    ) -> list[float]:
        texts = texts_without_echo(completions, prompts)
        boxes = [last_boxed(after_reasoning(text) or "") for text in texts]
        return [float(box is not None and bool(box.strip())) for box in boxes]
