"""Pictures of a prompt as a policy takes them, beside its ids: made once, read by sampler, update, reference and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from covey.types import Picture


@dataclass(frozen=True, eq=False)
class Sight:
    """The pictures of one prompt as its policy takes them. All tensors are on the CPU."""

    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """Arguments of the policy's forward pass that hold pixels and their shapes. Those of several prompts are joined; see `joined`."""
    types: Mapping[str, Tensor] = field(default_factory=dict)
    """Arguments with a number for each token of the prompt, such as `mm_token_type_ids`, each of shape (tokens,)."""
    positions: Tensor | None = None
    """Places of the prompt's tokens along each axis, shape (axes, tokens); None: 0, 1, 2, ... as in a text."""
    places: Tensor | None = None
    """Tokens that stand for parts of pictures, shape (tokens,), bool; None: there are none."""
    spans: tuple[tuple[int, int], ...] = ()
    """First place and one past the last of tokens that see one another both ways."""
    in_windows: bool = False
    """Whether they do so only in layers with a window."""
    next_type: int = 0
    """The number in `types` of the tokens behind the prompt."""

    @property
    def num_places(self) -> int:
        """Tokens that stand for parts of pictures."""
        return 0 if self.places is None else int(self.places.sum())

    @property
    def next_position(self) -> int:
        """The position of the first token behind the prompt, the same along every axis."""
        if self.positions is None:
            raise ValueError("the positions of a text are its places")
        return int(self.positions.max()) + 1


class Eyes(Protocol):
    """Looks at pictures with the policy's own processor. What was seen lately is kept."""

    def look(self, ids: Sequence[int], pictures: Sequence[Picture]) -> Sight:
        """Return what a prompt shows.

        Args:
            ids: of the prompt, with a token for each part of a picture.
            pictures: in the order of those tokens; none: a prompt of text alone.
        """
        ...

    @property
    def placeholders(self) -> frozenset[int]:
        """Ids that stand for parts of pictures, films or sound."""
        ...

    def blank(self) -> Sight:
        """Return what a small white picture shows, for passes in which there is none."""
        ...


def joined(sights: Sequence[Sight], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the inputs of several prompts as one pass takes them, in this order, on a device.

    One rule for all families: every dimension but the first is padded with zeros to the largest, and the first is joined.
    """
    names = dict.fromkeys(name for sight in sights for name in sight.inputs)
    return {name: _joined([s.inputs[name] for s in sights if name in s.inputs]).to(device) for name in names}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    sizes = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].ndim)]
    whole = parts[0].new_zeros(sum(len(part) for part in parts), *sizes)
    first = 0
    for part in parts:
        whole[(slice(first, first + len(part)), *(slice(0, n) for n in part.shape[1:]))] = part
        first += len(part)
    return whole


def typed(
    sights: Sequence[Sight], tokens: Sequence[int], width: int, at_end: bool = True
) -> dict[str, Tensor]:
    """Return the numbers of all tokens of several rows, each of shape (rows, width).

    Args:
        sights, tokens: what each row shows at its beginning, and how many tokens it has, its completion's behind the prompt's.
        width: tokens of the longest row, or more.
        at_end: rows are aligned at their ends; False: at their beginnings.
    """
    result = {}
    for name in dict.fromkeys(name for sight in sights for name in sight.types):
        behind = next(s.next_type for s in sights if name in s.types)
        rows = torch.full((len(sights), width), behind, dtype=torch.long)
        for row, sight, length in zip(rows, sights, tokens, strict=True):
            if name in sight.types:
                first = width - length if at_end else 0
                row[first : first + len(sight.types[name])] = sight.types[name]
        result[name] = rows
    return result


def placed(sight: Sight, tokens: int) -> Tensor:
    """Return the positions of the first tokens of a row, its prompt and what is behind it, shape (axes, tokens); one axis for a text."""
    if sight.positions is None:
        return torch.arange(tokens)[None]
    axes, known = sight.positions.shape
    behind = sight.next_position + torch.arange(tokens - known)
    return torch.cat([sight.positions, behind.expand(axes, -1)], 1)
