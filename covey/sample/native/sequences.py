"""Sequences of one call: a table of their tokens, those that are decoded now, and the one place where a token is added.

The table is on the device, one row per sequence. Rows are written by vector operations, whatever the order in which
sequences are decoded, and read once a group is complete. The table has one row more than there are sequences; what is
written to it is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.draw import SampledTokens, draw, uniforms
from covey.sample.native.logits_processors import NOTHING, Restrictions
from covey.sample.native.stop_strings import Decode, StopStrings
from covey.sample.sampling import Sampling
from covey.types import Completion, FinishReason, Group, Prompt


class SequenceTable:
    """The sequences of a call; row `i * group_size + j` is completion j of prompt i.

    Args:
        prompts: in the order of the call.
        group_size: completions of each.
        settings: how they are sampled.
        decode: token ids → text.
        device: where logits are.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        decode: Decode,
        device: torch.device,
    ) -> None:
        self.prompts, self.group_size, self.settings, self.decode = prompts, group_size, settings, decode
        self.stops = StopStrings(settings.stop_strings, decode)
        self.number = len(prompts) * group_size
        self.spare = self.number
        """The row that nobody reads."""
        self.prompt_width = max(len(p.ids) for p in prompts)
        # One column more than tokens: an ended sequence that is decoded on writes there.
        rows, columns = self.number + 1, settings.max_new_tokens + 1
        tokens = np.full((rows, self.prompt_width + columns), NOTHING, dtype=np.int64)
        numbers = np.zeros((rows, columns))
        for row in range(self.number):
            prompt, index = divmod(row, group_size)
            ids, seed_key = prompts[prompt].ids, prompts[prompt].seed_key
            tokens[row, self.prompt_width - len(ids) : self.prompt_width] = ids
            key = (settings.seed, *settings.step, *seed_key, index)
            numbers[row, :-1] = uniforms(key, settings.max_new_tokens)
        self.tokens = torch.from_numpy(tokens).to(device)
        """Prompts, aligned at their ends, and completions, shape (rows, prompt_width + tokens)."""
        self.ids = self.tokens[:, self.prompt_width :]
        """Tokens of the completions, shape (rows, tokens)."""
        self.logprobs = torch.zeros(rows, columns, device=device)
        self.policy_logprobs = torch.zeros_like(self.logprobs) if settings.changes_distribution else None
        self.uniforms = torch.from_numpy(numbers).to(device)
        """The random number of each token, shape (rows, tokens), float64."""
        is_end = torch.zeros(max(settings.stop_ids, default=0) + 2, dtype=torch.bool)
        is_end[list(settings.stop_ids)] = True
        self.is_end = is_end.to(device)
        """Whether an id ends a completion, shape (ids,); the last entry stands for all larger ids."""

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
        masks = restrictions.masks(written, tokens, end)
        return draw(logits, self.uniforms[rows, written], self.settings, masks)

    def record(self, rows: Tensor, written: Tensor, sampled: SampledTokens) -> None:
        """Add a token to rows that have `written` of them; all of shape (sequences,)."""
        at = (rows, written)
        self.ids[at] = sampled.ids
        self.logprobs[at] = sampled.logprobs
        if self.policy_logprobs is not None:
            self.policy_logprobs[at] = sampled.policy_logprobs

    def ended(self, ids: Tensor, written: Tensor) -> Tensor:
        """Return whether sequences end with these tokens, `written` of them with the new one."""
        ends = self.is_end[ids.clamp(max=len(self.is_end) - 1)]
        return ends | (written >= self.settings.max_new_tokens)

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
            finish: FinishReason = "stop_string" if first + index in self.stops.stopped else "length"
            if own[-1] in self.settings.stop_ids:
                finish = "stop"
            # Evaluation may have end ids that `decode` knows nothing of.
            text = self.decode(own[:-1] if finish == "stop" else own)
            under_policy = None if policy is None else tuple(policy[index][:length])
            own_logprobs = tuple(logprobs[index][:length])
            completions.append(Completion(own, own_logprobs, text, finish, policy_logprobs=under_policy))
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
    def start(cls, rows: Tensor) -> ActiveSequences:
        """Return sequences that have no tokens yet."""
        zeros = torch.zeros_like(rows)
        return cls(rows, zeros, zeros.clone(), zeros.bool())

    def advance(self, logits: Tensor, table: SequenceTable, restrictions: Restrictions) -> None:
        """Draw the next token of every sequence and record it, in place.

        Args:
            logits: shape (sequences, vocab); overwritten.
        """
        sampled = table.draw(logits, self.rows, self.written, restrictions)
        table.record(self.rows, self.written, sampled)
        self.token.copy_(sampled.ids)
        self.written.add_(~self.done)
        self.done.logical_or_(table.ended(sampled.ids, self.written))

    def ends(self, table: SequenceTable) -> tuple[list[bool], list[int]]:
        """Return whether each sequence has ended, and its tokens, up to a stop string where one has ended it."""
        is_over, lengths = self.done.tolist(), self.written.tolist()
        for index, row in enumerate(self.rows.tolist() if table.stops.stops else ()):
            if row != table.spare:
                end = table.stops.end(row, table.ids[row, : lengths[index]].tolist())
                if end is not None:
                    is_over[index], lengths[index] = True, end
        return is_over, lengths
