"""Everything that decides how completions are sampled, as one value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from covey.errors import ConfigError

OWN_NAMES = {
    "max_new_tokens": "max_completion_length",
    "max_length": "max_completion_length",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
"""Options of `generation_kwargs` that GRPOConfig has a field for."""

FIXED = {
    "do_sample": True,
    "num_return_sequences": None,
    "num_beams": 1,
    "use_cache": True,
    "return_dict_in_generate": None,
    "output_scores": None,
    "pad_token_id": None,
}
"""Options that GRPO itself decides; only the value that it uses anyway is taken."""

OF_BEAMS = ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty", "constraints")
"""Options that act on a search with beams."""


@dataclass(frozen=True)
class Sampling:
    """Settings of one round of sampling, checked once.

    Raises:
        ConfigError: a number with which nothing can be drawn, or an empty stop string.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """Logits are divided by it before anything else but the repetition penalty."""
    top_p: float = 1.0
    """Keep the most probable tokens that together hold this probability; 1: all."""
    top_k: int = 0
    """Keep this many tokens; 0: all."""
    min_p: float = 0.0
    """Keep tokens at least this probable relative to the most probable one; 0: all."""
    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of tokens seen before (arXiv:1909.05858, section 4.1)."""
    min_new_tokens: int = 0
    """No end-of-sequence id before this many tokens of a turn."""
    suppress_tokens: tuple[int, ...] = ()
    """Ids that are never drawn."""
    padding_id: int | None = None
    """The padding token, where it is no end token: never drawn, so that ids hold no padding."""
    unknown_ids: tuple[int, ...] = ()
    """Ids that are no text: those that the tokenizer has no token for, as embeddings may be larger, and those that stand for parts
    of pictures. Never drawn."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Ids that are not drawn as the first token of a turn."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that are never completed."""
    no_repeat_ngram_size: int = 0
    """No n-gram of this size occurs twice; 0: no limit."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end a completion; the one that ended it belongs to the completion and is trained."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion; they belong to it."""
    max_turn_length: int | None = None
    """Tokens of one turn at most; a turn that this limit ends is the completion's last. None: `max_new_tokens` alone."""
    seed: int = 0
    """The run's seed."""
    step: tuple[int, ...] = (0,)
    """Part of the key of the random numbers: tells this round of sampling from others."""
    greedy: bool = False
    """Take the most probable token; the random numbers are not used."""

    def __post_init__(self) -> None:
        infinity, fewest = float("inf"), f"between 0 and max_new_tokens, {self.max_new_tokens}"
        greedily = "positive; for the most probable token, sample greedily"
        for name, is_right, expected in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("max_turn_length", self.max_turn_length is None or self.max_turn_length >= 1, "at least 1"),
            ("temperature", 0.0 < self.temperature < infinity, greedily),
            ("top_p", 0.0 <= self.top_p <= 1.0, "between 0 and 1; 1 for all tokens"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1; 0 for all tokens"),
            ("top_k", self.top_k >= 0, "a number of tokens; 0 for all"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < infinity, "positive; 1 for none"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= self.max_new_tokens, fewest),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "0 or more"),
        ):
            if not is_right:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be {expected}.")
        if "" in self.stop_strings:
            raise ConfigError(
                f"stop_strings is {list(self.stop_strings)!r}, with an empty text, which ends a completion after one token. Leave it out."
            )

    @property
    def longest_turn(self) -> int:
        """Tokens of a turn at most."""
        return min(self.max_new_tokens, self.max_turn_length or self.max_new_tokens)

    @property
    def never_drawn(self) -> set[int]:
        """Ids that are drawn nowhere in a completion."""
        padding = () if self.padding_id is None else (self.padding_id,)
        singles = (word[0] for word in self.bad_words_ids if len(word) == 1)
        return {*self.suppress_tokens, *self.unknown_ids, *padding, *singles}

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens cannot be drawn although the policy gives them probability (top-k, top-p, min-p)."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def changes_distribution(self) -> bool:
        """Whether tokens are drawn from another distribution than the policy's own at this temperature."""
        return bool(
            self.is_truncated
            or self.repetition_penalty != 1.0
            or self.min_new_tokens
            or self.suppress_tokens
            or self.padding_id is not None
            or self.unknown_ids
            or self.begin_suppress_tokens
            or self.bad_words_ids
            or self.no_repeat_ngram_size
        )


@dataclass(frozen=True)
class GenerationOptions:
    """The part of `generation_kwargs` that is not a field of GRPOConfig."""

    min_new_tokens: int = 0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram_size: int = 0
    stop_strings: tuple[str, ...] = ()
    eos_token_id: tuple[int, ...] = ()
    """More ids that end a completion."""


def generation_options(
    given: Mapping[str, object] | None,
    own: Mapping[str, float | None],
    setting: str = "generation_kwargs",
    decided: Mapping[str, object] | None = None,
) -> GenerationOptions:
    """Read `generation_kwargs`.

    Args:
        given: the user's options.
        own: values of GRPOConfig's own sampling fields, by field name; a different value in `given` is a conflict.
        setting: name of the options in errors.
        decided: values of this run for options that GRPO decides itself; the same value in `given` changes nothing.

    Raises:
        ConfigError: an unknown option, one that GRPO decides itself, or one that contradicts a field.
    """
    known = {f.name for f in fields(GenerationOptions)}
    options: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if name in known:
            options[name] = _normalised(name, value)
        elif name in OWN_NAMES:
            ours = OWN_NAMES[name]
            if value != own[ours]:
                raise ConfigError(
                    f"{setting} sets {name}={value!r} and GRPOConfig has {ours}={own[ours]!r}. Set it in one place: "
                    f"{ours}={value!r}."
                )
        elif name in OF_BEAMS or (name == "num_beams" and value != 1):
            raise ConfigError(
                f"{setting} sets {name}={value!r}, which acts on beams. They search for likely texts, where GRPO needs completions "
                "that are drawn from the policy. Leave it out."
            )
        elif name in FIXED:
            if value not in (FIXED[name], (decided or {}).get(name)):
                raise ConfigError(
                    f"{setting} sets {name}={value!r}, which GRPO decides itself. Leave it out."
                )
        else:
            close = difflib.get_close_matches(name, [*known, *OWN_NAMES], n=1)
            takes = f"It takes {', '.join(sorted(known))}; {', '.join(sorted(set(OWN_NAMES.values())))} are fields of GRPOConfig."
            hint = f"Did you mean {close[0]!r}?" if close else takes
            raise ConfigError(f"{setting} has {name!r}, which the sampler does not know. {hint}")
    return GenerationOptions(**options)


def _normalised(name: str, value: Any) -> int | tuple[object, ...]:
    """Return a hashable value: a number for the two limits, a tuple for everything else."""
    if name == "bad_words_ids":
        return tuple(tuple(int(i) for i in word) for word in value)
    if name in ("min_new_tokens", "no_repeat_ngram_size"):
        return int(value or 0)
    return (value,) if isinstance(value, str | int) else tuple(value or ())
