"""One row per group: the prompt once, its completions behind it, nothing padded.

    ids        p p p p  a a a  b b  |  q q  c c c
    positions  0 1 2 3  4 5 6  4 5  |  0 1  2 3 4
               └ group 0 ─────────┘   └ group 1 ┘

A completion's last token predicts nothing and is left out. The hidden state that predicts a completion's first token is
that of the prompt's last one, shared by the whole group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.kernels.blockwise_attention import Section
from covey.update.micro_batch import MicroBatch


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one row."""

    ids: Tensor
    """Shape (1, tokens)."""
    positions: Tensor
    """Shape (1, tokens)."""
    predicts: Tensor
    """Which hidden state predicts each completion token, shape (completion tokens,), in the order of the micro-batch."""
    sections: tuple[Section, ...]

    @property
    def num_tokens(self) -> int:
        return self.ids.shape[1]


def pack(batch: MicroBatch) -> Packed:
    """Put the completions of the same prompt behind one copy of it."""
    ids: list[int] = []
    positions: list[int] = []
    predicts: list[list[int]] = [[] for _ in batch.completions]
    sections = []
    for rows in _same_prompt(batch):
        prompt = batch.prompts[rows[0]]
        start = len(ids)
        ids += prompt
        positions += range(len(prompt))
        for row in rows:
            read = batch.completions[row][:-1]
            predicts[row] = [start + len(prompt) - 1, *range(len(ids), len(ids) + len(read))]
            ids += read
            positions += range(len(prompt), len(prompt) + len(read))
        lengths = tuple(len(batch.completions[row]) - 1 for row in rows)
        sections.append(Section(start, len(prompt), lengths))
    device = batch.mask.device
    return Packed(
        ids=torch.tensor([ids], device=device),
        positions=torch.tensor([positions], device=device),
        predicts=torch.tensor([i for row in predicts for i in row], device=device),
        sections=tuple(sections),
    )


def longest_sequence(batch: MicroBatch) -> int:
    """Tokens of the longest prompt and completion together."""
    return max(len(p) + len(c) for p, c in zip(batch.prompts, batch.completions, strict=True))


def _same_prompt(batch: MicroBatch) -> list[Sequence[int]]:
    """Rows that share a prompt, in the order in which the prompts first appear."""
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row, (group, prompt) in enumerate(zip(batch.groups, batch.prompts, strict=True)):
        found.setdefault((group, prompt), []).append(row)
    return list(found.values())
