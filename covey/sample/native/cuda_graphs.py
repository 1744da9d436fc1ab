"""CUDA graphs: a step of the decoder as one launch.

A step of a small policy is a thousand kernels of a few microseconds; launched one by one they take several times as long as
they run. A graph is captured for each number of rows and each length that is read, on tensors that stay where they are:
the weights, one pool of slots for whole texts, and the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.sample.native.kv_pool import Layout, Pool, rounded_up
from covey.sample.native.llama import Llama, Step
from covey.sample.native.weights import Weights


@dataclass(frozen=True)
class Captured:
    """A graph and the tensors that it reads and writes."""

    tokens: Tensor
    step: Step
    logits: Tensor
    replay: Callable[[], None]


class Graphs:
    """What stays from call to call: a pool of slots, and the graphs that read it.

    Args:
        weights: what is computed with; they may change in place.
        slots: sequences that are decoded together at most.
        capacity: tokens of the longest text.
    """

    def __init__(self, weights: Weights, layout: Layout, slots: int, capacity: int) -> None:
        self.weights, self.layout = weights, layout
        self.pool = Pool(layout, capacity, keys_transposed=False)
        self.pool.fix(rounded_up(slots))
        self.model = Llama(weights, capacity)
        self.results = torch.empty(self.slots, weights.vocab, dtype=weights.dtype, device=weights.device)
        """Where every graph leaves its logits: only one of them runs at a time, and there are many."""
        self.captured: dict[tuple[int, ...], Captured] = {}
        self.memory: Any = None
        """What all graphs allocate from; only one of them runs at a time."""

    @property
    def slots(self) -> int:
        return len(self.pool.owners)

    @property
    def bytes(self) -> int:
        """Of the slots and of the logits."""
        return self.pool.bytes + self.results.nbytes

    def holds(self, slots: int, capacity: int) -> bool:
        """Whether a call fits in."""
        return slots <= self.slots and capacity <= self.pool.capacity

    def clear(self) -> None:
        """Forget the sequences of a call that was given up."""
        for owner in list(self.pool.slots):
            self.pool.release(owner)

    def logits(self, tokens: Tensor, step: Step) -> Tensor:
        """Next-token logits of a step of one token per sequence, shape (rows, vocab); valid until the next step."""
        key = (len(tokens), *step.lengths)
        if key not in self.captured:
            self.captured[key] = self._capture(tokens, step)
        graph = self.captured[key]
        graph.tokens.copy_(tokens)
        graph.step.places.copy_(step.places)
        graph.step.positions.copy_(step.positions)
        for static, mask in zip(graph.step.masks, step.masks, strict=True):
            assert static is not None and mask is not None
            static.copy_(mask)
        graph.replay()
        return graph.logits

    def _capture(self, tokens: Tensor, step: Step) -> Captured:
        tokens = tokens.clone()
        masks = [None if mask is None else mask.clone() for mask in step.masks]
        step = replace(step, places=step.places.clone(), positions=step.positions.clone(), masks=masks)
        results = self.results[: len(tokens)]
        replay, logits, self.memory = capture(
            lambda: results.copy_(self.model.logits(self.model.step(tokens, step))), self.memory
        )
        return Captured(tokens, step, logits, replay)


def capture(work: Callable[[], Tensor], memory: Any) -> tuple[Callable[[], None], Tensor, Any]:
    """Record work on the current device.

    The work is done twice before: libraries choose their kernels and allocate on first use, which must not be recorded.

    Args:
        memory: of the graphs that were recorded before; None for the first.

    Returns:
        What repeats the work, the tensor with its result, and the memory of the graphs.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        result = work()
    return graph.replay, result, graph.pool()
