"""KL-Cov: the few tokens that drive the entropy down most are held near the old policy (arXiv:2505.22617, eq. 12).

    L_{i,t} = -r A + c |l - o| for the chosen tokens, -r A elsewhere

No ratio is clipped. See `covey.update.token_selection` for the choice (`covariance_share` of the tokens); c is `kl_cov_coef`.
Before the policy has moved l = o and the term has no gradient: it acts where a sample is trained on more than once, or in
more than one optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.update.ratios import ratio
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class KlCov:
    """KL-Cov; formula and paper at the head of this file."""

    coef: float = 1.0
    needs_every_row: ClassVar[bool] = True

    def __call__(self, terms: LossTerms) -> TokenLosses:
        assert terms.is_covariant is not None, "chosen by Updater.prepare"
        penalty = self.coef * (terms.logprobs - terms.old_logprobs).abs() * terms.is_covariant
        policy = -ratio(terms.logprobs, terms.old_logprobs) * terms.advantages
        return policy + penalty, {"covariance/chosen_share": terms.mean(terms.is_covariant)}
