"""One reducer: what a token weighs in the loss of an optimizer step.

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

n_i: tokens of completion i in the loss; N: completions of the step; P: prompts of the step; L_max: the limit of new
tokens; M: micro-batches of the step over all processes. bnpo is local by definition: it changes with the cut.

A completion that is masked because it was truncated has no loss. What it does to the denominators is a choice:

    sequences                it counts as a completion, its tokens do not count (TRL)
    tokens_and_sequences     it counts as if it were there
    none                     it counts nowhere
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from covey.types import ReductionName, TruncatedCount
from covey.update.samples import Sample


@dataclass(frozen=True)
class Reduction:
    """How the token losses of an optimizer step are summed."""

    name: ReductionName
    """One of the names above."""
    max_length: int
    """The limit of new tokens, L_max."""
    truncated: TruncatedCount = "sequences"
    """What masked completions count for."""


@dataclass(frozen=True)
class Totals:
    """What an optimizer step holds, over all micro-batches and processes."""

    tokens: int = 0
    """Tokens that count."""
    sequences: int = 0
    """Completions that count."""
    micro_batches: int = 0
    prompts: Mapping[Hashable, int] = field(default_factory=dict)
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
    def of(cls, samples: Sequence[Sample], truncated: TruncatedCount = "sequences") -> Totals:
        """The totals of one micro-batch."""
        counted = [s for s in samples if s.in_loss or truncated != "none"]
        prompts: dict[Hashable, int] = {}
        for s in counted:
            prompts[s.prompt.seed_key] = prompts.get(s.prompt.seed_key, 0) + counted_tokens(s, truncated)
        return cls(sum(prompts.values()), len(counted), 1, prompts)


def counted_tokens(sample: Sample, truncated: TruncatedCount) -> int:
    """Tokens of a completion that count in denominators."""
    if sample.in_loss or truncated == "tokens_and_sequences":
        return sum(sample.completion.loss_mask)
    return 0


def row_weights(reduction: Reduction, samples: Sequence[Sample], totals: Totals) -> list[float]:
    """What a token of each completion of one micro-batch weighs; 0 where no token enters the loss.

    Args:
        samples: the completions of the micro-batch.
        totals: of the whole optimizer step.
    """
    local = Totals.of(samples, reduction.truncated).tokens
    weight = {
        "grpo": lambda s: 1 / (totals.sequences * s.num_loss_tokens),
        "dr_grpo": lambda s: 1 / (totals.sequences * reduction.max_length),
        "dapo": lambda s: 1 / totals.tokens,
        "bnpo": lambda s: 1 / (totals.micro_batches * local),
        "prompt_mean": lambda s: 1 / (len(totals.prompts) * totals.prompts[s.prompt.seed_key]),
        "luspo": lambda s: 1 / totals.sequences,
    }[reduction.name]
    return [weight(s) if s.num_loss_tokens else 0.0 for s in samples]
