"""Clip-Cov: the clipped loss without the few tokens that drive the entropy down most (arXiv:2505.22617, eq. 11).

    L_{i,t} = 0 for the chosen tokens, the clipped loss elsewhere

The entropy falls with the covariance of advantage and log-probability; see `covey.update.token_selection` for the choice
(`covariance_share` of the tokens, between `covariance_low` and `covariance_high`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from covey.update.losses.clipped import Clip, Clipped
from covey.update.terms import LossTerms, TokenLosses


@dataclass(frozen=True)
class ClipCov:
    """Clip-Cov; formula and paper at the head of this file."""

    clip: Clip = field(default_factory=Clip)
    needs_every_row: ClassVar[bool] = True

    def __call__(self, terms: LossTerms) -> TokenLosses:
        assert terms.is_covariant is not None, "chosen by Updater.prepare"
        losses, metrics = Clipped(self.clip)(terms)
        metrics["covariance/chosen_share"] = terms.mean(terms.is_covariant)
        return torch.where(terms.is_covariant, torch.zeros_like(losses), losses), metrics
