"""Micro-batches are cut by tokens, groups together as far as they can be."""

import pytest
import torch

from covey.update.micro_batch import MicroBatch
from covey.update.oom_retry import TokenBudget, is_out_of_memory, tokens_read

pytestmark = pytest.mark.any_version


@pytest.fixture
def batch():
    """Two groups: a prompt of four tokens with completions of 3, 1, 2, and one of two tokens with 4, 1."""
    prompts = [(1, 2, 3, 4)] * 3 + [(5, 6)] * 2
    completions = [(1, 1, 1), (2,), (3, 3), (4, 4, 4, 4), (5,)]
    tokens = torch.arange(11.0)
    return MicroBatch(
        prompts,
        completions,
        [0, 0, 0, 1, 1],
        advantages=torch.arange(5.0),
        weights=torch.arange(5.0) + 10,
        mask=tokens > 2,
        sampler_logprobs=tokens,
        ref_logprobs=tokens + 100,
        rows=(7, 8, 9, 10, 11),
        num_dropped=3,
    )


def test_a_prompt_is_counted_once_per_group(batch):
    assert tokens_read(batch, range(5)) == 4 + 3 + 1 + 2 + 2 + 4 + 1
    assert tokens_read(batch, [1, 4]) == 4 + 1 + 2 + 1


def test_without_a_limit_or_within_it_nothing_is_cut(batch):
    assert TokenBudget().cut(batch) == [batch]
    assert TokenBudget(17).cut(batch) == [batch]


@pytest.mark.parametrize(
    ("limit", "rows"),
    [
        (16, [(7, 8, 9, 10), (11,)]),
        (10, [(7, 8, 9), (10, 11)]),
        (8, [(7, 8), (9,), (10, 11)]),
        (1, [(7,), (8,), (9,), (10,), (11,)]),
    ],
)
def test_parts_fill_the_budget_in_order(batch, limit, rows):
    assert [p.rows for p in TokenBudget(limit).cut(batch)] == rows


def test_a_part_has_the_numbers_of_its_rows(batch):
    part = TokenBudget(10).cut(batch)[1]
    assert part.prompts == [(5, 6)] * 2
    assert part.completions == [(4, 4, 4, 4), (5,)]
    assert part.groups == [1, 1]
    assert part.advantages.tolist() == [3, 4]
    assert part.weights.tolist() == [13, 14]
    assert part.sampler_logprobs.tolist() == [6, 7, 8, 9, 10]
    assert part.ref_logprobs.tolist() == [106, 107, 108, 109, 110]
    assert part.mask.all()
    assert part.old_logprobs is None
    assert part.num_dropped == 0


def test_halving_ends_at_single_completions(batch):
    budget, sizes = TokenBudget(), []
    while budget.halve(batch):
        sizes.append([p.num_rows for p in budget.cut(batch)])
    assert sizes == [[2, 1, 2], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."), True),
        (MemoryError(), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_running_out_of_memory_looks_like(error, expected):
    assert is_out_of_memory(error) is expected
