"""Weights of tokens in the loss of an optimizer step.

Every loss is a weighted sum of token losses, `Σ w_i Σ_t x_{i,t}`, and the losses differ in `w_i` alone; a loss per
completion is one that its tokens share. The divergence and the entropy bonus have the same weights. They are worked out
once per optimizer step, from totals over all micro-batches and processes, so the gradient does not depend on how the step
is cut into micro-batches.

    grpo          1 / (N n_i)       mean over completions of the mean over tokens           arXiv:2402.03300, eq. 3
    dr_grpo       1 / (N L_max)     sum over tokens over a constant                         arXiv:2503.20783, section 3.2
    dapo          1 / Σ n           mean over all tokens of the step                        arXiv:2503.14476, eq. 8
    bnpo          1 / (M Σ_mb n)    mean over micro-batches of the mean over their tokens
    prompt_mean   1 / (P Σ_p n)     mean over prompts of the mean over their tokens
    luspo         1 / N             mean over completions of the sum over tokens            arXiv:2602.05261

Where groups are of different sizes, a completion counts as many times as its share says (`covey.score.allocation`): in its own
weight, and in every count.

n_i: tokens of completion i in the loss; N: completions of the step; P: prompts of the step; L_max: the limit of new
tokens; M: micro-batches of the step over all processes. bnpo is local by definition: it changes with the cut.

A prompt that was drawn more or less often than the others brings a weight u (`Prompt.weight`), which makes w_i u w_i. Sums of tokens
count u n in place of n, for they are compared with sums that are weighed; N, M and P are counts that the draw does not move.

A completion that is masked because it was truncated has no loss. What it does to the denominators is a choice:

    sequences                it counts as a completion, its tokens do not count (TRL)
    tokens_and_sequences     it counts as if it were there
    none                     it counts nowhere
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from covey.types import ReductionName, TruncatedCount


@dataclass(frozen=True)
class Reduction:
    """Rule by which the token losses of an optimizer step are summed."""

    name: ReductionName
    max_length: int
    """The limit of new tokens, L_max."""
    truncated: TruncatedCount = "sequences"
    """The part of masked completions in the denominators."""


@dataclass(frozen=True)
class Totals:
    """Counts of an optimizer step, over all micro-batches and processes."""

    tokens: float = 0
    """Tokens that count, times the weights and shares of their completions."""
    sequences: float = 0
    """Completions that count."""
    micro_batches: int = 0
    prompts: Mapping[Hashable, float] = field(default_factory=dict)
    """Tokens that count, by prompt."""

    def __add__(self, other: Totals) -> Totals:
        prompts = dict(self.prompts)
        for prompt, tokens in other.prompts.items():
            prompts[prompt] = prompts.get(prompt, 0) + tokens
        return Totals(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.micro_batches + other.micro_batches,
            prompts,
        )

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        in_loss: Sequence[bool],
        prompts: Sequence[Hashable],
        truncated: TruncatedCount = "sequences",
        draws: Sequence[float] | None = None,
        shares: Sequence[float] | None = None,
    ) -> Totals:
        """Count one micro-batch, whose masked completions count as `truncated` says; see `row_weights` for the rest."""
        tokens, sequences, ones = dict[Hashable, float](), 0.0, [1.0] * len(lengths)
        each = zip(lengths, in_loss, prompts, draws or ones, shares or ones, strict=True)
        for length, is_in, prompt, draw, share in each:
            if is_in or truncated != "none":
                counts = is_in or truncated == "tokens_and_sequences"
                tokens[prompt] = tokens.get(prompt, 0) + (draw * share * length if counts else 0)
                sequences += share
        return cls(sum(tokens.values()), sequences, 1, tokens)


def row_weights(
    reduction: Reduction,
    lengths: Sequence[int],
    in_loss: Sequence[bool],
    prompts: Sequence[Hashable],
    totals: Totals,
    draws: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
) -> list[float]:
    """Compute the weight of a token of each completion of one micro-batch; 0 where no token enters the loss.

    Args:
        lengths: tokens of each completion that the policy wrote, n_i.
        in_loss: False for completions that are masked.
        prompts: a key of each completion's prompt.
        totals: of the whole optimizer step.
        draws: the weight of each completion's prompt; None: 1.
        shares: what each completion counts; None: 1.
    """
    rows = len(lengths)
    ones = [1.0] * rows
    match reduction.name:
        case "grpo":
            divisors: Sequence[float] = [totals.sequences * n for n in lengths]
        case "dr_grpo":
            divisors = [totals.sequences * reduction.max_length] * rows
        case "dapo":
            divisors = [totals.tokens] * rows
        case "bnpo":
            local = Totals.of(lengths, in_loss, prompts, reduction.truncated, draws, shares).tokens
            divisors = [totals.micro_batches * local] * rows
        case "prompt_mean":
            own = [totals.prompts.get(p, 0) / w for p, w in zip(prompts, draws or ones, strict=True)]
            divisors = [len(totals.prompts) * tokens for tokens in own]
        case "luspo":
            divisors = [totals.sequences] * rows
    each = zip(draws or ones, shares or ones, divisors, lengths, in_loss, strict=True)
    return [draw * share / d if is_in and n else 0.0 for draw, share, d, n, is_in in each]
