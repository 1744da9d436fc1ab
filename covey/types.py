"""The nouns that travel between the three steps.

    sample   → Group          one prompt and its completions, in order
    score    → ScoredGroup    the same group, what every reward gave, and what the group says about each completion
    update   reads ScoredGroups

All of them are plain values: no tensors, no model, nothing to close. Derived facts are properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

Message = dict[str, Any]
"""One turn of a chat: at least `role` and `content`."""

PromptContent = str | list[Message]
"""A prompt as the dataset holds it: text, or the messages of a chat."""

FinishReason = Literal["stop", "stop_string", "length"]
"""Why a completion ended: an end-of-sequence id, a stop string, or the limit of new tokens."""

Status = Literal["value", "not_applicable", "gated", "failed"]
"""What a reward says of one completion.

`value`: a number. `not_applicable`: the reward returned None and drops out of the sum. `gated`: a condition it depends on
did not hold, so it counts as 0 and was not run. `failed`: our fault, not the policy's; the whole sample is left out.
"""


# --- choices: what the settings of the three steps may say. GRPOConfig is checked against them, the steps read them.

TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "continue_final_message",
        "conversation",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    }
)
"""Arguments of a chat template that the run says itself, so that no user can."""

Overlong = Literal["truncate", "drop", "error"]
"""A prompt above the limit: cut its content, drop the row, or raise."""

AdvantageEstimator = Literal["grpo", "rloo", "leave_one_out", "reinforce_pp", "maxrl", "opo", "pass_at_k"]
"""The baseline and scale of the advantages; see `covey.score.estimators`."""

Aggregation = Literal["sum_then_normalize", "normalize_then_sum"]
"""The order in which several rewards become one advantage."""

Scale = Literal["group", "batch", "none"]
"""The deviation that advantages are divided by."""

LossType = Literal[
    "grpo",
    "dr_grpo",
    "dapo",
    "bnpo",
    "prompt_mean",
    "luspo",
    "gmpo",
    "cispo",
    "sapo",
    "vespo",
    "dppo",
    "clip_cov",
    "kl_cov",
]
"""The loss of a token, together with the way token losses are summed."""

ReductionName = Literal["grpo", "dr_grpo", "dapo", "bnpo", "prompt_mean", "luspo"]
"""The way token losses are summed; see `covey.update.reduction`."""

RatioLevel = Literal["token", "sequence", "sequence_token"]
"""The ratio r of each token, of its completion (GSPO), or of both (GSPO-token)."""

CispoBound = Literal["absolute", "relative"]
"""CISPO caps weights at `epsilon_high` itself, or at 1 + `epsilon_high`."""

KlEstimator = Literal["k1", "k2", "k3"]
"""The estimator of the KL divergence to the reference; see `covey.update.kl`."""

CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""The unit that is weighed for what the sampler computed differently, and what happens beyond the cap."""

TruncatedCount = Literal["sequences", "tokens_and_sequences", "none"]
"""What masked completions count as in the denominators of the loss."""


class Gather(Protocol):
    """Returns every rank's value in rank order. Collective: every rank calls it equally often."""

    def __call__(self, value: T, /) -> list[T]: ...


def message_text(message: Mapping[str, object]) -> str:
    """Return the text of a message: its content, or the text parts of a content in parts; empty where it has none."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def prefill_of(prompt: PromptContent) -> str:
    """Return the start of the answer that a prompt already holds: the text of a closing assistant message."""
    if isinstance(prompt, str) or not prompt or prompt[-1].get("role") != "assistant":
        return ""
    return message_text(prompt[-1])


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready to be sampled from."""

    content: PromptContent
    """Text or messages, as the dataset holds them."""
    ids: tuple[int, ...]
    """Token ids that the policy continues. Made once; from here on ids travel, never text."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns, untouched."""
    row: int = 0
    """Position of the row in its dataset (for a stream: how many rows came before it)."""
    seed_key: tuple[int, ...] = (0,)
    """What tells this prompt from others to the random numbers, together with the run's seed and the step."""
    num_cut_tokens: int = 0
    """Tokens that `max_prompt_length` cut away."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.content, str)


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that the policy wrote after a prompt, with their log-probabilities."""

    ids: tuple[int, ...]
    """Token ids without padding; an end-of-sequence id, where one ended it, is the last."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id under the distribution it was drawn from. Same length as `ids`."""
    text: str
    """Decoded without end and padding tokens."""
    finish: FinishReason
    """Why it ended."""
    written: tuple[bool, ...] | None = None
    """Which ids the policy wrote; None: all of them (nothing answered in between)."""
    policy_logprobs: tuple[float, ...] | None = None
    """The same under the policy's own distribution at the sampling temperature, where the sampler drew from another one
    (top-k, a penalty, suppressed tokens); None: it did not."""

    @property
    def is_truncated(self) -> bool:
        return self.finish == "length"

    @property
    def plain_logprobs(self) -> tuple[float, ...]:
        """Log-probabilities under the policy's own distribution at the sampling temperature, as the sampler saw it."""
        return self.logprobs if self.policy_logprobs is None else self.policy_logprobs

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        return self.written if self.written is not None else (True,) * len(self.ids)


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt and its completions, in order: the unit that is sampled, scored, filtered and saved."""

    prompt: Prompt
    completions: tuple[Completion, ...]

    def contents(self) -> list[PromptContent]:
        """Return what rewards see of each completion: text after a text prompt, one assistant message after a chat."""
        if not self.prompt.is_chat:
            return [c.text for c in self.completions]
        prefill = prefill_of(self.prompt.content)
        return [[{"role": "assistant", "content": prefill + c.text}] for c in self.completions]


@dataclass(frozen=True, slots=True)
class Score:
    """The value that one reward gave one completion, or why there is none."""

    value: float | None
    status: Status = "value"
    error: str | None = None
    """What went wrong, when `status` is `failed`, or when the value stands for a fault (a time-out that scores 0)."""

    def __post_init__(self) -> None:
        assert (self.value is not None) == (self.status == "value"), (self.value, self.status)

    @property
    def counted(self) -> float | None:
        """The number that enters sums and spreads, before its weight: 0 where gated, None where there is none."""
        return 0.0 if self.status == "gated" else self.value


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group, its scores, and one total and one advantage per completion."""

    group: Group
    scores: Mapping[str, tuple[Score, ...]]
    """By reward name; each tuple has one score per completion."""
    totals: tuple[float | None, ...]
    """Weighted sum of the scores; None where nothing scored the completion, or a reward failed on it."""
    advantages: tuple[float, ...]
    """What the group says about each completion; exactly 0 where the total is None. Never overwrites the reward."""
    extras: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Columns that rewards added through `log_extra`."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By reward name: what its scores were multiplied with in the totals."""
    penalties: tuple[float, ...] = ()
    """Taken off each total before advantages are worked out; empty: nothing."""
