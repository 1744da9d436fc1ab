"""Which tokens may not be drawn next: padding, minimum length, suppressed tokens, bad words, repeated n-grams.

All sequences at once, on the device, from what they said so far; nothing is read back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.sample.native.draw import Limits
from covey.sample.sampling import Sampling

NOTHING = -1
"""Stands where a sequence has no token; no id equals it."""


class Restrictions:
    """The settings' restrictions, ready to be applied step after step.

    Args:
        settings: how completions are drawn.
        vocab: number of logits.
        device: where the logits are.
    """

    def __init__(self, settings: Sampling, vocab: int, device: torch.device) -> None:
        self.settings, self.vocab = settings, vocab
        always = {*settings.suppress_tokens, *(w[0] for w in settings.bad_words_ids if len(w) == 1)}
        if settings.padding_id is not None:
            always.add(settings.padding_id)
        first = set(settings.begin_suppress_tokens)
        early = set(settings.stop_ids) if settings.min_new_tokens else set()
        columns = [i for i in sorted(always | first | early) if 0 <= i < vocab]
        as_mask = lambda ids: torch.tensor([i in ids for i in columns], dtype=torch.bool, device=device)  # noqa: E731
        self.columns = torch.tensor(columns, dtype=torch.long, device=device) if columns else None
        self.always, self.first, self.early = as_mask(always), as_mask(first), as_mask(early)
        self.words = [
            (torch.tensor(word[:-1], device=device), word[-1])
            for word in settings.bad_words_ids
            if len(word) > 1 and 0 <= word[-1] < vocab
        ]

    @property
    def reads_history(self) -> bool:
        """Whether what may be drawn depends on the tokens before, not only on how many there are."""
        return bool(
            self.words or self.settings.no_repeat_ngram_size or self.settings.repetition_penalty != 1.0
        )

    def limits(self, written: Tensor, said: Tensor | None, end: Tensor | None) -> Limits:
        """What these sequences may not draw next.

        Args:
            written: tokens of each completion so far, shape (sequences,).
            said: prompts and completions, `NOTHING` before and after them, shape (sequences, width); None where
                `reads_history` is False.
            end: where each sequence's next token goes in `said`, shape (sequences,).
        """
        blocked = None
        if self.columns is not None:
            young = written[:, None] < self.settings.min_new_tokens
            blocked = self.always | (self.first & (written[:, None] == 0)) | (self.early & young)
        if said is None or end is None:
            return Limits(self.columns, blocked)
        never = self._never(said, end)
        seen = self._marked(said, said != NOTHING) if self.settings.repetition_penalty != 1.0 else None
        return Limits(self.columns, blocked, never, seen)

    def _never(self, said: Tensor, end: Tensor) -> Tensor | None:
        size = self.settings.no_repeat_ngram_size
        never = self._ends_of_repeats(said, end, size) if size else None
        for start, last in self.words:
            never = said.new_zeros(len(said), self.vocab, dtype=torch.bool) if never is None else never
            never[:, last] |= (_tail(said, end, len(start)) == start).all(-1)
        return never

    def _ends_of_repeats(self, said: Tensor, end: Tensor, size: int) -> Tensor:
        """Tokens that would complete an n-gram that was said before."""
        tail = _tail(said, end, size - 1)
        windows = said.unfold(1, size, 1)
        is_repeat = (windows[..., :-1] == tail[:, None]).all(-1) & (tail != NOTHING).all(-1, keepdim=True)
        return self._marked(windows[..., -1], is_repeat)

    def _marked(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """A mask over the vocabulary of the chosen ids; shape (sequences, vocab)."""
        spare = self.vocab
        ids = torch.where(chosen & (ids >= 0) & (ids < spare), ids, spare)
        mask = torch.zeros(len(ids), spare + 1, dtype=torch.bool, device=ids.device)
        return mask.scatter_(1, ids, True)[:, :spare]


def _tail(said: Tensor, end: Tensor, length: int) -> Tensor:
    """The last `length` tokens of each sequence; `NOTHING` where it is shorter."""
    index = end[:, None] + torch.arange(-length, 0, device=said.device)
    return torch.where(index >= 0, said.gather(1, index.clamp(min=0)), NOTHING)
