"""The fast path: one call of the engine, decoded with the engine's own forward pass.

admit   → read new prompts, draw first tokens
step    → one token for every active sequence, or several
look    → who has ended; their slots are free
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.batch import Batch
from covey.sample.native.kv_cache import KvCache
from covey.sample.native.llama import Llama
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.prompt_lookup import LONGEST, CompletionIndex
from covey.sample.native.scheduler import Scheduler
from covey.sample.native.sequences import ActiveSequences, SequenceTable
from covey.sample.native.shown import PromptPictures
from covey.sample.native.speculation import Speculator
from covey.sample.native.stop_strings import INTERVAL
from covey.sample.native.turn_taking import READ_AT_ONCE, TurnTaking
from covey.sample.native.weights import Weights
from covey.sample.turns import Schedule
from covey.types import Group, PromptKey

if TYPE_CHECKING:
    from covey.sample.native.cuda_graphs import Graphs


@dataclass(frozen=True)
class DecodeOptions:
    """Limits of one call, and the ways that it takes."""

    memory: int
    """Bytes of the cache."""
    max_sequences: int
    prefill_tokens: int = 2048
    """Tokens of prompts that go through the layers together."""
    shares_prompts: bool = True
    """Store a prompt once for its completions."""
    prompt_lookup: bool = False
    """Propose draft tokens where few sequences are left."""
    interval: int = 1
    """Steps between two looks at who has ended. On an accelerator a look waits for everything that was asked of it."""
    schedule: Schedule = "fixed"
    """When a row with a late answer goes on."""


def decode_loop(
    weights: Weights,
    table: SequenceTable,
    options: DecodeOptions,
    completions: CompletionIndex | None = None,
    graphs: Graphs | None = None,
    shown: Mapping[PromptKey, PromptPictures] | None = None,
) -> Iterator[Group]:
    """Yield groups as they finish; see `covey.sample.engine.Engine.generate`.

    Args:
        completions: of earlier calls; only read here.
        graphs: captured steps, and the slots that they read; None: steps are computed operation by operation.
        shown: pictures of prompts, by the prompts' keys; None: all are text.
    """
    # A generator must not hold the inference mode while it is suspended: the consumer would compute in it.
    call = _Call(weights, table, options, completions or CompletionIndex(), graphs, shown or {})
    while any(call.open):
        yield from call.proceed()


class _Call:
    """The state of one call."""

    @torch.inference_mode()
    def __init__(
        self,
        weights: Weights,
        table: SequenceTable,
        options: DecodeOptions,
        completions: CompletionIndex,
        graphs: Graphs | None,
        shown: Mapping[PromptKey, PromptPictures],
    ) -> None:
        self.table, self.options, self.graphs = table, options, graphs
        prompts, settings = table.prompts, table.settings
        self.restrictions = Restrictions(settings, weights.vocab, weights.device)
        distinct = {prompt.key: prompt for prompt in prompts}
        numbers = {key: n for n, key in enumerate(distinct)}
        self.prompts = list(distinct.values())
        """The distinct prompts."""
        self.prompt_of = np.repeat([numbers[prompt.key] for prompt in prompts], table.group_size)

        self.shown = {numbers[key]: its_own for key, its_own in shown.items()}
        """Pictures of the distinct prompts that have some, by number."""
        shifts = [self.shown[n].shift if n in self.shown else 0 for n in range(len(self.prompts))]

        if graphs is None:
            self.cache = KvCache(weights.kv_format, options.memory, options.shares_prompts)
            ahead = LONGEST if table.episodes is None else READ_AT_ONCE
            self.model = Llama(weights, table.prompt_width + int(table.most.max()) + ahead)
        else:
            for owner in list(graphs.pool.slots):  # of a call that was given up
                graphs.pool.release(owner)
            self.cache = KvCache(weights.kv_format, options.memory, shares_prompts=False, fixed=graphs.pool)
            self.model = graphs.model
        self.batch = Batch(table, self.cache, self.prompt_of, weights.shape, shifts if any(shifts) else None)
        self.speculator = Speculator(self.batch, self.prompts, completions) if options.prompt_lookup else None
        pairs = zip(self.batch.prompt_lengths[:-1].tolist(), table.most[:-1].tolist(), strict=True)
        ahead = LONGEST if options.prompt_lookup else 0
        self.scheduler = Scheduler(
            self.prompt_of.tolist(),
            [self.cache.completion_bytes(length, new + ahead) for length, new in pairs],
            [self.cache.prompt_bytes(len(prompt.ids)) for prompt in self.prompts],
            options.memory,
            options.max_sequences,
        )
        self.turns = None
        if table.episodes is not None:
            self.turns = TurnTaking(
                table.episodes,
                self.batch,
                self.scheduler,
                self.model,
                options.schedule,
                options.prefill_tokens,
            )
        self.first_logits: dict[int, Tensor] = {}
        """Logits after a prompt, for completions that have not entered yet."""
        self.open = [table.group_size] * len(prompts)
        """Completions of each group that have not ended."""
        self.steps = 0

    # --- the loop -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def proceed(self) -> list[Group]:
        """Decode until at least one group has finished."""
        finished: list[Group] = []
        while not finished:
            if self.turns is not None and self.turns.waiting.pending:
                finished += self._finish(self.turns.wake(self.steps))
            entering = self.scheduler.admit()
            if entering:
                finished += self._enter(entering)
            if self.scheduler.active:
                self._step()
                finished += self._finish_ended()
            elif self.turns is not None and self.turns.waiting.pending:
                self.steps = self.turns.waiting.next_step(self.steps)
        return finished

    def _enter(self, rows: Sequence[int]) -> list[Group]:
        """Read new prompts, draw the first token of each row, and give those that go on a slot."""
        prompts = self.prompt_of[rows].tolist()
        new = [(p, self.prompts[p].ids) for p in dict.fromkeys(prompts) if p not in self.cache.prompt_pool]
        if new:
            self.cache.add_prompts({p: len(ids) for p, ids in new})
            states = self.model.prefill(self.cache, new, self.options.prefill_tokens, self.shown)
            logits = self.model.logits(states)
            self.first_logits.update(zip((p for p, _ in new), logits.float(), strict=True))
        entering = ActiveSequences.start(torch.tensor(rows, device=self.table.ids.device))
        logits = torch.stack([self.first_logits[prompt] for prompt in prompts])  # (rows, vocab)
        entering.advance(logits, self.table, self.restrictions)
        self.batch.lengths[rows] = 1
        ended = [row for row, done in zip(rows, entering.done.tolist(), strict=True) if done]
        for row in ended if self.table.stops.stops else ():
            self.table.stops.end(row, self.table.ids[row, :1].tolist())
        over = set(ended) if self.turns is None else set()
        self.cache.add_completions({row: int(self.prompt_of[row]) for row in rows if row not in over})
        self.batch.rearrange(entering)
        if self.turns is None:
            return self._finish(ended)
        self.turns.read_openings(rows)
        return self._end_turns(ended)

    def _step(self) -> None:
        """Add a token to every active sequence, or several where drafts are made."""
        self.steps += 1
        batch, speculator, tokens = self.batch, self.speculator, 1
        if speculator is not None and not self.restrictions.reads_history:
            tokens = speculator.acceptance.tokens(len(self.scheduler.active))
        batch.make_room(tokens)
        if speculator is not None and tokens > 1:
            drafts = speculator.propose(tokens - 1)
            if any(drafts):
                speculator.step(self.model, self.restrictions, tokens, drafts)
                return
        last, step = batch.active.token[:, None], batch.next_step(1)
        if self.graphs is not None:
            logits = self.graphs.logits(last, step)
        else:
            logits = self.model.logits(self.model.step(last, step))
        batch.active.advance(logits, self.table, self.restrictions)
        batch.lengths[batch.rows] += 1

    # --- who has ended ------------------------------------------------------------------------------------------------

    def _finish_ended(self) -> list[Group]:
        """Look for sequences that have ended, where a look is due, and free their slots."""
        batch, table, interval = self.batch, self.table, self.options.interval
        if table.stops.stops and self.steps % INTERVAL == 0:
            is_due = True
        elif interval == 1:
            is_due = int(batch.active.done.sum()) > batch.holes
        else:
            is_long = batch.lengths[batch.rows] >= table.limit[batch.rows]
            is_due = self.steps % interval == 0 or bool(is_long.any())
        if not is_due:
            return []
        is_over, batch.lengths[batch.rows] = batch.active.ends(table)
        ended = [r for r, over in zip(batch.rows.tolist(), is_over, strict=True) if over and r != table.spare]
        return self._end_turns(ended) if ended else []

    def _end_turns(self, rows: Sequence[int]) -> list[Group]:
        """Finish the rows whose turn was the last; with turns the others go on, or wait."""
        if self.speculator is not None:
            self.speculator.forget_behind(rows)
        finished = self._finish(rows if self.turns is None else self.turns.end(rows, self.steps))
        self.cache.compact()
        self.batch.rearrange()
        return finished

    def _finish(self, rows: Sequence[int]) -> list[Group]:
        """Note that rows have ended; returns the groups that are complete with them."""
        finished = []
        for row in rows:
            prompt = self.scheduler.finish(row)
            self.cache.release(row, prompt)
            if prompt is not None:
                del self.first_logits[prompt]
            position = row // self.table.group_size
            self.open[position] -= 1
            if not self.open[position]:
                finished.append(self.table.group(position, self.batch.lengths.tolist()))
        return finished
