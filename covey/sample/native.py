"""The engine that needs nothing but PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from covey.errors import EngineError
from covey.groups import Group, Prompt
from covey.sample.general import sample_generally
from covey.sample.memory import cache_budget
from covey.sample.settings import Sampling
from covey.sample.stops import Decode

Path = Literal["auto", "fast", "general"]


class NativeEngine:
    """Samples inside the process; see `covey.sample.engine.Engine` for the contract.

    Args:
        decode: token ids → text without end and padding tokens.
        autocast: makes the context in which the model computes, for example bfloat16 autocast.
        memory: bytes that the cache may take; by default a part of what is free when sampling starts.
        max_sequences: sequences that are decoded together at most.
    """

    def __init__(
        self,
        decode: Decode,
        autocast: Any = nullcontext,
        *,
        memory: int | None = None,
        max_sequences: int = 512,
    ) -> None:
        self.decode = decode
        self.autocast: type[AbstractContextManager[Any]] = autocast
        self.memory, self.max_sequences = memory, max_sequences
        self.policy: nn.Module | None = None

    def load(self, policy: nn.Module) -> None:
        """Sample from this module; its weights are read where they are, so nothing is copied."""
        self.policy = policy

    def generate(self, prompts: Sequence[Prompt], group_size: int, settings: Sampling) -> Iterator[Group]:
        if self.policy is None:
            raise EngineError("The engine has no policy yet. Call load(policy) before generate(...).")
        if not prompts:
            return
        yield from sample_generally(
            self.policy,
            self.autocast,
            prompts,
            group_size,
            settings,
            self.decode,
            self._budget(next(self.policy.parameters()).device),
            self.max_sequences,
        )

    def _budget(self, device: torch.device) -> int:
        return cache_budget(device) if self.memory is None else self.memory
