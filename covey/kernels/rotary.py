"""Rotary positions (arXiv:2104.09864): pairs of numbers as complex numbers, times unit factors."""

from __future__ import annotations

import torch
from torch import Tensor


def rotation_table(cos: Tensor, sin: Tensor, turned: int, head_dim: int) -> Tensor:
    """Return the factor of each pair of a head at each position, shape (positions, head_dim / 2), complex.

    Args:
        cos, sin: of each angle, shape (positions, angles). Models give the angles once, twice over, or each twice.
        turned: numbers of a head that are rotated, the first ones; the others have factor 1.
    """
    pairs = turned // 2
    is_doubled = cos.shape[1] > pairs > 1 and torch.equal(cos[:, ::2], cos[:, 1::2])
    step = 2 if is_doubled else 1
    factors = torch.complex(cos[:, ::step].float(), sin[:, ::step].float())[:, :pairs]
    rest = factors.new_ones(len(factors), head_dim // 2 - pairs)
    return torch.cat([factors, rest], 1) if rest.shape[1] else factors.contiguous()


def rotated(heads: Tensor, factors: Tensor, turned: int | None) -> Tensor:
    """Return heads whose pairs were multiplied with their factors; `heads` may be written to.

    Args:
        heads: shape (rows, heads, head_dim), float32.
        factors: shape (rows, heads, head_dim / 2), complex.
        turned: how many numbers of a head are rotated, where the two of a pair are half of that apart; None: the two of
            every pair are neighbours.
    """
    if turned is None:
        torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(factors)
        return heads
    turning, rest = heads[..., :turned], heads[..., turned:]
    result = torch.complex(*turning.chunk(2, -1)) * factors[..., : turned // 2]
    if not rest.shape[-1]:
        return torch.cat([result.real, result.imag], -1)
    # All factors of what is not rotated are the same real number.
    return torch.cat([result.real, result.imag, rest * factors[..., -1:].real], -1)
