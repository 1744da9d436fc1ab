"""One row per group: the prompt once, its completions behind it, nothing padded.

    ids        p p p p  a a a  b b  |  q q  c c c
    positions  0 1 2 3  4 5 6  4 5  |  0 1  2 3 4
               └ group 0 ─────────┘   └ group 1 ┘

A completion's last token predicts nothing and is left out, unless asked for. The hidden state that predicts a completion's first token is
that of the prompt's last one, shared by the whole group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.kernels.blockwise_attention import PackedSection
from covey.update.micro_batch import MicroBatch


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one row."""

    ids: Tensor
    """Shape (1, tokens)."""
    positions: Tensor
    """Shape (1, tokens)."""
    predicts: Tensor
    """Index of the hidden state that predicts each completion token, shape (completion tokens,), as in the micro-batch."""
    sections: tuple[PackedSection, ...]
    counts: Tensor
    """In how many completions, with their prompts, each token is, shape (tokens,)."""


def pack(batch: MicroBatch, is_whole: bool = False) -> Packed:
    """Put the completions of the same prompt behind one copy of it.

    Args:
        is_whole: last tokens of completions are read too, for what depends on every token.
    """
    end = None if is_whole else -1
    by_prompt: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row, key in enumerate(zip(batch.groups, batch.prompts, strict=True)):
        by_prompt.setdefault(key, []).append(row)
    ids: list[int] = []
    positions: list[int] = []
    counts: list[int] = []
    predicts: list[list[int]] = [[] for _ in batch.completions]
    sections = []
    for (_, prompt), rows in by_prompt.items():
        start = len(ids)
        ids += prompt
        positions += range(len(prompt))
        counts += [len(rows)] * len(prompt)
        for row in rows:
            read = batch.completions[row][:end]
            last = len(ids) + len(batch.completions[row]) - 1
            predicts[row] = [start + len(prompt) - 1, *range(len(ids), last)]
            ids += read
            counts += [1] * len(read)
            positions += range(len(prompt), len(prompt) + len(read))
        lengths = tuple(len(batch.completions[row][:end]) for row in rows)
        sections.append(PackedSection(start, len(prompt), lengths))
    device = batch.mask.device
    return Packed(
        ids=torch.tensor([ids], device=device),
        positions=torch.tensor([positions], device=device),
        predicts=torch.tensor([i for row in predicts for i in row], device=device),
        sections=tuple(sections),
        counts=torch.tensor(counts, device=device),
    )
