"""The norm of the fast path is PyTorch's own, to rounding, also where epsilon is most of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from covey.kernels.norms import Norm, normed


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 1e4])
def test_rows_are_divided_by_their_root_mean_square(epsilon, size):
    generator = torch.Generator().manual_seed(0)
    rows = size * torch.randn(5, 3, 40, generator=generator)
    rows[0] = 0
    norm = Norm(torch.rand(40, generator=generator), epsilon)
    expected = F.rms_norm(rows.double(), (40,), norm.weight.double(), epsilon)
    torch.testing.assert_close(normed(rows, norm).double(), expected, rtol=1e-6, atol=1e-35)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    rows, norm = torch.randn(33, 576), Norm(torch.rand(576), 1e-5)
    together = normed(rows, norm)
    for number in range(33):
        assert torch.equal(normed(rows[number : number + 1], norm)[0], together[number])
