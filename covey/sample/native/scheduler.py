"""Which sequences are decoded now, and which wait.

Sequences enter in the order of the call as long as the memory that they can come to is free, and leave when they end. A
prompt takes its memory with the first of its completions and gives it back with the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Bytes that things can come to."""

    completion: Sequence[int]
    """By row."""
    prompt: Sequence[int]
    """By prompt."""


class Scheduler:
    """Admits rows within a budget.

    Args:
        prompt_of: prompt of each row.
        costs: what rows and prompts can come to.
        budget: bytes; one row is admitted when nothing else is decoded, whatever it takes.
        max_sequences: rows that are decoded together at most.
    """

    def __init__(self, prompt_of: Sequence[int], costs: Costs, budget: int, max_sequences: int) -> None:
        self.prompt_of, self.costs = prompt_of, costs
        self.budget, self.max_sequences = budget, max_sequences
        self.waiting = deque(range(len(prompt_of)))
        self.live: set[int] = set()
        self.remaining = [0] * len(costs.prompt)
        """Rows of each prompt that have not ended."""
        for prompt in prompt_of:
            self.remaining[prompt] += 1
        self.held: set[int] = set()
        """Prompts whose memory is taken."""
        self.reserved = 0

    def admit(self) -> list[int]:
        """Rows that enter now.

        Rows enter many at a time: while the batch is fuller than three quarters, what has become free waits for more.
        """
        if len(self.live) > self.max_sequences * 3 // 4:
            return []
        entering: list[int] = []
        while self.waiting and len(self.live) < self.max_sequences:
            cost = self._cost(self.waiting[0])
            if self.live and self.reserved + cost > self.budget:
                break
            row = self.waiting.popleft()
            self.live.add(row)
            self.held.add(self.prompt_of[row])
            self.reserved += cost
            entering.append(row)
        return entering

    def finish(self, row: int) -> int | None:
        """A row has ended; returns its prompt where no other row needs it."""
        prompt = self.prompt_of[row]
        self.live.remove(row)
        self.reserved -= self.costs.completion[row]
        self.remaining[prompt] -= 1
        if self.remaining[prompt]:
            return None
        self.held.remove(prompt)
        self.reserved -= self.costs.prompt[prompt]
        return prompt

    def _cost(self, row: int) -> int:
        prompt = self.prompt_of[row]
        return self.costs.completion[row] + (0 if prompt in self.held else self.costs.prompt[prompt])

    def check_integrity(self) -> None:
        """What is reserved is what the live rows and the held prompts can come to."""
        rows = sum(self.costs.completion[row] for row in self.live)
        prompts = sum(self.costs.prompt[prompt] for prompt in self.held)
        assert self.reserved == rows + prompts
        assert {self.prompt_of[row] for row in self.live} <= self.held
        assert self.reserved <= self.budget or len(self.live) <= 1
