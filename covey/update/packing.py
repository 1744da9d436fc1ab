"""One row per group: the prompt once, its completions behind it, nothing padded.

    ids        p p p p  a a a  b b  |  q q  c c c
    positions  0 1 2 3  4 5 6  4 5  |  0 1  2 3 4
               └ group 0 ─────────┘   └ group 1 ┘

Where a prompt shows pictures, its positions are those that its policy gives them, along one axis or several, and its completions go on
behind the largest.

A completion's last token predicts nothing and is left out, unless asked for. The hidden state that predicts a completion's first token is
that of the prompt's last one, shared by the whole group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covey.kernels.blockwise_attention import PackedSection
from covey.types import PromptKey
from covey.update.micro_batch import MicroBatch
from covey.vision.sight import Sight, placed

EXPERTS = "moe_mm_token_type_ids"
"""The argument that sends tokens to experts of pictures or of text. Others are for masks and positions, which a packed row has."""


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one row."""

    ids: Tensor
    """Shape (1, tokens)."""
    positions: Tensor
    """Shape (1, tokens), or (axes, 1, tokens) where they have several."""
    predicts: Tensor
    """Index of the hidden state that predicts each completion token, shape (completion tokens,), as in the micro-batch."""
    sections: tuple[PackedSection, ...]
    counts: Tensor
    """In how many completions, with their prompts, each token is, shape (tokens,)."""
    firsts: tuple[int, ...]
    """The first completion of each section, in the micro-batch."""
    types: Mapping[str, Tensor] = field(default_factory=dict)
    """Arguments that layers read, with a number for each token, each of shape (1, tokens)."""


def pack(batch: MicroBatch, is_whole: bool = False, sights: Sequence[Sight] | None = None) -> Packed:
    """Put the completions of the same prompt behind one copy of it.

    Args:
        is_whole: last tokens of completions are read too, for what depends on every token.
        sights: what each row's prompt shows; None: positions are those of texts.
    """
    end = None if is_whole else -1
    by_prompt: dict[tuple[int, PromptKey], list[int]] = {}
    for row, key in enumerate(batch.keys):
        by_prompt.setdefault(key, []).append(row)
    ids: list[int] = []
    positions: list[Tensor] = []
    counts: list[int] = []
    predicts: list[list[int]] = [[] for _ in batch.completions]
    sections = []
    for (_, (prompt, _)), rows in by_prompt.items():
        start = len(ids)
        sight = Sight() if sights is None else sights[rows[0]]
        longest = max(len(batch.completions[row]) for row in rows)
        places = placed(sight, len(prompt) + longest)  # (axes, prompt and the longest completion)
        ids += prompt
        positions.append(places[:, : len(prompt)])
        counts += [len(rows)] * len(prompt)
        for row in rows:
            read = batch.completions[row][:end]
            last = len(ids) + len(batch.completions[row]) - 1
            predicts[row] = [start + len(prompt) - 1, *range(len(ids), last)]
            ids += read
            counts += [1] * len(read)
            positions.append(places[:, len(prompt) : len(prompt) + len(read)])
        lengths = tuple(len(batch.completions[row][:end]) for row in rows)
        sections.append(PackedSection(start, len(prompt), lengths, sight.spans, sight.in_windows))
    device, axes = batch.mask.device, max(len(part) for part in positions)
    whole = torch.cat([part.expand(axes, -1) for part in positions], 1)[:, None].to(device)
    firsts = tuple(rows[0] for rows in by_prompt.values())
    shown = [] if sights is None else [sights[row] for row in firsts]
    return Packed(
        ids=torch.tensor([ids], device=device),
        positions=whole[0] if axes == 1 else whole,
        predicts=torch.tensor([i for row in predicts for i in row], device=device),
        sections=tuple(sections),
        counts=torch.tensor(counts, device=device),
        firsts=firsts,
        types={name: numbers.to(device) for name, numbers in types_of(sections, shown).items()},
    )


def types_of(sections: Sequence[PackedSection], sights: Sequence[Sight]) -> dict[str, Tensor]:
    """Return the arguments with a number for each token of a row; none where no prompt of it has such numbers.

    Args:
        sights: what the prompt of each section shows; empty: all are texts.
    """
    if not any(EXPERTS in sight.types for sight in sights):
        return {}
    numbers = torch.zeros(1, sections[-1].stop, dtype=torch.long)
    for section, sight in zip(sections, sights, strict=True):
        if EXPERTS in sight.types:
            numbers[0, section.start : section.start + section.prompt] = sight.types[EXPERTS]
    return {EXPERTS: numbers}
