"""The losses, one file each: what a token contributes before the reduction.

Each file gives the formula, the paper, and where it departs from it. A loss is a frozen value with the settings that act
on it, called with `covey.update.terms.LossTerms`; it returns the loss of each token and metrics. `needs_every_row` says
whether completions of advantage 0 have a loss too, or change the loss of others; where not, they are not computed.
"""

from covey.update.losses.cispo import Cispo
from covey.update.losses.clip_cov import ClipCov
from covey.update.losses.clipped import Clip, Clipped
from covey.update.losses.dppo import Dppo
from covey.update.losses.gmpo import Gmpo
from covey.update.losses.kl_cov import KlCov
from covey.update.losses.luspo import Luspo
from covey.update.losses.sapo import Sapo
from covey.update.losses.vespo import Vespo

__all__ = ["Cispo", "Clip", "ClipCov", "Clipped", "Dppo", "Gmpo", "KlCov", "Luspo", "Sapo", "Vespo"]
