"""The general path: decodes any causal language model with its own forward pass and, where that is exact, its own cache.

Each distinct prompt is read once, what the model keeps of it is repeated for its completions, and sequences leave the batch
when they end. Prompts are padded on the left where the model takes that (`covey.sample.native.ways`), and else prompts of
equal length are read together; positions are passed to the model, so that models with absolute positions see the same numbers
as without padding. Where the budget does not hold all sequences, they are decoded in waves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from covey.models.inference_mode import Autocast, inference_mode
from covey.sample.native.any_forward import AnyForward, Way
from covey.sample.native.logits_processors import Restrictions
from covey.sample.native.sequences import ActiveSequences, SequenceTable
from covey.sample.native.stop_strings import INTERVAL
from covey.sample.native.ways import Decoding
from covey.types import Group

COPIES = 2
"""A cache that grows by a token a step holds the old and the new copy for a moment."""


def sample_any_model(
    policy: nn.Module,
    autocast: Autocast,
    table: SequenceTable,
    decoding: Decoding,
    budget: int,
    max_sequences: int,
) -> Iterator[Group]:
    """Yield groups as they are finished; see `covey.sample.engine.Engine.generate`.

    Args:
        autocast: makes the context in which the model computes.
        table: the sequences of the call.
        decoding: how this policy is decoded.
        budget: bytes that the cache may take; at least one sequence is decoded, whatever it takes.
        max_sequences: sequences that are decoded together at most.
    """
    longest = table.prompt_width + table.settings.max_new_tokens
    of_one = COPIES * (decoding.bytes_per_token * longest + decoding.bytes_per_sequence)
    size = max(1, min(budget // max(1, of_one), max_sequences))
    lengths, missing = [0] * table.number, [table.group_size] * len(table.prompts)
    for rows in waves(table, size, decoding.way):
        with inference_mode(policy), autocast():
            found = _decode_wave(policy, table, rows, decoding.way)
        for row, length in zip(rows, found, strict=True):
            lengths[row] = length
            missing[row // table.group_size] -= 1
        for position in sorted({row // table.group_size for row in rows}):
            if missing[position] == 0:
                yield table.group(position, lengths)


def waves(table: SequenceTable, size: int, way: Way) -> list[list[int]]:
    """Return the rows of the table that are decoded together, at most `size` each."""
    by_length: dict[int, list[int]] = {}
    for row in range(table.number):
        length = 0 if way.pads else len(table.prompts[row // table.group_size].ids)
        by_length.setdefault(length, []).append(row)
    return [rows[n : n + size] for rows in by_length.values() for n in range(0, len(rows), size)]


def _decode_wave(policy: nn.Module, table: SequenceTable, rows: Sequence[int], way: Way) -> list[int]:
    """Decode these rows of the table to their ends; returns their lengths."""
    prompts = [table.prompts[row // table.group_size].ids for row in rows]
    distinct = {ids: number for number, ids in enumerate(dict.fromkeys(prompts))}
    forward = AnyForward(policy, way)
    active = ActiveSequences.start(torch.tensor(list(rows), device=forward.device))
    logits = forward.prefill(list(distinct), [distinct[ids] for ids in prompts])
    restrictions = Restrictions(table.settings, logits.shape[-1], logits.device)
    lengths: dict[int, int] = {}
    while True:
        active.advance(logits.float(), table, restrictions)
        looks_at_text = bool(table.stops.stops) and int(active.written.max()) % INTERVAL == 0
        if looks_at_text or bool(active.done.any()):
            active = _without_ended(forward, active, table, lengths)
        if not len(active.rows):
            return [lengths[row] for row in rows]
        logits = forward.step(active.token)


def _without_ended(
    forward: AnyForward, active: ActiveSequences, table: SequenceTable, lengths: dict[int, int]
) -> ActiveSequences:
    """Return the sequences that go on; the lengths of the others are noted."""
    kept = []
    for index, (row, is_over, length) in enumerate(
        zip(active.rows.tolist(), *active.ends(table), strict=True)
    ):
        if is_over:
            lengths[row] = length
        else:
            kept.append(index)
    if len(kept) == len(active.rows):
        return active
    remaining = torch.tensor(kept, dtype=torch.long, device=forward.device)
    forward.select(remaining)
    return ActiveSequences(
        active.rows[remaining], active.written[remaining], active.token[remaining], active.done[remaining]
    )
