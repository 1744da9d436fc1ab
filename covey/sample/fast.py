"""The fast path: one call of the engine, decoded with the engine's own forward pass.

admit   → prefill new prompts, draw first tokens
step    → one token for every live sequence
look    → who has ended; their slots are free
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.groups import Group, Prompt
from covey.sample.arrangement import Arrangement, arrange
from covey.sample.cache import Cache
from covey.sample.drafts import LONGEST, Gauge, Index, Memory
from covey.sample.live import Live, advance, drawn_at
from covey.sample.llama import Llama, Step
from covey.sample.pools import Layout
from covey.sample.restrictions import Restrictions
from covey.sample.scheduler import Costs, Scheduler
from covey.sample.sequences import Sequences
from covey.sample.settings import Sampling
from covey.sample.stops import INTERVAL, Decode, StopStrings
from covey.sample.weights import Weights


@dataclass(frozen=True)
class Limits:
    """What one call may take."""

    memory: int
    """Bytes of the cache."""
    max_sequences: int
    prefill_tokens: int = 2048
    """Tokens of prompts that go through the layers together."""
    shares_prompts: bool | None = None
    """Store a prompt once for its completions; None: on a CPU, where there is more than one."""
    drafts: bool = False
    """Guess tokens from siblings where few sequences are left."""
    checks: bool = False
    """Check the books after every step; for tests."""


def sample_fast(
    weights: Weights,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: Sampling,
    decode: Decode,
    limits: Limits,
    memory: Memory | None = None,
) -> Iterator[Group]:
    """Groups as they finish; see `covey.sample.engine.Engine.generate`.

    Args:
        memory: what was said in earlier calls; only read here.
    """
    call = _Call(weights, prompts, group_size, settings, decode, limits, memory or Memory())
    while not call.is_over:
        # A generator must not hold the mode while it is suspended: the consumer would compute in it.
        with torch.inference_mode():
            finished = call.proceed()
        yield from finished


class _Call:
    """The state of one call."""

    def __init__(
        self,
        weights: Weights,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: Sampling,
        decode: Decode,
        limits: Limits,
        memory: Memory,
    ) -> None:
        self.weights, self.settings, self.decode, self.limits = weights, settings, decode, limits
        self.memory, self.gauge = memory, Gauge()
        self.indexes: dict[int, Index] = {}
        """What is known of the texts after a prompt, where drafts are made."""
        self.device, self.shape = weights.device, weights.shape
        self.group_size = group_size
        with torch.inference_mode():
            self.table = Sequences(prompts, group_size, settings, self.device)
        self.stops = StopStrings(settings.stop_strings, decode)
        self._number_prompts(prompts)
        self.cache = self._new_cache()
        longest = self.table.prompt_width + settings.max_new_tokens + LONGEST
        with torch.inference_mode():
            self.model = Llama(weights, self.cache, longest)
        self.scheduler = Scheduler(
            self.prompt_of.tolist(), self._costs(), limits.memory, limits.max_sequences
        )
        self.restrictions: Restrictions | None = None
        self.first_logits: dict[int, Tensor] = {}
        """Logits after a prompt, for completions that have not entered yet."""
        self._start_tables()

    def _number_prompts(self, prompts: Sequence[Prompt]) -> None:
        numbers = {ids: n for n, ids in enumerate(dict.fromkeys(p.ids for p in prompts))}
        self.prompt_ids = list(numbers)
        """Distinct prompts."""
        of = [numbers[prompts[row // self.group_size].ids] for row in range(self.table.number)]
        self.prompt_of = np.array(of)

    def _new_cache(self) -> Cache:
        on_cpu = self.device.type == "cpu"
        shares = self.limits.shares_prompts
        if shares is None:
            shares = on_cpu and self.table.number > len(self.prompt_ids)
        layout = Layout(
            self.shape.layers, self.shape.kv_heads, self.shape.head_dim, self.weights.dtype, self.device
        )
        return Cache(layout, self.limits.memory, shares, keys_transposed=on_cpu)

    def _costs(self) -> Costs:
        lengths = [len(ids) for ids in self.prompt_ids]
        new = self.settings.max_new_tokens + (LONGEST if self.limits.drafts else 0)
        return Costs(
            [self.cache.completion_cost(lengths[prompt], new) for prompt in self.prompt_of],
            [self.cache.prompt_cost(length) for length in lengths],
        )

    def _start_tables(self) -> None:
        """Per row of the table, the spare one included: what holds whatever the batch is."""
        number = self.table.number
        self.lengths = np.zeros(number + 1, dtype=np.int64)
        """Tokens of each completion, as far as the host knows; of live rows at least as many as there are."""
        # The spare row continues a prompt of one token.
        self.host_prompt_length = np.array([len(self.prompt_ids[p]) for p in self.prompt_of] + [1])
        self.prompt_length = torch.from_numpy(self.host_prompt_length).to(self.device)
        self.token = torch.zeros(number + 1, dtype=torch.long, device=self.device)
        self.written = torch.ones(number + 1, dtype=torch.long, device=self.device)
        self.open = [self.group_size] * len(self.table.prompts)
        """Completions of each group that have not ended."""
        self.batch: Live | None = None
        self.arrangement: Arrangement | None = None
        self.holes = 0
        self.steps = 0

    # --- the loop -----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return not any(self.open)

    def proceed(self) -> list[Group]:
        """Until at least one group has finished."""
        finished: list[Group] = []
        while not finished:
            entering = self.scheduler.admit()
            if entering:
                finished += self._enter(entering)
            if self.scheduler.live:
                self._step()
                finished += self._look()
            if self.limits.checks:
                self.check_integrity()
        return finished

    def _enter(self, rows: Sequence[int]) -> list[Group]:
        """Read new prompts, draw the first token of each row, and give those that go on a slot."""
        self._prefill(rows)
        logits = torch.stack([self.first_logits[p] for p in self.prompt_of[list(rows)].tolist()])
        live = Live.start(torch.tensor(rows, device=self.device))
        if self.restrictions is None:
            self.restrictions = Restrictions(self.settings, logits.shape[-1], self.device)
        advance(logits, live, self.table, self.restrictions)
        self.token[live.rows], self.written[live.rows] = live.token, live.written
        self.lengths[list(rows)] = 1
        done = live.done.tolist()
        going = [row for row, ended in zip(rows, done, strict=True) if not ended]
        self.cache.add_completions({row: int(self.prompt_of[row]) for row in going})
        self._rearrange()
        return self._finish([row for row, ended in zip(rows, done, strict=True) if ended])

    def _prefill(self, rows: Sequence[int]) -> None:
        wanted = dict.fromkeys(self.prompt_of[list(rows)].tolist())
        new = [p for p in wanted if p not in self.cache.prompt_pool]
        if not new:
            return
        self.cache.add_prompts({p: len(self.prompt_ids[p]) for p in new})
        states = self.model.prefill([(p, self.prompt_ids[p]) for p in new], self.limits.prefill_tokens)
        logits = self.model.logits(states).float()
        self.first_logits.update(zip(new, logits, strict=True))

    def _step(self) -> None:
        """One token for every live sequence, or several where guesses are right."""
        self.steps += 1
        tokens = self._drafted()
        self._make_room(tokens)
        guesses = self._guesses(tokens - 1) if tokens > 1 else []
        if any(guesses):
            self._step_with_guesses(tokens, guesses)
            return
        assert self.batch is not None and self.restrictions is not None
        live = self.batch
        states = self.model.step(live.token[:, None], self._step_of(live.written[:, None] - 1))
        advance(self.model.logits(states), live, self.table, self.restrictions)
        self.lengths[self.live_rows] += 1

    def _make_room(self, tokens: int) -> None:
        """Every live sequence can take so many tokens more."""
        if self.cache.make_room(self._held(tokens)):
            self._rearrange()

    def _held(self, tokens: int) -> np.ndarray:
        """Tokens in the slot of each completion once so many more were read, by row."""
        own = np.minimum(self.lengths, self.settings.max_new_tokens) + (tokens - 1)
        return own if self.cache.shares_prompts else own + self.host_prompt_length

    # --- drafts -------------------------------------------------------------------------------------------------------

    def _drafted(self) -> int:
        """Tokens that each sequence may read in the next step."""
        assert self.restrictions is not None
        if not self.limits.drafts or self.restrictions.reads_history:
            return 1
        return self.gauge.tokens(len(self.scheduler.live))

    def _guesses(self, number: int) -> list[list[int]]:
        """At most so many guesses for every row of the batch."""
        return [
            [] if row == self.table.spare else self._index_of(row).guess(row, number)
            for row in self.live_rows.tolist()
        ]

    def _index_of(self, row: int) -> Index:
        """What is known of the texts after the row's prompt, this one up to its last token."""
        prompt = int(self.prompt_of[row])
        if prompt not in self.indexes:
            index = self.indexes[prompt] = Index(self.prompt_ids[prompt])
            for text in self.memory.after(self.prompt_ids[prompt]):
                index.add(text)
            for sibling in np.nonzero(self.prompt_of == prompt)[0].tolist():
                self._catch_up(index, sibling)
        self._catch_up(self.indexes[prompt], row)
        return self.indexes[prompt]

    def _catch_up(self, index: Index, row: int) -> None:
        known, there = index.known(row), int(self.lengths[row])
        if known < there:
            index.extend(row, self.table.ids[row, known:there].tolist())

    def _step_with_guesses(self, tokens: int, guesses: list[list[int]]) -> None:
        """Read guesses, draw at every position, and keep what was drawn up to the first wrong guess."""
        live = self.batch
        assert live is not None and self.restrictions is not None
        padded = [guess + [0] * (tokens - 1 - len(guess)) for guess in guesses]
        read = torch.cat([live.token[:, None], torch.tensor(padded, device=self.device)], 1)
        ahead = torch.arange(tokens, device=self.device)
        states = self.model.step(read, self._step_of(live.written[:, None] - 1 + ahead))
        written = (live.written[:, None] + ahead).clamp_(max=self.settings.max_new_tokens)
        rows = live.rows.repeat_interleave(tokens)
        logits = self.model.logits(states)
        drawn = drawn_at(logits, rows, written.flatten(), self.table, self.restrictions)
        kept = self._kept(drawn.ids.view(read.shape), read, written, live.done)
        is_kept = (ahead < kept[:, None]).flatten()
        self.table.record(torch.where(is_kept, rows, self.table.spare), written.flatten(), drawn)
        self._go_on(live, drawn.ids.view(read.shape), kept)
        self._note(kept.tolist(), guesses)

    def _kept(self, ids: Tensor, read: Tensor, written: Tensor, done: Tensor) -> Tensor:
        """How many of the drawn tokens of each sequence count: to the first wrong guess, or to its end."""
        is_right = ids[:, :-1] == read[:, 1:]
        goes_on = is_right & ~self.table.ended(ids, written + 1)[:, :-1]
        return (1 + goes_on.long().cumprod(-1).sum(-1)).masked_fill_(done, 0)

    def _go_on(self, live: Live, ids: Tensor, kept: Tensor) -> None:
        live.token.copy_(ids.gather(1, (kept - 1).clamp_(min=0)[:, None])[:, 0])
        live.written.add_(kept)
        live.done.logical_or_(self.table.ended(live.token, live.written))

    def _note(self, kept: list[int], guesses: list[list[int]]) -> None:
        """How many tokens there are now, and how good the guesses were."""
        self.lengths[self.live_rows] += np.array(kept)
        self.gauge.note(sum(map(len, guesses)), sum(max(0, number - 1) for number in kept))

    # --- who has ended ------------------------------------------------------------------------------------------------

    def _look(self) -> list[Group]:
        """Note who has ended."""
        if not self._is_worth_looking():
            return []
        ended = self._ended()
        if not ended:
            return []
        for row in ended:
            self.cache.drop_completion(row)
        finished = self._finish(ended)
        if self.scheduler.live:
            self.cache.compact()
            self._rearrange()
        return finished

    def _is_worth_looking(self) -> bool:
        """On an accelerator a look waits for everything that was asked of it, so there are few."""
        assert self.batch is not None and self.arrangement is not None
        is_due = self.steps % INTERVAL == 0
        if self.device.type == "cpu":
            return (is_due and bool(self.stops.stops)) or int(self.batch.done.sum()) > self.holes
        return is_due or bool((self.lengths[self.live_rows] >= self.settings.max_new_tokens).any())

    def _ended(self) -> list[int]:
        assert self.batch is not None
        ended = []
        columns = self.batch.rows.tolist(), self.batch.done.tolist(), self.batch.written.tolist()
        for row, done, written in zip(*columns, strict=True):
            if row == self.table.spare:
                continue
            self.lengths[row] = written
            end = self.stops.end(row, self.table.ids[row, :written].tolist()) if self.stops.stops else None
            if end is not None:
                self.lengths[row] = end
            if done or end is not None:
                ended.append(row)
        return ended

    def _finish(self, rows: Sequence[int]) -> list[Group]:
        """Rows have ended; returns the groups that are complete with them."""
        finished = []
        for row in rows:
            prompt = self.scheduler.finish(row)
            if prompt is not None:
                self.cache.drop_prompt(prompt)
                del self.first_logits[prompt]
            position = row // self.group_size
            self.open[position] -= 1
            if not self.open[position]:
                lengths = self.lengths.tolist()
                finished.append(self.table.group(position, lengths, self.stops.stopped, self.decode))
        return finished

    # --- the batch ----------------------------------------------------------------------------------------------------

    def _rearrange(self) -> None:
        """The batch of what the cache holds now."""
        if self.batch is not None:
            self.token[self.batch.rows] = self.batch.token
            self.written[self.batch.rows] = self.batch.written
            self.token[self.table.spare], self.written[self.table.spare] = 0, 1
        made = arrange(self.cache, self.prompt_of, self.table.spare, self.shape.queries_per_key)
        self.arrangement, self.holes = made, sum(made.is_hole)
        rows = torch.tensor(made.rows, dtype=torch.long, device=self.device)
        done = torch.tensor(made.is_hole, dtype=torch.bool, device=self.device)
        self.batch = Live(rows, self.written[rows], self.token[rows], done)
        self.starts = self.prompt_length[rows]
        self.live_rows = np.array(made.rows)

    def _step_of(self, written: Tensor) -> Step:
        """What the next step reads, for tokens of shape (rows, tokens) that have `written` others before them."""
        assert self.arrangement is not None
        positions = self.starts[:, None] + written
        places = written if self.cache.shares_prompts else positions
        held = self._held(written.shape[1])
        lengths, masks = [], []
        for segment in self.arrangement.segments:
            rows = slice(segment.start, segment.start + segment.width)
            of_rows = held[self.live_rows[rows]]
            length = self._read_length(int(of_rows.max()), segment.pool.capacity)
            lengths.append(length)
            sees_all = written.shape[1] == 1 and length == int(of_rows.min()) and not self.holes
            masks.append(None if sees_all else self._mask(places[rows], length))
        return Step(self.arrangement, places, positions, lengths, masks)

    def _read_length(self, length: int, capacity: int) -> int:
        """Tokens of a slot that are read: all of it where a part would be copied first (see `ALIGNED`)."""
        return length if self.weights.dtype == torch.float32 and self.device.type == "cpu" else capacity

    def _mask(self, places: Tensor, length: int) -> Tensor:
        """Added to scores, shape (rows, 1, queries, length); one row of queries stands for all of a single token."""
        is_there = torch.arange(length, device=places.device) <= places[..., None]
        if places.shape[1] > 1:
            is_there = is_there.repeat_interleave(self.shape.queries_per_key, 1)
        mask = torch.zeros(is_there.shape, dtype=self.weights.dtype, device=places.device)
        return mask.masked_fill_(~is_there, float("-inf"))[:, None]

    def check_integrity(self) -> None:
        """The books of cache, scheduler and batch agree."""
        self.cache.check_integrity()
        self.scheduler.check_integrity()
        assert set(self.cache.pool) == self.scheduler.live
        assert set(self.cache.prompt_pool) == self.scheduler.held
        if self.batch is not None and self.scheduler.live:
            rows = self.batch.rows.tolist()
            owned = [row for row in rows if row != self.table.spare]
            assert sorted(owned) == sorted(self.scheduler.live)
            assert (
                not bool(self.batch.done[self.batch.rows != self.table.spare].any())
                or self.device.type != "cpu"
            )
