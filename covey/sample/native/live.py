"""The sequences that are decoded together, and the one place where a token is drawn and noted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.sample.native.draw import Drawn, draw
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.sequences import Sequences


@dataclass
class Live:
    """Sequences in the batch; every tensor has the shape (sequences,)."""

    rows: Tensor
    """Their rows in the table."""
    written: Tensor
    """Tokens that each has."""
    token: Tensor
    """The last of them."""
    done: Tensor
    """Whether it has ended. Such a sequence may be decoded on for a while; `written` stays."""

    @classmethod
    def start(cls, rows: Tensor) -> Live:
        """Sequences that have said nothing yet."""
        zeros = torch.zeros_like(rows)
        return cls(rows, zeros, zeros.clone(), zeros.bool())

    def select(self, index: Tensor) -> Live:
        """Only these sequences."""
        return Live(*(value[index] for value in (self.rows, self.written, self.token, self.done)))


def advance(logits: Tensor, live: Live, table: Sequences, restrictions: Restrictions) -> None:
    """Draw the next token of every sequence, in place.

    Args:
        logits: shape (sequences, vocab); overwritten.
    """
    drawn = drawn_at(logits, live.rows, live.written, table, restrictions)
    table.record(live.rows, live.written, drawn)
    live.token.copy_(drawn.ids)
    live.written.add_(~live.done)
    live.done.logical_or_(table.ended(drawn.ids, live.written))


def drawn_at(
    logits: Tensor, rows: Tensor, written: Tensor, table: Sequences, restrictions: Restrictions
) -> Drawn:
    """Tokens drawn for sequences that have `written` of them; nothing is noted."""
    said = end = None
    if restrictions.reads_history:
        said, end = table.said[rows], written + table.prompt_width
    limits = restrictions.limits(written, said, end)
    return draw(logits, table.uniforms[rows, written], table.settings, limits)
