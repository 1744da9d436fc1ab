"""Tokens that may not be drawn next: padding, minimum length, suppressed tokens, bad words, repeated n-grams.

All sequences at once, on the device, from their tokens so far; nothing is read back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.sample.native.draw import TokenMasks

if TYPE_CHECKING:
    from covey.sample.sampling import Sampling

NOTHING = -1
"""Stands where a sequence has no token; no id equals it."""


class Restrictions:
    """The settings' restrictions, ready to be applied step after step.

    Args:
        settings: how completions are sampled.
        vocab: number of logits.
        device: where the logits are.
    """

    def __init__(self, settings: Sampling, vocab: int, device: torch.device) -> None:
        self.settings, self.vocab = settings, vocab
        always, first = settings.never_drawn, set(settings.begin_suppress_tokens)
        early = set(settings.stop_ids) if settings.min_new_tokens else set()
        columns = [i for i in sorted(always | first | early) if 0 <= i < vocab]
        self.columns = torch.tensor(columns, dtype=torch.long, device=device) if columns else None
        self.always, self.first, self.early = (
            torch.tensor([i in ids for i in columns], dtype=torch.bool, device=device)
            for ids in (always, first, early)
        )
        self.words = [
            (torch.tensor(word[:-1], device=device), word[-1])
            for word in settings.bad_words_ids
            if len(word) > 1 and 0 <= word[-1] < vocab
        ]
        self.is_penalised = settings.repetition_penalty != 1.0
        self.reads_history = bool(self.words or settings.no_repeat_ngram_size or self.is_penalised)
        """Whether what may be drawn depends on the tokens before, not only on how many there are."""

    def masks(self, written: Tensor, tokens: Tensor | None, end: Tensor | None) -> TokenMasks:
        """Return what these sequences may not draw next.

        Args:
            written: tokens of each completion so far, shape (sequences,).
            tokens: prompts and completions, `NOTHING` before and after them, shape (sequences, width); None where
                `reads_history` is False.
            end: where each sequence's next token goes in `tokens`, shape (sequences,).
        """
        blocked = None
        if self.columns is not None:
            young = written[:, None] < self.settings.min_new_tokens
            blocked = self.always | (self.first & (written[:, None] == 0)) | (self.early & young)
        if tokens is None or end is None:
            return TokenMasks(self.columns, blocked)
        never = self._forbidden(tokens, end)
        seen = self._mask_of(tokens, tokens != NOTHING) if self.is_penalised else None
        return TokenMasks(self.columns, blocked, never, seen)

    def _forbidden(self, tokens: Tensor, end: Tensor) -> Tensor | None:
        """Mask the ends of repeated n-grams and of bad words, shape (sequences, vocab); None: there are none."""
        size, never = self.settings.no_repeat_ngram_size, None
        if size:
            tail = _tail(tokens, end, size - 1)
            ngrams = tokens.unfold(1, size, 1)  # (sequences, width - size + 1, size)
            is_repeat = (ngrams[..., :-1] == tail[:, None]).all(-1) & (tail != NOTHING).all(-1, keepdim=True)
            never = self._mask_of(ngrams[..., -1], is_repeat)
        for start, last in self.words:
            never = tokens.new_zeros(len(tokens), self.vocab, dtype=torch.bool) if never is None else never
            never[:, last] |= (_tail(tokens, end, len(start)) == start).all(-1)
        return never

    def _mask_of(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Mask the chosen ids in the vocabulary; shape (sequences, vocab)."""
        spare = self.vocab
        ids = torch.where(chosen & (ids >= 0) & (ids < spare), ids, spare)
        mask = torch.zeros(len(ids), spare + 1, dtype=torch.bool, device=ids.device)
        return mask.scatter_(1, ids, True)[:, :spare]


def _tail(tokens: Tensor, end: Tensor, length: int) -> Tensor:
    """Return the last `length` tokens of each sequence; `NOTHING` where it is shorter."""
    index = end[:, None] + torch.arange(-length, 0, device=tokens.device)
    return torch.where(index >= 0, tokens.gather(1, index.clamp(min=0)), NOTHING)
