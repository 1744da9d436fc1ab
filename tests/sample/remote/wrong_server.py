"""A server in the test's own process that takes weights wrongly, in ways that are given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from covey.errors import ConfigError, EngineError
from covey.sample.remote.served_policy import ServedPolicy
from covey.sample.remote.server import Drawn, DrawRequest, ServerFacts
from covey.sample.remote.wire import DrawBody, ScoreBody
from tests.tiny import EOS, PAD, tiny_tokenizer

Tensors = dict[str, torch.Tensor]


class WrongServer:
    """Args:
    policy: is copied; what the server was started with.
    stale: names of tensors, as the model has them, that stay as they were.
    spoil: is called with the model's tensors, and what they were, after each update.
    old_cache: draws behind prompts longer than 100 ids go on with the weights before.
    raw: log-probabilities of draws are those of the model.
    refuses: updates that are refused, counted from 1.
    facts: facts that differ.
    """

    kind = "covey"
    gives_policy_logprobs = True

    def __init__(
        self,
        policy: nn.Module,
        dtype: torch.dtype = torch.float32,
        *,
        url: str = "http://127.0.0.1:1",
        stale: Sequence[str] = (),
        spoil: Callable[[Tensors, Tensors], None] | None = None,
        old_cache: bool = False,
        raw: bool = False,
        refuses: Sequence[int] = (),
        **facts: Any,
    ) -> None:
        model = copy.deepcopy(policy).to(dtype)
        self.served = ServedPolicy(model, tiny_tokenizer(), "tiny", (PAD, EOS))
        self.url, self.stale, self.spoil, self.old_cache, self.raw = url, stale, spoil, old_cache, raw
        self.refuses, self._facts = set(refuses), facts
        self.first = {name: tensor.detach().clone() for name, tensor in self.served.weights.items()}
        self.before: WrongServer | None = None
        self.folders: list[Path] = []
        self.updates = 0
        self.adapters: list[str] = []

    def facts(self) -> ServerFacts:
        return replace(self.served.facts(), **self._facts)

    def label(self) -> str:
        return self.served.label

    @torch.no_grad()
    def update(self, folder: Path, label: str) -> None:
        self.updates += 1
        self.folders.append(folder)
        if self.updates in self.refuses:
            raise EngineError("500: not these")
        if self.old_cache:
            self.before = WrongServer(self.served.base, self.served.dtype)
        weights = self.served.weights
        before = {name: tensor.detach().clone() for name, tensor in weights.items()}
        try:
            self.served.update(folder, label)
        except ConfigError as error:
            raise EngineError(str(error)) from error
        for name in self.stale:
            weights[name].copy_(self.first[name])
        if self.spoil is not None:
            self.spoil(weights, before)

    def draw(self, request: DrawRequest) -> list[Drawn]:
        if self.old_cache and self.before is not None and len(request.prompt.ids) > 100:
            return self.before.draw(request)
        body = DrawBody(request.prompt.ids, request.settings, count=request.count, adapter=request.adapter)
        ((_, drawn),) = self.served.draw([body])
        if not self.raw:
            return drawn
        wrong = []
        for one in drawn:
            scored = self.served.score(ScoreBody((*request.prompt.ids, *one.ids), request.adapter))
            wrong.append(replace(one, logprobs=tuple(scored[-len(one.ids) :])))
        return wrong

    def prompt_logprobs(self, ids: Sequence[int], adapter: str | None = None) -> list[float]:
        return self.served.score(ScoreBody(tuple(ids), adapter))

    def load_adapter(self, name: str, folder: Path) -> None:
        self.adapters.append(name)
        try:
            self.served.add_adapter(folder, name)
        except ConfigError as error:
            raise EngineError(str(error)) from error

    def unload_adapter(self, name: str) -> None:
        try:
            self.served.remove_adapter(name)
        except ConfigError as error:
            raise EngineError(str(error)) from error

    def sleep(self, keeps_weights: bool) -> None: ...

    def wake(self) -> None: ...

    def progress(self) -> int | None:
        return None

    def is_alive(self) -> bool:
        return True
