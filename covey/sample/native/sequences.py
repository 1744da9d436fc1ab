"""Sequences of one call: a table of their tokens, those that are decoded now, and the one place where a token is added.

The table is on the device, one row per sequence. Rows are written by vector operations, whatever the order in which
sequences are decoded, and read once a group is complete. The table has one row more than there are sequences; what is
written to it is never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.draw import SampledTokens, draw, uniforms
from covey.sample.native.logits_processors import NOTHING, Restrictions
from covey.sample.native.stop_strings import Decode, StopStrings
from covey.sample.sampling import Sampling
from covey.sample.turns import TurnEnd
from covey.types import Completion, Group, Prompt

if TYPE_CHECKING:
    from covey.sample.native.episode_rows import EpisodeRows


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a prompt's completions in their group and in their text: a turn by itself is drawn as in one call with all turns."""

    first: int = 0
    """Index in the group of the first completion."""
    drawn: int = 0
    """Random numbers that tokens before have taken: the ids behind the opening, which stand at the end of the prompt here."""
    room: int | None = None
    """Tokens at most; None: what the settings allow."""


class SequenceTable:
    """The sequences of a call; row `i * group_size + j` is completion j of prompt i.

    Args:
        prompts: in the order of the call.
        group_size: completions of each.
        settings: how they are sampled.
        decode: token ids → text.
        device: where logits are.
        episodes: what follows the turns; None: each completion is one turn.
        places: where the completions of each prompt stand; None: at their beginning.
        counts: tokens that the engine has drawn so far, under "drawn"; added to at each step.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        decode: Decode,
        device: torch.device,
        episodes: EpisodeRows | None = None,
        places: Sequence[Place] | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self.counts = Counter[str]() if counts is None else counts
        self.prompts, self.group_size, self.settings, self.decode = prompts, group_size, settings, decode
        self.episodes = episodes
        self.stops = StopStrings(settings.stop_strings, decode)
        for row, opening in enumerate(() if episodes is None else episodes.openings):
            self.stops.start_turn(row, len(opening))
        self.number = len(prompts) * group_size
        self.spare = self.number
        """The row that nobody reads."""
        self.prompt_width = max(len(p.ids) for p in prompts)
        longest, places = settings.longest_turn, places or [Place()] * len(prompts)
        rooms = [longest if place.room is None else min(longest, place.room) for place in places]
        room = np.array([*np.repeat(rooms, group_size), longest])
        self.most = room if episodes is None else episodes.most
        """Tokens that each completion can come to, by row."""
        self.limit = self.most if episodes is None else episodes.limit
        """Tokens at which the turn of each row ends."""
        # One column more than tokens: an ended sequence that is decoded on writes there.
        openings = [0] * self.number if episodes is None else [len(o) for o in episodes.openings]
        rows, columns = self.number + 1, max(openings) + settings.max_new_tokens + 1
        tokens = np.full((rows, self.prompt_width + columns), NOTHING, dtype=np.int64)
        for row in range(self.number):
            ids = prompts[row // group_size].ids
            tokens[row, self.prompt_width - len(ids) : self.prompt_width] = ids
        self.tokens = torch.from_numpy(tokens).to(device)
        """Prompts, aligned at their ends, and completions, shape (rows, prompt_width + tokens)."""
        self.ids = self.tokens[:, self.prompt_width :]
        """Tokens of the completions, shape (rows, tokens)."""
        self.logprobs = torch.zeros(rows, columns, device=device)
        self.policy_logprobs = torch.zeros_like(self.logprobs) if settings.changes_distribution else None
        has_rooms = episodes is None and min(rooms) < longest
        self.limits = torch.from_numpy(room).to(device) if has_rooms else None
        """Tokens at which each row ends, shape (rows,); None: the settings alone say it."""
        numbers = np.zeros((rows, columns))
        self._fill(numbers, openings, places)
        self.uniforms = torch.from_numpy(numbers).to(device)
        """The random number of each token, shape (rows, tokens), float64."""
        is_end = torch.zeros(max(settings.stop_ids, default=0) + 2, dtype=torch.bool)
        is_end[list(settings.stop_ids)] = True
        self.is_end = is_end.to(device)
        """Whether an id ends a completion, shape (ids,); the last entry stands for all larger ids."""

    def _fill(self, numbers: np.ndarray, openings: Sequence[int], places: Sequence[Place]) -> None:
        """Put the random numbers of each completion where its tokens will be; shape (rows, tokens)."""
        settings, new = self.settings, self.settings.max_new_tokens
        for row, first in enumerate(openings):
            prompt, index = divmod(row, self.group_size)
            drawn = places[prompt].drawn
            own = self.prompts[prompt]
            index += own.first + places[prompt].first
            key = (settings.seed, *settings.step, *own.seed_key, index)
            numbers[row, first : first + new] = uniforms(key, drawn + new)[drawn:]

    def draw(
        self, logits: Tensor, rows: Tensor, written: Tensor, restrictions: Restrictions
    ) -> SampledTokens:
        """Draw the next token of rows that have `written` of them; nothing is recorded.

        Args:
            logits: shape (sequences, vocab); overwritten.
            rows: of the table, shape (sequences,).
            written: shape (sequences,).
        """
        tokens = end = None
        if restrictions.reads_history:
            tokens, end = self.tokens[rows], written + self.prompt_width
        of_turn = written if self.episodes is None else written - self.episodes.starts[rows]
        masks = restrictions.masks(of_turn, tokens, end)
        sampled = draw(logits, self.uniforms[rows, written], self.settings, masks)
        return sampled if self.episodes is None else self.episodes.with_given(sampled, rows, written)

    def record(self, rows: Tensor, written: Tensor, sampled: SampledTokens) -> None:
        """Add a token to rows that have `written` of them; all of shape (sequences,)."""
        at = (rows, written)
        self.counts["drawn"] += len(rows)
        self.ids[at] = sampled.ids
        self.logprobs[at] = sampled.logprobs
        if self.policy_logprobs is not None:
            self.policy_logprobs[at] = sampled.policy_logprobs

    def ended(self, rows: Tensor, ids: Tensor, written: Tensor) -> Tensor:
        """Return whether the turns of rows end with these tokens, `written` of them with the new one; all of one shape."""
        ends = self.is_end[ids.clamp(max=len(self.is_end) - 1)]
        if self.episodes is not None:
            return self.episodes.are_over(ends, rows, written)
        return ends | (written >= (self.settings.longest_turn if self.limits is None else self.limits[rows]))

    def reason(self, row: int, last: int) -> TurnEnd:
        """Return why a turn of this row has ended whose last id is `last`."""
        if last in self.settings.stop_ids:
            return "stop"
        return "stop_string" if row in self.stops.stopped else "length"

    def put(self, row: int, written: int, ids: Sequence[int]) -> None:
        """Put ids behind the tokens of a row, which nobody draws. What was decoded behind its turn is forgotten."""
        self.ids[row, written:] = NOTHING
        end = written + len(ids)
        self.ids[row, written:end] = torch.tensor(ids, dtype=torch.long, device=self.ids.device)
        for logprobs in (self.logprobs, self.policy_logprobs):
            if logprobs is not None:
                logprobs[row, written:end] = 0.0

    def group(self, position: int, lengths: Sequence[int]) -> Group:
        """Return the completions of a prompt, all of them complete; `lengths` are the tokens of all rows."""
        first = position * self.group_size
        rows = slice(first, first + self.group_size)
        part = rows, slice(0, max(lengths[rows]))
        ids, logprobs = self.ids[part].tolist(), self.logprobs[part].tolist()
        policy = None if self.policy_logprobs is None else self.policy_logprobs[part].tolist()
        completions = []
        for index, length in enumerate(lengths[rows]):
            own = tuple(ids[index][:length])
            finish = self.reason(first + index, own[-1])
            # Evaluation may have end ids that `decode` knows nothing of.
            text = self.decode(own[:-1] if finish == "stop" else own)
            under_policy = None if policy is None else tuple(policy[index][:length])
            own_logprobs = tuple(logprobs[index][:length])
            completion = Completion(own, own_logprobs, text, finish, policy_logprobs=under_policy)
            if self.episodes is not None:
                completion = self.episodes.closed(first + index, completion)
            completions.append(completion)
        return Group(self.prompts[position], tuple(completions))


@dataclass
class ActiveSequences:
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
    def start(cls, rows: Tensor, written: Tensor | None = None) -> ActiveSequences:
        """Return sequences that have `written` tokens, or none yet."""
        zeros = torch.zeros_like(rows)
        return cls(rows, zeros if written is None else written, zeros.clone(), zeros.bool())

    def advance(self, logits: Tensor, table: SequenceTable, restrictions: Restrictions) -> None:
        """Draw the next token of every sequence and record it, in place.

        Args:
            logits: shape (sequences, vocab); overwritten.
        """
        sampled = table.draw(logits, self.rows, self.written, restrictions)
        table.record(self.rows, self.written, sampled)
        self.token.copy_(sampled.ids)
        self.written.add_(~self.done)
        self.done.logical_or_(table.ended(self.rows, sampled.ids, self.written))

    def ends(self, table: SequenceTable) -> tuple[list[bool], list[int]]:
        """Return whether each sequence has ended, and its tokens, up to a stop string where one has ended it."""
        is_over, lengths = self.done.tolist(), self.written.tolist()
        for index, row in enumerate(self.rows.tolist() if table.stops.stops else ()):
            if row != table.spare:
                end = table.stops.end(row, table.ids[row, : lengths[index]].tolist())
                if end is not None:
                    is_over[index], lengths[index] = True, end
        return is_over, lengths
