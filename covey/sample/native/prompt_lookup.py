"""Prompt lookup: draft tokens for speculative decoding without a draft model.

Completions of one prompt repeat each other, and those of earlier calls. Where the last few tokens of a sequence occurred
before, after the same prompt, the tokens that followed are proposed; one forward pass reads them all. Each position is
drawn from its own logits with its own random number, exactly as without drafts, and a draft token is kept as long as it
is what was drawn. So drafts change how fast a sequence is sampled, never its tokens.

A pass over a few rows takes as long as over one, because the weights have to be read anyway: drafts are made where few
sequences are left, and only while enough of them are accepted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from torch import Tensor

from covey.types import Group, PromptKey

ROWS = 12
"""Rows that one pass may have. Measured on a processor with AVX512-BF16, SmolLM2-135M: 12 rows take 1.2 times as long as
1, 16 rows 1.4 times, 32 rows 2.4 times."""

LONGEST = 6
"""Tokens that a sequence reads in a pass at most: its last one and five draft tokens."""

MATCHED = 3
"""Tokens that have to agree before the next ones are proposed."""

WORTHWHILE = 0.15
"""Share of draft tokens that has to be accepted."""

PAUSE = 24
"""Steps without drafts after too few were accepted."""

REMEMBERED = 4096
"""Completions of earlier calls that are kept."""


class CompletionIndex:
    """Completions of earlier calls by prompt; source of drafts."""

    def __init__(self) -> None:
        self.by_prompt: OrderedDict[PromptKey, list[tuple[int, ...]]] = OrderedDict()
        """Key of a prompt → ids of its completions; the prompt that was sampled longest ago comes first."""
        self._number = 0

    def add(self, group: Group) -> None:
        """Remember a group; the prompts that were not sampled for longest are forgotten."""
        key = group.prompt.key
        self._number += len(group.completions) - len(self.by_prompt.pop(key, []))
        self.by_prompt[key] = [c.ids for c in group.completions]
        while self._number > REMEMBERED and len(self.by_prompt) > 1:
            self._number -= len(self.by_prompt.popitem(last=False)[1])


class NgramIndex:
    """The texts that follow one prompt, by the n-grams that they contain.

    Args:
        prompt: its ids; a completion's first drafts need its end.
        completions: texts that are complete.
    """

    def __init__(self, prompt: Sequence[int], completions: Iterable[Sequence[int]] = ()) -> None:
        self.head = list(prompt[-MATCHED:])
        self.found: dict[tuple[int, ...], tuple[list[int], int]] = {}
        """Some tokens → a text that contains them, and where they end in it. The newest text wins."""
        self.texts: dict[int, list[int]] = {}
        """Texts that still grow, by row."""
        for completion in completions:
            self._index([*self.head, *completion], len(self.head))

    def extend(self, row: int, completion: Tensor) -> None:
        """Index the tokens of a text that are new; `completion` has those so far, shape (tokens,)."""
        text = self.texts.setdefault(row, list(self.head))
        start = len(text)
        new = completion[start - len(self.head) :].tolist()
        if new:  # or the text's last n-gram would win over that of a newer text
            text += new
            self._index(text, start)

    def shorten(self, row: int, tokens: int) -> None:
        """Forget what follows the first tokens of a text that still grows."""
        if row in self.texts:
            del self.texts[row][len(self.head) + tokens :]

    def propose(self, row: int, number: int) -> list[int]:
        """Return at most so many tokens that may follow the row's text."""
        text = self.texts[row]
        source, end = self.found.get(tuple(text[-MATCHED:]), (text, len(text)))
        return source[end : end + number]

    def _index(self, text: list[int], start: int) -> None:
        # What ends a text is not indexed before something follows it: there is nothing to propose.
        for end in range(max(start, MATCHED + 1), len(text) + 1):
            self.found[tuple(text[end - 1 - MATCHED : end - 1])] = (text, end - 1)


class AcceptanceRate:
    """Decides whether drafts pay, by how many were accepted; the same for the same drafts."""

    def __init__(self) -> None:
        self.share = 2 * WORTHWHILE
        """Running mean of the share of draft tokens that were accepted."""
        self.pause = 0

    def tokens(self, sequences: int) -> int:
        """Return how many tokens each of so many sequences reads in the next pass; 1: no drafts."""
        if self.pause:
            self.pause -= 1
            return 1
        return max(1, min(LONGEST, ROWS // max(1, sequences)))

    def update(self, drafted: int, accepted: int) -> None:
        """Count the draft tokens of a step."""
        if not drafted:
            return
        weight = min(0.5, drafted / 32)
        self.share += weight * (accepted / drafted - self.share)
        if self.share < WORTHWHILE:
            self.pause, self.share = PAUSE, 2 * WORTHWHILE
