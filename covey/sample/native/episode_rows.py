"""The rows of a call with turns, as the native engine decodes them: ids that are given instead of drawn.

An id that is given takes the place of the one that would have been drawn: it is recorded with log-probability 0 and ends
nothing. So every path reads an answer as it reads what it has drawn, one id a step beside the other sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from covey.errors import EngineError
from covey.sample.episode_book import EpisodeBook
from covey.sample.native.draw import SampledTokens
from covey.sample.native.logits_processors import NOTHING
from covey.sample.sampling import Sampling
from covey.sample.turns import Answer, Turns
from covey.types import Prompt


class EpisodeRows(EpisodeBook):
    """The completions of a call with turns, by their rows in the table; see `EpisodeBook`.

    Args:
        placeholders: ids that stand for parts of pictures. An answer may hold none: it has no picture.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        turns: Turns,
        device: torch.device,
        context: int | None,
        placeholders: Collection[int] = (),
    ) -> None:
        super().__init__(prompts, group_size, settings, turns, device, context)
        self.placeholders = frozenset(placeholders)
        number, longest = len(self.members), max(map(len, self.openings)) + settings.max_new_tokens
        self.forced = torch.full((number + 1, longest + 1), NOTHING, dtype=torch.long, device=device)
        """Ids that are given, `NOTHING` where the next one is drawn; shape (rows, tokens)."""
        self.starts, self.limits = (torch.from_numpy(x.copy()).to(device) for x in (self.start, self.limit))
        self.given: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Row → where its last given ids begin, and the ids."""
        for row, opening in enumerate(self.openings):
            self._check_text(row, "opening", opening)
            self.give(row, 0, opening)

    def with_given(self, sampled: SampledTokens, rows: Tensor, written: Tensor) -> SampledTokens:
        """Return the tokens with those that are given in place of the drawn ones; all of shape (sequences,)."""
        forced = self.forced[rows, written]
        is_free = forced == NOTHING
        logprobs = (torch.where(is_free, x, 0.0) for x in (sampled.logprobs, sampled.policy_logprobs))
        return SampledTokens(torch.where(is_free, sampled.ids, forced), *logprobs)

    def are_over(self, ends: Tensor, rows: Tensor, written: Tensor) -> Tensor:
        """Return whether turns are over; all of one shape.

        Args:
            ends: whether the newest id is one that ends a turn where it is drawn.
            rows: of the table.
            written: tokens of each, with the newest.
        """
        is_drawn = self.forced[rows, written - 1] == NOTHING
        return (ends & is_drawn) | (written >= self.limits[rows])

    def upcoming(self, row: int, written: int, number: int) -> list[int]:
        """Return the next ids that are given to a row, at most so many."""
        at, ids = self.given.get(row, (0, ()))
        return list(ids[written - at : written - at + number]) if written >= at else []

    def give(self, row: int, written: int, ids: tuple[int, ...]) -> None:
        """Give these ids to a row of so many tokens, one a step."""
        self.given[row] = written, ids
        self.forced[row, written : written + len(ids)] = torch.tensor(
            ids, dtype=torch.long, device=self.device
        )

    def accept(self, row: int, answer: Answer) -> bool:
        """Note what follows the last turn of a row; returns whether the completion goes on."""
        self._check_text(row, "answer", answer.ids)
        goes_on = super().accept(row, answer)
        self.starts[row], self.limits[row] = int(self.start[row]), int(self.limit[row])
        return goes_on

    def _check_text(self, row: int, what: str, ids: Sequence[int]) -> None:
        """Refuse what a tool or environment says if the policy would look for a picture in it.

        Raises:
            EngineError: it holds an id that stands for a part of a picture.
        """
        if found := self.placeholders.intersection(ids):
            prompt, index = self.members[row]
            raise EngineError(
                f"Row {prompt.row}: an {what} of completion {index} holds the id {min(found)}, which stands for a part of a picture, and "
                "tools give no pictures yet. Leave it out of what the tool says."
            )
