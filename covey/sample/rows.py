"""One sequence while it is being sampled: what it said, whether it has ended, and its random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from covey.groups import Completion, FinishReason, Prompt
from covey.sample.settings import Sampling
from covey.sample.uniforms import uniforms

Decode = Callable[[Sequence[int]], str]
"""Token ids → text, without end and padding tokens."""


@dataclass
class Row:
    """A sequence in the making."""

    prompt: Prompt
    position: int
    """Which prompt of the call it belongs to."""
    index: int
    """Which completion of its group it is."""
    uniforms: NDArray[np.float64]
    """One number for each token it may yet write, shape (max_new_tokens,)."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def uniform(self) -> float:
        """The number for the next token."""
        return float(self.uniforms[len(self.ids)])

    def append(
        self, token: int, logprob: float, policy_logprob: float, settings: Sampling, decode: Decode
    ) -> None:
        """Add a drawn token, and notice if it ends the sequence."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.policy_logprobs.append(policy_logprob)
        if token in settings.stop_ids:
            self.finish = "stop"
        elif settings.stop_strings and _ends_with_stop(self.ids, settings.stop_strings, decode):
            self.finish = "stop_string"
        elif len(self.ids) >= settings.max_new_tokens:
            self.finish = "length"

    def completion(self, settings: Sampling, decode: Decode) -> Completion:
        assert self.finish is not None, "the sequence has not ended"
        return Completion(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            text=decode(self.ids),
            finish=self.finish,
            policy_logprobs=tuple(self.policy_logprobs) if settings.changes_distribution else None,
        )


def new_rows(prompts: Sequence[Prompt], group_size: int, settings: Sampling) -> list[Row]:
    """The sequences of whole groups, siblings side by side."""
    return [
        Row(
            prompt=prompt,
            position=position,
            index=index,
            uniforms=uniforms(
                (settings.seed, *settings.step, *prompt.seed_key, index), settings.max_new_tokens
            ),
        )
        for position, prompt in enumerate(prompts)
        for index in range(group_size)
    ]


def _ends_with_stop(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> bool:
    """Whether the newest token completed a stop string.

    A token adds at least one byte, so the last `len(stop bytes)` tokens and one more hold the whole string.
    """
    longest = max(len(stop.encode()) for stop in stops)
    tail = decode(ids[-longest - 1 :])
    return any(stop in tail for stop in stops)
