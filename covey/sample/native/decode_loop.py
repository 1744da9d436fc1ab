"""The fast path: one call of the engine, decoded with the engine's own forward pass.

admit   → read new prompts, draw first tokens
step    → one token for every active sequence, or several
look    → who has ended; their slots are free
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.sample.native.batch import Batch
from covey.sample.native.cuda_graphs import Graphs
from covey.sample.native.kv_cache import KvCache
from covey.sample.native.llama import Llama
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.prompt_lookup import LONGEST, CompletionIndex
from covey.sample.native.scheduler import Scheduler
from covey.sample.native.sequences import ActiveSequences, SequenceTable
from covey.sample.native.speculation import Speculator
from covey.sample.native.stop_strings import INTERVAL
from covey.sample.native.weights import Weights
from covey.types import Group


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


def decode_loop(
    weights: Weights,
    table: SequenceTable,
    options: DecodeOptions,
    completions: CompletionIndex | None = None,
    graphs: Graphs | None = None,
) -> Iterator[Group]:
    """Yield groups as they finish; see `covey.sample.engine.Engine.generate`.

    Args:
        completions: of earlier calls; only read here.
        graphs: captured steps, and the slots that they read; None: steps are computed operation by operation.
    """
    with torch.inference_mode():
        call = _Call(weights, table, options, completions or CompletionIndex(), graphs)
    while any(call.open):
        # A generator must not hold the mode while it is suspended: the consumer would compute in it.
        with torch.inference_mode():
            finished = call.proceed()
        yield from finished


class _Call:
    """The state of one call."""

    def __init__(
        self,
        weights: Weights,
        table: SequenceTable,
        options: DecodeOptions,
        completions: CompletionIndex,
        graphs: Graphs | None,
    ) -> None:
        self.table, self.options, self.graphs = table, options, graphs
        prompts, settings = table.prompts, table.settings
        self.restrictions = Restrictions(settings, weights.vocab, weights.device)
        numbers = {ids: n for n, ids in enumerate(dict.fromkeys(p.ids for p in prompts))}
        self.prompts = list(numbers)
        """Ids of the distinct prompts."""
        self.prompt_of = np.array([numbers[p.ids] for p in prompts for _ in range(table.group_size)])

        if graphs is None:
            self.cache = KvCache(weights.kv_format, options.memory, options.shares_prompts)
            self.model = Llama(weights, table.prompt_width + settings.max_new_tokens + LONGEST)
        else:
            for owner in list(graphs.pool.slots):  # of a call that was given up
                graphs.pool.release(owner)
            self.cache = KvCache(weights.kv_format, options.memory, shares_prompts=False, fixed=graphs.pool)
            self.model = graphs.model
        self.batch = Batch(table, self.cache, self.prompt_of, weights.shape)
        self.speculator = Speculator(self.batch, self.prompts, completions) if options.prompt_lookup else None
        new = settings.max_new_tokens + (LONGEST if options.prompt_lookup else 0)
        self.scheduler = Scheduler(
            self.prompt_of.tolist(),
            [self.cache.completion_bytes(length, new) for length in self.batch.prompt_lengths[:-1].tolist()],
            [self.cache.prompt_bytes(len(ids)) for ids in self.prompts],
            options.memory,
            options.max_sequences,
        )
        self.first_logits: dict[int, Tensor] = {}
        """Logits after a prompt, for completions that have not entered yet."""
        self.open = [table.group_size] * len(prompts)
        """Completions of each group that have not ended."""
        self.steps = 0

    # --- the loop -----------------------------------------------------------------------------------------------------

    def proceed(self) -> list[Group]:
        """Decode until at least one group has finished."""
        finished: list[Group] = []
        while not finished:
            entering = self.scheduler.admit()
            if entering:
                finished += self._enter(entering)
            if self.scheduler.active:
                self._step()
                finished += self._finish_ended()
        return finished

    def _enter(self, rows: Sequence[int]) -> list[Group]:
        """Read new prompts, draw the first token of each row, and give those that go on a slot."""
        prompts = self.prompt_of[rows].tolist()
        new = [(p, self.prompts[p]) for p in dict.fromkeys(prompts) if p not in self.cache.prompt_pool]
        if new:
            self.cache.add_prompts({p: len(ids) for p, ids in new})
            logits = self.model.logits(self.model.prefill(self.cache, new, self.options.prefill_tokens))
            self.first_logits.update(zip((p for p, _ in new), logits.float(), strict=True))
        entering = ActiveSequences.start(torch.tensor(rows, device=self.table.ids.device))
        logits = torch.stack([self.first_logits[prompt] for prompt in prompts])  # (rows, vocab)
        entering.advance(logits, self.table, self.restrictions)
        self.batch.lengths[rows] = 1
        ended = [row for row, done in zip(rows, entering.done.tolist(), strict=True) if done]
        for row in ended if self.table.stops.stops else ():
            self.table.stops.end(row, self.table.ids[row, :1].tolist())
        over = set(ended)
        self.cache.add_completions({row: int(self.prompt_of[row]) for row in rows if row not in over})
        self.batch.rearrange(entering)
        return self._finish(ended)

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
            is_long = batch.lengths[batch.rows] >= table.settings.max_new_tokens
            is_due = self.steps % interval == 0 or bool(is_long.any())
        if not is_due:
            return []
        is_over, batch.lengths[batch.rows] = batch.active.ends(table)
        ended = [r for r, over in zip(batch.rows.tolist(), is_over, strict=True) if over and r != table.spare]
        if not ended:
            return []
        finished = self._finish(ended)
        self.cache.compact()
        batch.rearrange()
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
