"""Keys and values of many sequences in few large tensors, one slot per sequence.

A pool holds sequences of similar length: a token is written in place, and slots grow by many tokens at a time. Slots in
use come first, with few holes, so that a step reads one contiguous part of each tensor.

    slot       0     1     2     3     4     5
    owner      7     9     -     4     -     -          a hole at 2; `width` 4 slots are read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KvFormat:
    """Sizes and dtype of the keys and values of one token."""

    layers: int
    heads: int
    """Of keys and values."""
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


class KvPool:
    """Slots of one capacity.

    Args:
        format: of a token.
        capacity: tokens per slot; see `grow`.
        keys_transposed: keys of a slot have the shape (heads, head_dim, capacity) rather than (heads, capacity,
            head_dim). oneDNN multiplies a few bfloat16 rows with the former twice as fast.
        fixed_slots: number of slots of a pool whose tensors stay at their addresses; 0: slots are made as they are claimed.
    """

    def __init__(self, format: KvFormat, capacity: int, keys_transposed: bool, fixed_slots: int = 0) -> None:
        self.format, self.capacity, self.keys_transposed = format, capacity, keys_transposed
        self.is_fixed = fixed_slots > 0
        """Whether its tensors must stay where they are."""
        self.owners: list[int | None] = [None] * fixed_slots
        self.slots: dict[int, int] = {}
        """Owner → slot."""
        nothing = torch.zeros(0, 0, 0, 0, dtype=format.dtype, device=format.device)
        self.keys = [nothing] * format.layers
        """Per layer, shape (slots, heads, capacity, head_dim), the last two exchanged where `keys_transposed`."""
        self.values = [nothing] * format.layers
        """Per layer, shape (slots, heads, capacity, head_dim)."""
        self._reallocate()

    @property
    def bytes(self) -> int:
        return len(self.owners) * self.capacity * self.format.bytes_per_token

    @property
    def width(self) -> int:
        """Slots that a step reads: up to the last owned one, rounded up to a number that recurs."""
        last = max(self.slots.values(), default=-1)
        return min(rounded_up(last + 1), len(self.owners))

    def needed(self, more: int) -> int:
        """Return the number of slots that there will be once so many more are claimed."""
        free = len(self.owners) - len(self.slots)
        return len(self.owners) if more <= free else rounded_up(len(self.slots) + more)

    def claim(self, owners: Sequence[int], spare: bool = True) -> list[int]:
        """Give each of these a slot, and return the slots. Contents are what was there before.

        Args:
            spare: whether more slots than needed may be made.
        """
        exact = max(len(self.owners), len(self.slots) + len(owners))
        self._resize(self.needed(len(owners)) if spare else exact)
        free = [slot for slot, owner in enumerate(self.owners) if owner is None]
        taken = free[: len(owners)]
        for owner, slot in zip(owners, taken, strict=True):
            self.owners[slot] = owner
            self.slots[owner] = slot
        return taken

    def release(self, owner: int) -> None:
        self.owners[self.slots.pop(owner)] = None

    def compact(self) -> None:
        """Close the holes where that makes a step narrower."""
        number = rounded_up(len(self.slots))
        if number < self.width:
            self._close_holes()
            if number <= len(self.owners) // 2:
                self._resize(number)

    def trim(self) -> None:
        """Close all holes, and give back the slots that nobody has."""
        self._close_holes()
        self._resize(len(self.slots))

    def grow(self, capacity: int) -> None:
        """Make every slot longer."""
        assert capacity >= self.capacity and not self.is_fixed, (capacity, self.capacity)
        self.capacity = capacity
        self._reallocate()

    def _close_holes(self) -> None:
        number = len(self.slots)
        holes = [slot for slot in range(number) if self.owners[slot] is None]
        moved = [
            (slot, owner) for slot, owner in enumerate(self.owners) if slot >= number and owner is not None
        ]
        if not moved:
            return
        for (source, owner), target in zip(moved, holes, strict=True):
            self.owners[target], self.owners[source] = owner, None
            self.slots[owner] = target
        sources = torch.tensor([slot for slot, _ in moved], device=self.format.device)
        targets = torch.tensor(holes, device=self.format.device)
        for tensor in (*self.keys, *self.values):
            tensor[targets] = tensor[sources]

    def _resize(self, number: int) -> None:
        if number == len(self.owners) or (self.is_fixed and number < len(self.owners)):
            return
        assert not self.is_fixed, "a pool whose tensors are in use elsewhere must hold what is claimed"
        assert all(owner is None for owner in self.owners[number:]), "slots in use would be lost"
        self.owners = (self.owners + [None] * number)[:number]
        self._reallocate()

    def _reallocate(self) -> None:
        """Copy to tensors of the present size, layer by layer, so that no second copy of the whole pool exists."""
        number, heads, dim = len(self.owners), self.format.heads, self.format.head_dim
        values_shape = (number, heads, self.capacity, dim)
        keys_shape = (number, heads, dim, self.capacity) if self.keys_transposed else values_shape
        for tensors, shape in ((self.keys, keys_shape), (self.values, values_shape)):
            for layer, old in enumerate(tensors):
                # Not uninitialised memory: a masked position has weight 0, and 0 times what is no number is no number.
                new = torch.zeros(shape, dtype=self.format.dtype, device=self.format.device)
                kept = tuple(slice(0, min(sizes)) for sizes in zip(old.shape, shape, strict=True))
                new[kept] = old[kept]
                tensors[layer] = new


def rounded_up(number: int) -> int:
    """Return the next number of slots that is used: 1 to 8, then four steps per doubling.

    oneDNN compiles a kernel for each number of rows that it meets, so a batch that shrinks takes few sizes.
    """
    if number <= 8:
        return number
    step = 1 << ((number - 1).bit_length() - 3)
    return -(-number // step) * step
