"""Everything that the sequences of one call say, as tables on the device: one row per sequence.

Rows are written by vector operations, whatever the order in which sequences are decoded, and read once a group is
complete. The table has one row more than there are sequences; what is drawn in it is never read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.draw import Drawn
from covey.sample.native.logits_processors import NOTHING
from covey.sample.native.stop_strings import Decode
from covey.sample.native.uniforms import uniforms
from covey.sample.sampling import Sampling
from covey.types import Completion, FinishReason, Group, Prompt


class Sequences:
    """The sequences of a call; row `i * group_size + j` is completion j of prompt i.

    Args:
        prompts: in the order of the call.
        group_size: completions of each.
        settings: how they are drawn.
        device: where logits are.
    """

    def __init__(
        self, prompts: Sequence[Prompt], group_size: int, settings: Sampling, device: torch.device
    ) -> None:
        self.prompts, self.group_size, self.settings = prompts, group_size, settings
        self.number = len(prompts) * group_size
        self.spare = self.number
        """The row that nobody reads."""
        self.prompt_width = max(len(p.ids) for p in prompts)
        # One column more than tokens: an ended sequence that is decoded on writes there.
        shape = (self.number + 1, settings.max_new_tokens + 1)
        self.said = self._prompts().to(device)
        self.ids = self.said[:, self.prompt_width :]
        """Tokens of the completions, shape (rows, tokens)."""
        self.logprobs = torch.zeros(shape, device=device)
        self.policy_logprobs = torch.zeros(shape, device=device) if settings.changes_distribution else None
        self.uniforms = torch.from_numpy(self._uniforms(shape)).to(device)
        """The random number of each token, shape (rows, tokens), float64."""
        self.is_end = _lookup(settings.stop_ids, device)
        """Whether an id ends a completion, shape (ids,)."""

    def _prompts(self) -> Tensor:
        """Prompts, aligned at their ends, and room for the completions."""
        said = np.full(
            (self.number + 1, self.prompt_width + self.settings.max_new_tokens + 1), NOTHING, dtype=np.int64
        )
        for row in range(self.number):
            ids = self.prompts[row // self.group_size].ids
            said[row, self.prompt_width - len(ids) : self.prompt_width] = ids
        return torch.from_numpy(said)

    def _uniforms(self, shape: tuple[int, int]) -> np.ndarray:
        table = np.zeros(shape)
        for row in range(self.number):
            prompt, index = divmod(row, self.group_size)
            key = (self.settings.seed, *self.settings.step, *self.prompts[prompt].seed_key, index)
            table[row, :-1] = uniforms(key, self.settings.max_new_tokens)
        return table

    def record(self, rows: Tensor, written: Tensor, drawn: Drawn) -> None:
        """Add a token to sequences that have `written` of them; all of shape (sequences,)."""
        place = (rows, written)
        self.ids[place] = drawn.ids
        self.logprobs[place] = drawn.logprobs
        if self.policy_logprobs is not None:
            self.policy_logprobs[place] = drawn.policy_logprobs

    def ended(self, ids: Tensor, written: Tensor) -> Tensor:
        """Whether sequences end with these tokens, `written` of them with the new one."""
        ends = self.is_end[ids.clamp(max=len(self.is_end) - 1)]
        return ends | (written >= self.settings.max_new_tokens)

    def group(self, position: int, lengths: Sequence[int], stopped: set[int], decode: Decode) -> Group:
        """The completions of a prompt, all of them complete.

        Args:
            lengths: tokens of each row of the table.
            stopped: rows that a stop string ended.
        """
        first = position * self.group_size
        rows = range(first, first + self.group_size)
        longest = max(lengths[row] for row in rows)
        part = slice(first, first + self.group_size), slice(0, longest)
        ids, logprobs = self.ids[part].tolist(), self.logprobs[part].tolist()
        policy = None if self.policy_logprobs is None else self.policy_logprobs[part].tolist()
        completions = []
        for index, row in enumerate(rows):
            n = lengths[row]
            own = tuple(ids[index][:n])
            finish = self._finish(own, row in stopped)
            completions.append(
                Completion(
                    ids=own,
                    logprobs=tuple(logprobs[index][:n]),
                    # Evaluation may have end ids that `decode` knows nothing of.
                    text=decode(own[:-1] if finish == "stop" else own),
                    finish=finish,
                    policy_logprobs=None if policy is None else tuple(policy[index][:n]),
                )
            )
        return Group(self.prompts[position], tuple(completions))

    def _finish(self, ids: Sequence[int], by_string: bool) -> FinishReason:
        if ids[-1] in self.settings.stop_ids:
            return "stop"
        return "stop_string" if by_string else "length"


def _lookup(ids: Sequence[int], device: torch.device) -> Tensor:
    """A table that says of an id whether it is one of these; the last entry stands for all larger ids."""
    table = torch.zeros(max(ids, default=0) + 2, dtype=torch.bool)
    table[list(ids)] = True
    return table.to(device)
