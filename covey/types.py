"""The nouns that travel between the three steps.

    sample   → Group          one prompt and its completions, in order
    score    → ScoredGroup    the same group, what every reward gave, and what the group says about each completion
    update   reads ScoredGroups

All of them are plain values: no tensors, no model, nothing to close. Derived facts are properties.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

Message = dict[str, Any]
"""One turn of a chat: at least `role` and `content`."""

PromptContent = str | list[Message]
"""A prompt as the dataset holds it: text, or the messages of a chat."""

FinishReason = Literal["stop", "stop_string", "length", "turns", "tool", "environment", "deadline", "failed"]
"""Why a completion ended: an end-of-sequence id, a stop string, or the limit of new tokens. With tools also: the limit of
turns with a call left unanswered, a tool that ends the episode, an environment that is done, the time limit of the
episode, or an environment or tool that failed so that the sample has no score."""

TRUNCATED: frozenset[FinishReason] = frozenset({"length", "turns", "deadline"})
"""Ends that a limit made, not the policy."""

CallStatus = Literal["ok", "raised", "timeout", "malformed", "unknown", "invalid", "not_run"]
"""What became of a tool call: a result; an exception; its deadline; text that is no call; no tool of that name; arguments
that do not fit; or not run, because the completion ended first."""

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

GroupAllocation = Literal["equal", "grow"]
"""The size of groups: the same for all, or by what their first completions earned; see `covey.score.allocation`."""

CreditAssignment = Literal["trajectory", "turn"]
"""One advantage for a whole completion, or one for each of its turns; see `covey.score.credit`."""

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

CurriculumKind = Literal["exact", "biased"]
TaskWeights = Literal["equal"]
"""Prompts are drawn by what they are expected to teach, and weighed so that the gradient is on average that of all prompts; or not
weighed, which trains on another mixture of prompts."""

CispoBound = Literal["absolute", "relative"]
"""CISPO caps weights at `epsilon_high` itself, or at 1 + `epsilon_high`."""

KlEstimator = Literal["k1", "k2", "k3"]
"""The estimator of the KL divergence to the reference; see `covey.update.kl`."""

CorrectionMode = Literal[
    "token_truncate",
    "token_mask",
    "token_m2",
    "sequence_truncate",
    "sequence_mask",
    "geometric_truncate",
    "geometric_mask",
]
"""The unit that is weighed for what the sampler computed differently, and what happens beyond the cap."""

TruncatedCount = Literal["sequences", "tokens_and_sequences", "none"]
"""What masked completions count as in the denominators of the loss."""

WeightRoute = Literal["auto", "files", "adapter"]
"""How weights travel to servers: "auto" takes the adapter alone where the policy trains one that every server takes."""


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


def is_picture(part: object) -> bool:
    """Return whether a part of a content stands for a picture."""
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def parts_of(message: Mapping[str, Any]) -> Sequence[Any]:
    """Return the parts of a message's content; none of a content that is text."""
    content = message.get("content")
    return content if isinstance(content, list | tuple) else ()


def prefill_of(prompt: PromptContent) -> str:
    """Return the start of the answer that a prompt already holds: the text of a closing assistant message."""
    if isinstance(prompt, str) or not prompt or prompt[-1].get("role") != "assistant":
        return ""
    return message_text(prompt[-1])


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A picture of a prompt: where its pixels come from, never the pixels."""

    source: Any
    """Encoded bytes, an absolute path, or the image or array that the dataset holds."""
    digest: str
    """SHA-256 of the encoded bytes; where there are none, of mode, size and pixels."""
    size: tuple[int, int]
    """Width and height in pixels, upright."""

    def __repr__(self) -> str:
        """Return what a text shows in its place: size, and the beginning of the digest."""
        return f"[picture {self.size[0]}×{self.size[1]} {self.digest[:4]}]"


PromptKey = tuple[tuple[int, ...], tuple[str, ...]]
"""What a policy reads of a prompt: its ids, and the digests of its pictures."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready to be sampled from."""

    content: PromptContent
    """Text or messages, as the dataset holds them. Where it shows pictures, all contents are in parts, and each block of a picture
    holds its `Picture` under `image`."""
    ids: tuple[int, ...]
    """Token ids that the policy continues. Made once; from here on ids travel, never text."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns, untouched; but a `Picture` stands for each picture of the columns `images` and `image`."""
    row: int = 0
    """Position of the row in its dataset (for a stream: how many rows came before it)."""
    seed_key: tuple[int, ...] = (0,)
    """What tells this prompt from others to the random numbers, together with the run's seed and the step."""
    num_cut_tokens: int = 0
    """Tokens that `max_prompt_length` cut away."""
    pictures: tuple[Picture, ...] = ()
    """In the order in which their tokens stand in `ids`."""
    first: int = 0
    """Number of its first completion in a call of the sampler: those before it were sampled in another call."""
    weight: float = 1.0
    """Factor of its completions in the loss: below 1 where it was drawn more often than the others, above where less."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.content, str)

    @property
    def key(self) -> PromptKey:
        """Return what the policy reads: ids and pictures. Prompts of one key are one prompt to it."""
        return self.ids, tuple(picture.digest for picture in self.pictures)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the policy made, and what came back."""

    name: str
    """As the policy wrote it; empty where the text names none."""
    arguments: Mapping[str, Any]
    id: str
    """Unique within the completion."""
    status: CallStatus
    result: str
    """The text that the policy read, or would have read."""
    seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        return self.status not in ("ok", "not_run")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy and what answered it, as places in the ids of its completion."""

    start: int
    """Its first sampled id."""
    stop: int
    """One past its last sampled id."""
    end: int
    """One past the last id that answered it; `stop` where nothing did."""
    calls: tuple[ToolCall, ...] = ()
    reward: float | None = None
    """What the environment said of this turn."""
    seconds: float = 0.0
    """Time that its calls took."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that the policy wrote after a prompt, with their log-probabilities."""

    ids: tuple[int, ...]
    """Token ids without padding; an end-of-sequence id, where one ended it, is the last."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id under the distribution it was drawn from; 0 for ids that it did not write.
    Same length as `ids`."""
    text: str
    """Decoded without end and padding tokens."""
    finish: FinishReason
    """Why it ended."""
    written: tuple[bool, ...] | None = None
    """Which ids the policy wrote; None: all of them (nothing answered in between)."""
    policy_logprobs: tuple[float, ...] | None = None
    """The same under the policy's own distribution at the sampling temperature, where the sampler drew from another one
    (top-k, a penalty, suppressed tokens); None: it did not."""
    turns: tuple[Turn, ...] | None = None
    """The turns of an episode with tools, in order; None: a completion of one turn, without tools."""
    messages: tuple[Message, ...] | None = None
    """What rewards see of an episode: assistant and tool messages, parsed. None: one assistant message with `text`."""
    own_prompt: PromptContent | None = None
    """The prompt's content for this completion, where its environment started it differently from the row."""
    opening: int = 0
    """Ids at the beginning that belong to this completion's own prompt: its siblings have others there."""
    version: int | None = None
    """Optimizer steps that the oldest weights had seen that it was drawn with; None: those of its rollout, which did not change
    meanwhile."""

    @property
    def is_truncated(self) -> bool:
        return self.finish in TRUNCATED

    @property
    def num_written(self) -> int:
        """Tokens that the policy wrote; those that a tool or template put between are not counted."""
        return len(self.ids) if self.written is None else sum(self.written)

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

    def prompts(self) -> list[PromptContent]:
        """Return what each completion answers: the prompt's content, or its own where an environment began it differently."""
        return [self.prompt.content if c.own_prompt is None else c.own_prompt for c in self.completions]

    def contents(self) -> list[PromptContent]:
        """Return what rewards see of each completion: text after a text prompt, messages after a chat."""
        if not self.prompt.is_chat:
            return [c.text for c in self.completions]
        prefill = prefill_of(self.prompt.content)
        return [
            [{"role": "assistant", "content": prefill + c.text}]
            if c.messages is None
            else copy.deepcopy(list(c.messages))
            for c in self.completions
        ]


@dataclass(frozen=True, slots=True)
class Score:
    """The value that one reward gave one completion, or why there is none."""

    value: float | None
    status: Status = "value"
    error: str | None = None
    """What went wrong, when `status` is `failed`, or when the value stands for a fault (a time-out that scores 0)."""
    turns: tuple[float, ...] | None = None
    """The value by turns, where the reward said it so; `value` is their sum. None: it counts for the last turn."""

    def __post_init__(self) -> None:
        assert (self.value is not None) == (self.status == "value"), (self.value, self.status)

    @property
    def counted(self) -> float | None:
        """The number that enters sums and spreads, before its weight: 0 where gated, None where there is none."""
        return 0.0 if self.status == "gated" else self.value


@dataclass(frozen=True, slots=True)
class Growth:
    """The chance that made the size of a group."""

    first: int
    """Completions that decided whether it grows: it does not where all of them succeed."""
    assured: int
    """Completions that it would have had whatever its first ones had earned."""
    stops: tuple[bool, ...]
    """Which of all its completions succeeded."""


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
    turn_advantages: tuple[tuple[float, ...], ...] | None = None
    """One advantage per turn of each completion, with `credit_assignment="turn"`; None: one for the whole completion."""
    growth: Growth | None = None
    """With `group_allocation="grow"`; None: all groups are of one size."""
    shares: tuple[float, ...] = ()
    """Weights of the completions in sums over them; empty: all weigh 1. Over a group they sum to `num_generations`."""
