"""LUSPO is GSPO's loss with another reduction: every token weighs 1/N, so a completion weighs its length."""

import pytest

from covey.update.losses.clipped import Clip, Clipped
from covey.update.losses.luspo import Luspo
from tests.terms import terms

CLIP = Clip(2e-3, 2.5e-3)


def test_token_losses_are_those_of_gspo():
    t = terms([[0.2, -0.1, 0.05], [0.3]], [1.0, -1.0])
    losses, _ = Luspo(CLIP)(t)
    assert losses.tolist() == Clipped(CLIP, "sequence")(t)[0].tolist()
    assert losses.tolist() == pytest.approx([-1.0025] * 3 + [1.349859], abs=1e-6)
