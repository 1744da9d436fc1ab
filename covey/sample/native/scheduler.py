"""Choice of the sequences that are decoded now, while the others wait.

Sequences enter in the order of the call as long as the memory that they can come to is free, and leave when they end. A
prompt takes its memory with the first of its completions and gives it back with the last.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence


class Scheduler:
    """Admits rows within a budget.

    Args:
        prompt_of: prompt of each row.
        completion_bytes: what each row can come to.
        prompt_bytes: what each prompt takes.
        budget: bytes; one row is admitted where no other one is decoded or waits, whatever it takes.
        max_sequences: rows that are decoded together at most.
    """

    def __init__(
        self,
        prompt_of: Sequence[int],
        completion_bytes: Sequence[int],
        prompt_bytes: Sequence[int],
        budget: int,
        max_sequences: int,
    ) -> None:
        self.prompt_of, self.completion_bytes, self.prompt_bytes = prompt_of, completion_bytes, prompt_bytes
        self.budget, self.max_sequences = budget, max_sequences
        self.waiting = deque(range(len(prompt_of)))
        self.active: set[int] = set()
        self.parked: set[int] = set()
        """Rows that wait for an answer; they keep what they have reserved."""
        of_prompt = Counter(prompt_of)
        self.remaining = [of_prompt[prompt] for prompt in range(len(prompt_bytes))]
        """Rows of each prompt that have not ended."""
        self.held: set[int] = set()
        """Prompts whose memory is taken."""
        self.reserved = 0

    def admit(self) -> list[int]:
        """Return the rows that enter now.

        Rows enter many at a time: while the batch is fuller than three quarters, what has become free waits for more.
        """
        if len(self.active) > self.max_sequences * 3 // 4:
            return []
        entering: list[int] = []
        while self.waiting and len(self.active) < self.max_sequences:
            row = self.waiting[0]
            prompt = self.prompt_of[row]
            cost = self.completion_bytes[row] + (0 if prompt in self.held else self.prompt_bytes[prompt])
            if (self.active or self.parked) and self.reserved + cost > self.budget:
                break
            self.waiting.popleft()
            self.active.add(row)
            self.held.add(prompt)
            self.reserved += cost
            entering.append(row)
        return entering

    def park(self, row: int) -> None:
        """Note that a row is not decoded until it has an answer."""
        self.active.remove(row)
        self.parked.add(row)

    def wake(self, row: int) -> None:
        """Note that a parked row is decoded again."""
        self.parked.remove(row)
        self.active.add(row)

    def finish(self, row: int) -> int | None:
        """Note that a row has ended; returns its prompt where no other row needs it."""
        prompt = self.prompt_of[row]
        (self.parked if row in self.parked else self.active).remove(row)
        self.reserved -= self.completion_bytes[row]
        self.remaining[prompt] -= 1
        if self.remaining[prompt]:
            return None
        self.held.remove(prompt)
        self.reserved -= self.prompt_bytes[prompt]
        return prompt
