"""The rows of a call with turns, for every engine: the opening of each, its limits, its turns, its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from covey.errors import EngineError
from covey.sample.sampling import Sampling
from covey.sample.turns import Answer, PendingAnswer, TurnEnd, Turns
from covey.types import Completion, FinishReason, Prompt, Turn


class EpisodeBook:
    """The completions of a call with turns; row `i * group_size + j` is completion j of prompt i.

    Args:
        prompts: in the order of the call.
        group_size: completions of each.
        settings: how they are sampled.
        turns: the other side.
        device: where the sampler computes.
        context: positions that the policy knows; None: any.

    Raises:
        EngineError: a prompt and an opening leave no room in the context.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        turns: Turns,
        device: torch.device,
        context: int | None,
    ) -> None:
        self.turns, self.settings, self.device = turns, settings, device
        self.members = [(prompt, index) for prompt in prompts for index in range(group_size)]
        """Prompt and index of each row."""
        with outside(device):
            self.openings = [tuple(turns.opening(prompt, index)) for prompt, index in self.members]
        pairs = zip(self.members, self.openings, strict=True)
        most = [most_tokens(*who, opening, settings.max_new_tokens, context) for who, opening in pairs]
        self.most = np.array([*most, 1])
        """Tokens that each completion can come to, opening included; one more entry for a row that nobody reads."""
        self.start = np.array([*map(len, self.openings), 0])
        """Where the present turn of each row begins."""
        self.limit = np.minimum(self.start + settings.longest_turn, self.most)
        """Tokens at which the present turn of each row ends."""
        self.places: list[list[Turn]] = [[] for _ in self.members]
        self.cut: set[int] = set()
        """Rows whose last turn a limit has ended."""
        self.finish: dict[int, FinishReason] = {}
        """Why each completion that is over has ended."""

    def ended(self, row: int, ids: Sequence[int], reason: TurnEnd) -> Answer | PendingAnswer:
        """Note the turn that ends with these ids, the whole completion so far, and ask what follows it."""
        self.places[row].append(Turn(int(self.start[row]), len(ids), len(ids)))
        if reason == "length":
            self.cut.add(row)
        with outside(self.device):
            return self.turns.ended(*self.members[row], tuple(ids), reason, int(self.most[row]) - len(ids))

    def accept(self, row: int, answer: Answer) -> bool:
        """Note what follows the last turn of a row; returns whether the completion goes on.

        Raises:
            EngineError: more ids than there is room for, or none behind a turn that a limit has ended.
        """
        self._check(row, answer)
        turn = self.places[row][-1]
        end = turn.stop + len(answer.ids)
        self.places[row][-1] = replace(turn, end=end)
        if answer.finish is not None:
            self.finish[row] = answer.finish
            return False
        self.start[row] = end
        self.limit[row] = min(end + self.settings.longest_turn, int(self.most[row]))
        return True

    def _check(self, row: int, answer: Answer) -> None:
        more, room = len(answer.ids), int(self.most[row]) - self.places[row][-1].stop
        name = f"The answer to turn {len(self.places[row])} of completion {self.members[row][1]}"
        if answer.finish is None and row in self.cut:
            raise EngineError(f"{name} goes on, but a limit of tokens ended that turn. Give it a finish.")
        if more > room or (more == room and answer.finish is None):
            expected = f"fewer than {room}" if answer.finish is None else f"at most {room}"
            raise EngineError(f"{name} has {more} ids; there is room for {expected}. Cut it, or end there.")

    def closed(self, row: int, completion: Completion) -> Completion:
        """Return a completion that has ended as the other side completes it."""
        places, opening = tuple(self.places[row]), len(self.openings[row])
        mask = [False] * len(completion.ids)
        for turn in places:
            mask[turn.start : turn.stop] = [True] * (turn.stop - turn.start)
        completion = replace(
            completion,
            finish=self.finish[row],
            written=None if all(mask) else tuple(mask),
            turns=places,
            opening=opening,
        )
        with outside(self.device):
            return self.turns.closed(*self.members[row], completion)


def most_tokens(
    prompt: Prompt, index: int, opening: Sequence[int], max_new_tokens: int, context: int | None
) -> int:
    """Return the tokens that a completion can come to, opening included.

    Raises:
        EngineError: prompt and opening leave no room in the context.
    """
    room = max_new_tokens
    if context is not None:
        room = min(room, context - len(prompt.ids) - len(opening))
    if room < 1:
        raise EngineError(
            f"The prompt of row {prompt.row} has {len(prompt.ids)} tokens and the opening of its completion {index} has "
            f"{len(opening)}; the policy's context is {context}, and at least one token has to be drawn. Shorten what the "
            "environment says first."
        )
    return len(opening) + room


@contextmanager
def outside(device: torch.device) -> Iterator[None]:
    """Leave the modes that the sampler computes in: what is called meanwhile is somebody else's code."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield
