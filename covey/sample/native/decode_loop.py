"""The fast path: one call of the engine, decoded with the engine's own forward pass.

admit   → read new prompts, draw first tokens
step    → one token for every live sequence, or several
look    → who has ended; their slots are free
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.batch import Batch, Reading
from covey.sample.native.cuda_graphs import Graphs
from covey.sample.native.kv_cache import Cache
from covey.sample.native.kv_pool import Layout
from covey.sample.native.live import Live, advance
from covey.sample.native.llama import Llama
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.prompt_lookup import LONGEST, Memory
from covey.sample.native.scheduler import Costs, Scheduler
from covey.sample.native.sequences import Sequences
from covey.sample.native.speculation import Guesser
from covey.sample.native.stop_strings import INTERVAL, Decode, StopStrings
from covey.sample.native.weights import Weights
from covey.sample.sampling import Sampling
from covey.types import Group, Prompt


@dataclass(frozen=True)
class Limits:
    """What one call may take, and how it goes about it."""

    memory: int
    """Bytes of the cache."""
    max_sequences: int
    prefill_tokens: int = 2048
    """Tokens of prompts that go through the layers together."""
    shares_prompts: bool = True
    """Store a prompt once for its completions."""
    drafts: bool = False
    """Guess tokens where few sequences are left."""
    interval: int = 1
    """Steps between two looks at who has ended. On an accelerator a look waits for everything that was asked of it."""
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
    graphs: Graphs | None = None,
) -> Iterator[Group]:
    """Groups as they finish; see `covey.sample.engine.Engine.generate`.

    Args:
        memory: what was said in earlier calls; only read here.
        graphs: captured steps, and the slots that they read; None: steps are computed operation by operation.
    """
    with torch.inference_mode():
        call = _Call(weights, prompts, group_size, settings, decode, limits, memory or Memory(), graphs)
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
        graphs: Graphs | None,
    ) -> None:
        self.decode, self.limits, self.graphs = decode, limits, graphs
        self.table = Sequences(prompts, group_size, settings, weights.device)
        self.stops = StopStrings(settings.stop_strings, decode)
        self.restrictions = Restrictions(settings, weights.vocab, weights.device)
        numbers = {ids: n for n, ids in enumerate(dict.fromkeys(p.ids for p in prompts))}
        self.prompts = list(numbers)
        """Ids of the distinct prompts."""
        self.prompt_of = np.array([numbers[p.ids] for p in prompts for _ in range(group_size)])
        lengths = np.array([len(self.prompts[prompt]) for prompt in self.prompt_of])
        self.cache = self._new_cache(weights)
        self.batch = Batch(
            self.table,
            self.cache,
            self.prompt_of,
            lengths,
            weights.shape.queries_per_key,
            self._reading(weights),
        )
        longest = self.table.prompt_width + settings.max_new_tokens + LONGEST
        self.model = graphs.model if graphs is not None else Llama(weights, longest)
        self.guesser = Guesser(self.batch, self.prompts, memory) if limits.drafts else None
        self.scheduler = Scheduler(
            self.prompt_of.tolist(), self._costs(lengths.tolist()), limits.memory, limits.max_sequences
        )
        self.first_logits: dict[int, Tensor] = {}
        """Logits after a prompt, for completions that have not entered yet."""
        self.open = [group_size] * len(prompts)
        """Completions of each group that have not ended."""
        self.steps = 0

    def _new_cache(self, weights: Weights) -> Cache:
        layout = layout_of(weights)
        if self.graphs is None:
            on_cpu = weights.device.type == "cpu"
            return Cache(layout, self.limits.memory, self.limits.shares_prompts, keys_transposed=on_cpu)
        self.graphs.clear()
        return Cache(layout, self.limits.memory, False, keys_transposed=False, fixed=self.graphs.pool)

    def _reading(self, weights: Weights) -> Reading:
        if self.graphs is not None:
            return "coarse"
        is_copied = weights.device.type == "cpu" and weights.dtype != torch.float32
        return "whole" if is_copied else "exact"

    def _costs(self, prompt_lengths: Sequence[int]) -> Costs:
        new = self.table.settings.max_new_tokens + (LONGEST if self.limits.drafts else 0)
        return Costs(
            [self.cache.completion_cost(length, new) for length in prompt_lengths],
            [self.cache.prompt_cost(len(ids)) for ids in self.prompts],
        )

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
        prompts = self.prompt_of[rows].tolist()
        self._prefill([p for p in dict.fromkeys(prompts) if p not in self.cache.prompt_pool])
        live = Live.start(torch.tensor(rows, device=self.table.ids.device))
        logits = torch.stack([self.first_logits[prompt] for prompt in prompts])
        advance(logits, live, self.table, self.restrictions)
        self.batch.start(live)
        self.batch.lengths[rows] = 1
        ended = [row for row, done in zip(rows, live.done.tolist(), strict=True) if done]
        for row in ended if self.stops.stops else ():
            self.stops.end(row, self.table.ids[row, :1].tolist())
        over = set(ended)
        self.cache.add_completions({row: int(self.prompt_of[row]) for row in rows if row not in over})
        self.batch.rearrange()
        return self._finish(ended)

    def _prefill(self, new: Sequence[int]) -> None:
        if not new:
            return
        self.cache.add_prompts({p: len(self.prompts[p]) for p in new})
        prompts = [(p, self.prompts[p]) for p in new]
        states = self.model.prefill(self.cache, prompts, self.limits.prefill_tokens)
        self.first_logits.update(zip(new, self.model.logits(states).float(), strict=True))

    def _step(self) -> None:
        self.steps += 1
        guesses: list[list[int]] = []
        tokens = self._tokens_per_sequence()
        self.batch.make_room(tokens)
        if self.guesser is not None and tokens > 1:
            guesses = self.guesser.guesses(tokens - 1)
        if self.guesser is not None and any(guesses):
            self.guesser.step(self.model, self.restrictions, tokens, guesses)
            return
        advance(self._logits(), self.batch.live, self.table, self.restrictions)
        self.batch.grow(1)

    def _tokens_per_sequence(self) -> int:
        if self.guesser is None or self.restrictions.reads_history:
            return 1
        return self.guesser.gauge.tokens(len(self.scheduler.live))

    def _logits(self) -> Tensor:
        tokens, step = self.batch.live.token[:, None], self.batch.next_step(1)
        if self.graphs is not None:
            return self.graphs.logits(tokens, step)
        return self.model.logits(self.model.step(tokens, step))

    # --- who has ended ------------------------------------------------------------------------------------------------

    def _look(self) -> list[Group]:
        """Note who has ended."""
        ended = self._ended() if self._is_worth_looking() else []
        if not ended:
            return []
        for row in ended:
            self.cache.drop_completion(row)
        finished = self._finish(ended)
        self.cache.compact()
        self.batch.rearrange()
        return finished

    def _is_worth_looking(self) -> bool:
        if self.stops.stops and self.steps % INTERVAL == 0:
            return True
        if self.limits.interval == 1:
            return int(self.batch.live.done.sum()) > self.batch.holes
        lengths = self.batch.lengths[self.batch.rows]
        is_due = self.steps % self.limits.interval == 0
        return is_due or bool((lengths >= self.table.settings.max_new_tokens).any())

    def _ended(self) -> list[int]:
        ended = []
        live, lengths = self.batch.live, self.batch.lengths
        columns = live.rows.tolist(), live.done.tolist(), live.written.tolist()
        for row, done, written in zip(*columns, strict=True):
            if row == self.table.spare:
                continue
            end = self.stops.end(row, self.table.ids[row, :written].tolist()) if self.stops.stops else None
            lengths[row] = written if end is None else end
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
            position = row // self.table.group_size
            self.open[position] -= 1
            if not self.open[position]:
                lengths = self.batch.lengths.tolist()
                finished.append(self.table.group(position, lengths, self.stops.stopped, self.decode))
        return finished

    def check_integrity(self) -> None:
        """The books of cache, scheduler and batch agree."""
        self.cache.check_integrity()
        self.scheduler.check_integrity()
        assert set(self.cache.pool) == self.scheduler.live
        assert set(self.cache.prompt_pool) == self.scheduler.held
        owned = [row for row in self.batch.live.rows.tolist() if row != self.table.spare]
        assert sorted(owned) == sorted(self.scheduler.live)


def layout_of(weights: Weights) -> Layout:
    """What a token takes in the cache of a policy."""
    shape = weights.shape
    return Layout(shape.layers, shape.kv_heads, shape.head_dim, weights.dtype, weights.device)
