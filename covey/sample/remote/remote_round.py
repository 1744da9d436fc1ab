"""One round of sampling elsewhere: requests out, turns in, groups as they are complete.

One thread, the one that asks for the groups, does all that is not waiting: it asks what follows a turn, so tools run where they
run with every other engine. Nothing that is drawn hangs on when it is drawn: only on the text before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from covey.sample.episode_book import EpisodeBook
from covey.sample.native.stop_strings import Decode, StopStrings
from covey.sample.remote.dispatch import Dispatch
from covey.sample.remote.labels import oldest_version
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest
from covey.sample.sampling import Sampling
from covey.sample.turns import Answer, PendingAnswer, TurnEnd, Turns
from covey.types import Completion, Group, Prompt

POLL_SECONDS = 0.002
"""Between two looks at answers that are late."""

MOST_TOKENS = 1 << 20
"""Of prompt and completions in one answer: vLLM writes 100 bytes for each, and repeats the prompt with each completion."""


class RemoteRound:
    """The completions of one call; row `i * group_size + j` is completion j of prompt i.

    Args:
        prompts: in the order of the call.
        group_size: completions of each.
        settings: how they are sampled.
        turns: the other side; None: each completion is one turn.
        context: positions that the policy knows; None: any.
        decode: token ids → text.
        adapter: to draw with.
        has_policy_logprobs: whether the servers say the policy's own log-probabilities.
        dispatch: has requests drawn.
        swaps: whether weights may change meanwhile: completions say then which were the oldest.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        turns: Turns | None,
        context: int | None,
        decode: Decode,
        adapter: str | None,
        has_policy_logprobs: bool,
        dispatch: Dispatch,
        swaps: bool = False,
    ) -> None:
        self.prompts, self.group_size, self.settings, self.decode = prompts, group_size, settings, decode
        self.adapter, self.dispatch, self.swaps = adapter, dispatch, swaps
        self.book = None
        if turns is not None:
            self.book = EpisodeBook(prompts, group_size, settings, turns, torch.device("cpu"), context)
        openings = [()] * (len(prompts) * group_size) if self.book is None else self.book.openings
        self.ids = [list[int](opening) for opening in openings]
        self.logprobs = [[0.0] * len(opening) for opening in openings]
        keeps = settings.changes_distribution and has_policy_logprobs
        self.policy_logprobs = [list(own) for own in self.logprobs] if keeps else None
        self.stops = StopStrings(settings.stop_strings, decode)
        for row, opening in enumerate(openings):
            self.stops.start_turn(row, len(opening))
        self.labels: list[set[str]] = [set() for _ in self.ids]
        """Of the oldest weights of each turn."""
        self.pending: dict[int, PendingAnswer] = {}
        self.open = [group_size] * len(prompts)
        """Completions of each group that have not ended."""
        self.seconds = 0.0
        """Waited for servers and for late answers."""

    def groups(self) -> Iterator[Group]:
        """Have everything drawn; yield groups as they are complete."""
        for position in range(len(self.prompts)):
            self._send_first(position)
        while any(self.open):
            over = list[int]()
            began = time.monotonic()
            answer = self.dispatch.next(POLL_SECONDS if self.pending else 1.0)
            self.seconds += time.monotonic() - began
            if answer is not None:
                over += self._take(*answer)
            for row in [row for row, pending in self.pending.items() if pending.ready()]:
                over += self._follow(row, self.pending.pop(row).wait())
            for row in over:
                position = row // self.group_size
                self.open[position] -= 1
                if not self.open[position]:
                    yield self._group(position)

    def _send_first(self, position: int) -> None:
        """Have the first turns of a group drawn: in one request, where nothing stands before them and the answer is not too long."""
        first, size = position * self.group_size, self.group_size
        if any(self.ids[first : first + size]):
            for row in range(first, first + size):
                self._send(row)
        else:
            room = None if self.book is None else int(self.book.limit[first])
            prompt, limit = self.prompts[position], self._limit(first)
            most = max(1, MOST_TOKENS // (limit + len(prompt.ids)))
            for index in range(0, size, most):
                count, number = min(most, size - index), prompt.first + index
                request = DrawRequest(prompt, self.settings, number, count, room=room, adapter=self.adapter)
                self.dispatch.send(first + index, request)

    def _send(self, row: int) -> None:
        """Have a turn of a completion drawn, from its beginning or from where the server has left it."""
        position, index = divmod(row, self.group_size)
        ids, settings, opening, begun = tuple(self.ids[row]), self.settings, 0, len(self.ids[row])
        if self.book is not None:
            opening, begun = len(self.book.openings[row]), begun - int(self.book.start[row])
        if begun:  # what holds for the first tokens of a turn holds for them no more
            fewest = max(settings.min_new_tokens - begun, 0)
            settings = replace(settings, min_new_tokens=fewest, begin_suppress_tokens=())
        request = DrawRequest(
            self.prompts[position],
            settings,
            first=self.prompts[position].first + index,
            given=ids,
            opening=opening,
            room=self._limit(row) - len(ids),
            adapter=self.adapter,
        )
        self.dispatch.send(row, request)

    def _take(self, first: int, drawn: Sequence[Drawn]) -> list[int]:
        """Put what came behind rows from `first` on; returns the rows that are over."""
        over = list[int]()
        for row, one in enumerate(drawn, first):
            self._put(row, one.ids, one.logprobs, one.policy_logprobs or one.logprobs)
            self.labels[row].add(one.label or UNLABELLED)
            if (end := self.stops.end(row, self.ids[row])) is not None:
                self._cut(row, end)
            reason = self._reason(row)
            if reason == "length" and len(self.ids[row]) < self._limit(row):
                self._send(row)  # the server has read a stop string in the text, and Covey does not
            elif self.book is None:
                over.append(row)
            else:
                reply = self.book.ended(row, self.ids[row], reason)
                if isinstance(reply, Answer):
                    over += self._follow(row, reply)
                else:
                    self.pending[row] = reply
        return over

    def _follow(self, row: int, answer: Answer) -> list[int]:
        """Put an answer behind a turn, and have the next one drawn; returns the row where it is over."""
        assert self.book is not None
        goes_on, given = self.book.accept(row, answer), [0.0] * len(answer.ids)
        self._put(row, answer.ids, given, given)
        if not goes_on:
            return [row]
        self.stops.start_turn(row, len(self.ids[row]))
        self._send(row)
        return []

    def _put(
        self, row: int, ids: Sequence[int], logprobs: Sequence[float], policy_logprobs: Sequence[float]
    ) -> None:
        self.ids[row] += ids
        self.logprobs[row] += logprobs
        if self.policy_logprobs is not None:
            self.policy_logprobs[row] += policy_logprobs

    def _limit(self, row: int) -> int:
        """Return the tokens of a completion at which its turn ends."""
        return self.settings.longest_turn if self.book is None else int(self.book.limit[row])

    def _cut(self, row: int, end: int) -> None:
        for table in (self.ids, self.logprobs, self.policy_logprobs):
            if table is not None:
                del table[row][end:]

    def _reason(self, row: int) -> TurnEnd:
        """Return why the turn of a row has ended."""
        if self.ids[row][-1] in self.settings.stop_ids:
            return "stop"
        return "stop_string" if row in self.stops.stopped else "length"

    def _group(self, position: int) -> Group:
        """Return the completions of a prompt, all of them complete."""
        completions = []
        for row in range(position * self.group_size, (position + 1) * self.group_size):
            ids, reason = tuple(self.ids[row]), self._reason(row)
            completion = Completion(
                ids,
                tuple(self.logprobs[row]),
                # Evaluation may have end ids that `decode` knows nothing of.
                self.decode(ids[:-1] if reason == "stop" else ids),
                reason,
                policy_logprobs=None if self.policy_logprobs is None else tuple(self.policy_logprobs[row]),
                version=oldest_version(self.labels[row]) if self.swaps else None,
            )
            completions.append(completion if self.book is None else self.book.closed(row, completion))
        return Group(self.prompts[position], tuple(completions))
