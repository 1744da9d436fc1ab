"""LUSPO: GSPO whose completions weigh as much as they are long (arXiv:2602.05261).

    L_i = -min( s_i A_i, clip(s_i, 1 - ε_low, 1 + ε_high) A_i )        summed as (1/N) Σ_i n_i L_i

The loss of a token is that of its completion, and the reduction weighs every token with 1/N; so the divergence to the
reference, which is a loss per token, is summed the same way. The paper's bounds are 2e-3 and 2.5e-3.

TRL: loss_type="luspo"; importance_sampling_level may be "sequence", which it always is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from covey.update.losses.clipped import Clip, Clipped
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class Luspo:
    """LUSPO; formula and paper at the head of this file."""

    clip: Clip = field(default_factory=Clip)
    needs_every_row: ClassVar[bool] = False

    def __call__(self, terms: LossTerms) -> TokenLosses:
        return Clipped(self.clip, "sequence")(terms)
