"""CUDA graphs: a step of the decoder as one launch.

A step of a small policy is a thousand kernels of a few microseconds; launched one by one they take several times as long as
they run. A graph is captured for each number of rows and each length that is read, on tensors that stay where they are:
the weights, one pool of slots for whole texts, and the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.sample.native.kv_pool import KvPool, rounded_up
from covey.sample.native.llama import DecodeStep, Llama
from covey.sample.native.masks import StepMasks
from covey.sample.native.turn_taking import READ_AT_ONCE
from covey.sample.native.weights import Weights

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


@dataclass(frozen=True)
class CapturedStep:
    """A graph and the tensors that it reads and writes."""

    tokens: Tensor
    step: DecodeStep
    logits: Tensor
    replay: Callable[[], None]


class Graphs:
    """A pool of slots, and the graphs that read it; both stay from call to call.

    Args:
        weights: of the policy; they may change in place.
        slots: sequences that are decoded together at most.
        capacity: tokens of the longest text.
    """

    def __init__(self, weights: Weights, slots: int, capacity: int) -> None:
        self.pool = KvPool(weights.kv_format, capacity, keys_transposed=False, fixed_slots=rounded_up(slots))
        self.slots = len(self.pool.owners)
        self.model = Llama(weights, capacity + READ_AT_ONCE)
        self.results = torch.empty(self.slots, weights.vocab, dtype=weights.dtype, device=weights.device)
        """Where every graph leaves its logits: only one of them runs at a time, and there are many."""
        self.captured: dict[tuple[int, ...], CapturedStep] = {}
        self.memory: _POOL_HANDLE | None = None
        """What all graphs allocate from; only one of them runs at a time."""

    @property
    def bytes(self) -> int:
        """Bytes of the slots and of the logits."""
        return self.pool.bytes + self.results.nbytes

    def logits(self, tokens: Tensor, step: DecodeStep) -> Tensor:
        """Return next-token logits of a step of one token per sequence, valid until the next step.

        Args:
            tokens: shape (rows, 1).

        Returns:
            Shape (rows, vocab).
        """
        key = (len(tokens), *step.lengths)
        if key not in self.captured:
            inputs, results = tokens.clone(), self.results[: len(tokens)]
            masks = {
                w: StepMasks([m if m is None else m.clone() for m in of.own], [])
                for w, of in step.masks.items()
            }
            fixed = replace(step, offsets=step.offsets.clone(), positions=step.positions.clone(), masks=masks)
            replay, logits, self.memory = capture(
                lambda: results.copy_(self.model.logits(self.model.step(inputs, fixed))), self.memory
            )
            self.captured[key] = CapturedStep(inputs, fixed, logits, replay)
        graph = self.captured[key]
        graph.tokens.copy_(tokens)
        graph.step.offsets.copy_(step.offsets)
        graph.step.positions.copy_(step.positions)
        for window, its_masks in step.masks.items():
            for static, mask in zip(graph.step.masks[window].own, its_masks.own, strict=True):
                assert static is not None and mask is not None
                static.copy_(mask)
        graph.replay()
        return graph.logits


def capture(
    work: Callable[[], Tensor], memory: _POOL_HANDLE | None
) -> tuple[Callable[[], None], Tensor, _POOL_HANDLE]:
    """Record work on the current device; return what repeats it, its result, and the memory of the graphs.

    The work is done twice before: libraries choose their kernels and allocate on first use, which must not be recorded.

    Args:
        memory: of the graphs that were recorded before; None for the first.
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
