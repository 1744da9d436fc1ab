"""The general path: decodes any causal language model with its own forward pass and, where that is exact, its own cache.

Each distinct prompt is read once, what the model keeps of it is repeated for its completions, and sequences leave the batch
when they end. Prompts are padded on the left where the model takes that (`covey.sample.native.ways`), and else prompts of
equal length are read together; positions are passed to the model, so that models with absolute positions see the same numbers
as without padding. Where the budget does not hold all sequences, they are decoded in waves. With turns, a sequence leaves its
wave where its turn ends, and a later wave reads its whole text again behind the answer: simple and exact, and slower than what
the fast path does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from covey.models.inference_mode import Autocast, inference_mode
from covey.sample.native.any_forward import AnyForward
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.rounds import Rounds
from covey.sample.native.sequences import ActiveSequences, SequenceTable
from covey.sample.native.stop_strings import INTERVAL
from covey.sample.native.ways import Decoding
from covey.sample.turns import Schedule
from covey.types import Group
from covey.vision.sight import Eyes

COPIES = 2
"""A cache that grows by a token a step holds the old and the new copy for a moment."""


def sample_any_model(
    policy: nn.Module,
    autocast: Autocast,
    table: SequenceTable,
    decoding: Decoding,
    budget: int,
    max_sequences: int,
    schedule: Schedule = "fixed",
    eyes: Eyes | None = None,
) -> Iterator[Group]:
    """Yield groups as they are finished; see `covey.sample.engine.Engine.generate`.

    Args:
        autocast: makes the context in which the model computes.
        table: the sequences of the call.
        decoding: how this policy is decoded.
        budget: bytes that the cache may take; at least one sequence is decoded, whatever it takes.
        max_sequences: sequences that are decoded together at most.
        schedule: when rows go on that wait for an answer.
        eyes: say what each prompt shows beside its ids; None: all are text.
    """
    longest = table.prompt_width + int(table.most.max())
    of_one = COPIES * (decoding.bytes_per_token * longest + decoding.bytes_per_sequence)
    size = max(1, min(budget // max(1, of_one), max_sequences))
    rounds, missing = Rounds(table, schedule), [table.group_size] * len(table.prompts)
    while any(missing):
        for rows in rounds.waves(size, decoding.way):
            with inference_mode(policy), autocast():
                over = _decode_wave(AnyForward(policy, decoding.way), rounds, rows, eyes)
            yield from _complete(rounds, over, missing)
        yield from _complete(rounds, rounds.over_by_answers(), missing)


def _complete(rounds: Rounds, over: Sequence[int], missing: list[int]) -> Iterator[Group]:
    """Yield the groups that are complete with these rows; `missing` counts the rows of each that are not over."""
    table = rounds.table
    for row in over:
        missing[row // table.group_size] -= 1
    for position in sorted({row // table.group_size for row in over}):
        if missing[position] == 0:
            yield table.group(position, rounds.lengths)


def _decode_wave(forward: AnyForward, rounds: Rounds, rows: Sequence[int], eyes: Eyes | None) -> list[int]:
    """Decode these rows of the table to the ends of their turns; returns those that are over."""
    table, prompts = rounds.table, [rounds.prompt(row) for row in rows]
    # A text is told from others by its pictures too.
    texts = [(rounds.text(row), prompt.key[1]) for row, prompt in zip(rows, prompts, strict=True)]
    distinct = dict(zip(texts, prompts, strict=True))
    numbers = {text: number for number, text in enumerate(distinct)}
    sights = [] if eyes is None else [eyes.look(p.ids, p.pictures) for p in distinct.values()]
    state = torch.tensor([rows, [rounds.lengths[row] for row in rows]], device=forward.device)
    active, over = ActiveSequences.start(*state), list[int]()
    logits = forward.prefill([ids for ids, _ in distinct], [numbers[text] for text in texts], sights)
    restrictions = Restrictions(table.settings, logits.shape[-1], logits.device)
    for step in itertools.count(1):
        active.advance(logits.float(), table, restrictions)
        if (table.stops.stops and step % INTERVAL == 0) or bool(active.done.any()):
            active = _without_ended(forward, active, rounds, over)
        if not len(active.rows):
            break
        logits = forward.step(active.token)
    return over


def _without_ended(
    forward: AnyForward, active: ActiveSequences, rounds: Rounds, over: list[int]
) -> ActiveSequences:
    """Return the sequences whose turn goes on; rows that are over are added to `over`."""
    kept = []
    for index, (row, has_ended, length) in enumerate(
        zip(active.rows.tolist(), *active.ends(rounds.table), strict=True)
    ):
        if not has_ended:
            kept.append(index)
        elif rounds.is_over(row, length):
            over.append(row)
    if len(kept) == len(active.rows):
        return active
    remaining = torch.tensor(kept, dtype=torch.long, device=forward.device)
    forward.select(remaining)
    return ActiveSequences(
        active.rows[remaining], active.written[remaining], active.token[remaining], active.done[remaining]
    )
