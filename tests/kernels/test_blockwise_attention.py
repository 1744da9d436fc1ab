"""Attention by blocks equals soft-max over the whole matrix of scores, with everything masked that a token must not see."""

import pytest
import torch

import covey.kernels.blockwise_attention as module
from covey.kernels.blockwise_attention import PackedSection, blocks, blockwise_attention
from covey.update.packed_attention import fused_attention

SECTIONS = {
    "one group": (PackedSection(0, 5, (4, 4, 4)),),
    "ragged, one of them empty": (PackedSection(0, 3, (1, 0, 7)), PackedSection(11, 6, (2, 5))),
    "a prompt alone": (PackedSection(0, 9, ()),),
    "spans seen both ways": (
        PackedSection(0, 9, (2, 3), ((1, 5), (5, 8))),
        PackedSection(14, 4, (3, 0), ((0, 4),)),
        PackedSection(21, 3, (2,)),
    ),
}


def visible(sections):
    """Which token sees which, written out pair by pair. Shape (tokens, tokens), bool."""
    total = sections[-1].stop
    sees = torch.zeros(total, total, dtype=torch.bool)
    for s in sections:
        owner = [0] * s.prompt + [n + 1 for n, length in enumerate(s.inputs) for _ in range(length)]
        for i, mine in enumerate(owner):
            for j in range(i + 1):
                sees[s.start + i, s.start + j] = owner[j] in (0, mine)
        for first, stop in s.spans:
            sees[s.start + first : s.start + stop, s.start + first : s.start + stop] = True
    return sees


def dense(query, key, value, sections, scale):
    """The slow way: every pair of the row."""
    repeats = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(repeats, 0), value.repeat_interleave(repeats, 0)
    scores = (query @ key.transpose(1, 2) * scale).masked_fill(~visible(sections), -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1)


def tensors(sections, dtype, key_heads=2, repeats=3, width=8, value_width=5):
    torch.manual_seed(0)
    sizes = ((key_heads * repeats, width), (key_heads, width), (key_heads, value_width))
    return [torch.randn(h, sections[-1].stop, w, dtype=dtype, requires_grad=True) for h, w in sizes]


def assert_equals_the_whole_matrix(attention, sections):
    """In values and gradients."""
    given = tensors(sections, torch.float64)
    out, want = attention(*given), dense(*given, sections, 0.3)
    torch.testing.assert_close(out, want)
    direction = torch.randn_like(want)
    got = torch.autograd.grad(out, given, direction)
    for mine, exact in zip(got, torch.autograd.grad(want, given, direction), strict=True):
        torch.testing.assert_close(mine, exact)


@pytest.mark.parametrize("size", [1, 3, 256])
@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_blocks_equal_the_whole_matrix(monkeypatch, sections, size):
    monkeypatch.setattr(module, "BLOCK", size)
    assert_equals_the_whole_matrix(lambda *given: blockwise_attention(*given, sections, 0.3), sections)


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_the_way_of_other_devices_is_the_same(sections):
    def fused(*given):
        return fused_attention(*(x[None] for x in given), sections, 0.3, 0.0)[0]

    assert_equals_the_whole_matrix(fused, sections)


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_half_precision_stays_near(sections):
    exact = tensors(sections, torch.float64)
    half = [x.detach().bfloat16().requires_grad_() for x in exact]
    out, want = blockwise_attention(*half, sections, 0.3), dense(*exact, sections, 0.3)
    assert (out.double() - want).norm() < 0.01 * want.norm()
    got, right = torch.autograd.grad(out.sum(), half), torch.autograd.grad(want.sum(), exact)
    for mine, theirs in zip(got, right, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - theirs).norm() < 0.02 * right[2].norm()


def test_no_block_looks_behind_itself():
    """The cost of a long sequence is that of its lower triangle, up to a block."""
    pairs = sum(
        (b.queries.stop - b.queries.start) * (b.own.stop - b.own.start)
        for b in blocks((PackedSection(0, 1000, ()),), size=100)
    )
    assert pairs == sum(100 * 100 * (n + 1) for n in range(10))
