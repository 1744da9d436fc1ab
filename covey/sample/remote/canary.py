"""The canary: before a run, every tensor is changed once in the trainer and on the servers, and has to show there as it does here.

A few layers at a time, by parts (see `covey.sample.remote.disturb`): the trainer's own forward pass says how far the log-probabilities of
a text move; a server's have to move to the same place. A tensor that stays old, is dropped or lands elsewhere shows as a good part
of that way. Behind each group the true weights are sent again, and the first answer has to come back. The first group also draws
behind a long prompt, before and after: a cache of old keys and values shows there, as prompts that are scored never read one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from covey.errors import EngineError
from covey.models.inference_mode import Autocast
from covey.sample.remote.disturb import WORDS, disturbable, disturbed, groups_of
from covey.sample.remote.drawn_check import draw_checked
from covey.sample.remote.effective import SavedForm
from covey.sample.remote.own_forward import own_logits, own_logprobs
from covey.sample.remote.server import DrawRequest, Server
from covey.sample.remote.weight_sync import WeightSync, shared_dtype
from covey.sample.sampling import Sampling
from covey.types import Prompt

SHARE = {torch.float32: 0.002, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Of the way that log-probabilities move, how much may be missing: rounding, by the dtype that is computed in."""

QUANTISED = 0.25
"""The same where a server rounds the weights that it gets to fewer bits."""

TIMES = {torch.float32: 10.0, torch.bfloat16: 2.0, torch.float16: 3.0}
"""How many times the gap that true weights have may be missing besides."""

LEAST = {torch.float32: 1e-5, torch.bfloat16: 1e-3, torch.float16: 1e-4}
"""A gap, in nats, that is nothing."""

DRAWN = 8
"""Tokens that are drawn behind the long prompt, each by a completion of its own."""

SHOWS = 1.5
"""Times what is rounding that a single tensor has to move the text, so that it is proven where many at once are not."""

PAUSE = 10.0
"""Seconds between two lines that say how far the proof is; it may take minutes."""


@dataclass
class Canary:
    """One canary run.

    Args:
        sync: sends the weights.
        policy: the trainer's.
        servers: those to prove; they serve the policy's present weights.
        text: ids that are scored.
        long: ids that are drawn behind.
        autocast: makes the context in which the policy computes.
        dtype: the narrower one of what trainer and servers compute in.
        quantised: what a server does to the weights that it gets; None: nothing.
        label: what the servers answer with.
        say: tells people a sentence, at most every `PAUSE` seconds, on the first process.
    """

    sync: WeightSync
    policy: nn.Module
    servers: Sequence[Server]
    text: Sequence[int]
    long: Sequence[int]
    autocast: Autocast
    dtype: torch.dtype
    quantised: str | None
    label: str
    say: Callable[[str], None]
    worst: float = 0.0
    """Largest part of what was allowed that was missing somewhere."""
    _first: dict[str, Tensor] = field(default_factory=dict)
    _said: float = -math.inf
    _shows: bool = True
    """Whether what was changed last moves the text so far that its absence would be told from rounding."""

    def run(self) -> None:
        """Prove that the servers take every tensor. Collective; the policy is put back to the bit.

        Raises:
            EngineError: on all processes, what did not show, where and by how much.
        """
        true = own_logprobs(self.policy, self.text, self.autocast)
        self._first = self._ask()
        if self.sync.route_taken == "adapter":
            self._prove_adapter(true)
            return
        form = SavedForm(self.policy, shared_dtype(self.sync.facts_of(self.servers)))
        is_first = True
        groups = groups_of(form)
        for number, group in enumerate(groups, 1):
            keys = [block.key for block in group]
            send = partial(self.sync.push_part, form, keys, self.label, self.servers)
            try:
                for part, parameters in disturbable(group).items():
                    self._tell("weights", number, len(groups), keys)
                    cached = self._draw_long() if is_first else {}
                    where = f"{_named(keys)}, {WORDS.get(part, WORDS['rest'])}"
                    is_there = self._prove(where, parameters, send, true)
                    if is_first:
                        with disturbed(parameters):
                            behind = own_logits(self.policy, self.long, self.autocast)[-1]
                            if not is_there:
                                send()
                        self._compare_long(cached, behind)
                    is_first = False
            except EngineError:
                with suppress(EngineError):
                    send()
                raise
            send()
            self._compare_return(_named(keys))

    def _prove_adapter(self, true: Tensor) -> None:
        """Prove the same of an adapter: a few of its layers are disturbed, and it is sent whole, under a new name each time."""
        form = SavedForm(self.policy, torch.float32)
        send = partial(self.sync.push, self.policy, self.label, self.servers)
        groups = [group for group in groups_of(form) if disturbable(group, only_adapter=True)]
        for number, group in enumerate(groups, 1):
            keys = [block.key for block in group]
            for part, parameters in disturbable(group, only_adapter=True).items():
                self._tell("adapters", number, len(groups), keys)
                where = f"the adapter of {_named(keys)}, {WORDS.get(part, part)}"
                self._prove(where, parameters, send, true)
        send()
        self._compare_return("the adapter")

    def _prove(
        self, where: str, parameters: Sequence[tuple[str, Tensor]], send: Callable[[], None], true: Tensor
    ) -> bool:
        """Prove that parameters arrive: all at once, and one by one where that does not tell.

        Changed together, some layers of some models are chaos, in which rounding grows like a fault. Alone, a tensor that arrives is
        no chaos, and one that does not is missing whole.

        Args:
            where: their place, for people.
            parameters: names and tensors that are disturbed.
            send: sends the weights as they are.
            true: the trainer's log-probabilities of the text before.

        Returns:
            Whether all at once are what servers have now; not where they had to be proven one by one.

        Raises:
            EngineError: they do not arrive, or cannot be told from rounding.
        """
        fault = self._fault(where, parameters, send, true)
        if fault is None:
            return True
        for one in parameters if len(parameters) > 1 else ():
            alone = self._fault(where, [one], send, true)
            if alone is not None:
                raise EngineError(alone)
            if not self._shows:
                raise EngineError(fault)
        if len(parameters) == 1:
            raise EngineError(fault)
        return False

    def _tell(self, what: str, number: int, count: int, keys: Sequence[str]) -> None:
        """Say how far the proof is, unless it was said just now."""
        now = time.monotonic()
        if self.sync.rank == 0 and now - self._said >= PAUSE:
            self._said = now
            self.say(f"Proving that {what} reach the servers: group {number} of {count} ({_named(keys)}).")

    def _ask(self) -> dict[str, Tensor]:
        """Return what each server says of the text, on all processes."""
        said = self.sync.answers(
            self.servers,
            lambda server: server.prompt_logprobs(self.text, self.sync.adapter),
            "to score a text",
        )
        answered = {url: torch.tensor(values, dtype=torch.float64) for url, values in said.items()}
        # One that was lost meanwhile is proven when it is back.
        return {url: answer for url, answer in answered.items() if url in self._first or not self._first}

    def _fault(
        self, where: str, parameters: Sequence[tuple[str, Tensor]], send: Callable[[], None], true: Tensor
    ) -> str | None:
        """Return how servers with disturbed parameters are apart from the trainer; None: no more than rounding."""
        with disturbed(parameters):
            expected = own_logprobs(self.policy, self.text, self.autocast)
            send()
        move = float((expected - true).abs().mean())
        self._shows = True
        for url, answer in self._ask().items():
            base = float((self._first[url] - true).abs().mean())
            allowed = self._allowed(move, base)
            gap = float((answer - expected).abs().mean())
            self._shows &= move > SHOWS * allowed
            if not gap <= allowed:
                unmoved = float((answer - self._first[url]).abs().mean())
                return (
                    f"{url} does not serve all weights that it is sent. {where} ({_leaves(parameters)}): changing them moves the "
                    f"trainer's log-probabilities by {move:.4g} nats a token on average, the server's by {unmoved:.4g}, and the two are "
                    f"{gap:.4g} apart; {allowed:.2g} is rounding. {_causes(where, self.quantised)}"
                )
            self.worst = max(self.worst, gap / allowed)
        return None

    def _allowed(self, move: float, base: float) -> float:
        """Return the gap that is rounding, for a move and a gap of the true weights."""
        share = QUANTISED if self.quantised else SHARE[self.dtype]
        return share * move + TIMES[self.dtype] * base + LEAST[self.dtype]

    def _compare_return(self, where: str) -> None:
        for url, answer in self._ask().items():
            gap = float((answer - self._first[url]).abs().mean())
            allowed = 10 * LEAST[self.dtype]
            if not gap <= allowed:
                raise EngineError(
                    f"{url} does not come back to its first answers when {where} is sent again as it was: {gap:.4g} nats a token "
                    f"apart on average; {allowed:.2g} is rounding. A second load damages its weights. {_causes(where, self.quantised)}"
                )

    def _draw_long(self) -> dict[str, list[tuple[int, float]]]:
        """Draw tokens behind the long prompt; its keys and values are in the server's cache then."""
        request = DrawRequest(
            Prompt("", tuple(self.long)), Sampling(1), count=DRAWN, adapter=self.sync.adapter
        )
        drawn = self.sync.answers(
            self.servers, lambda server: draw_checked(server, request, self.policy), "to draw a token"
        )
        return {url: [(one.ids[0], one.logprobs[0]) for one in several] for url, several in drawn.items()}

    def _compare_long(self, before: dict[str, list[tuple[int, float]]], behind: Tensor) -> None:
        """Compare tokens that are drawn behind the long prompt now with the trainer's own probabilities."""
        true = torch.log_softmax(own_logits(self.policy, self.long, self.autocast)[-1].double(), -1).cpu()
        expected = torch.log_softmax(behind.double(), -1).cpu()
        for url, drawn in self._draw_long().items():
            base = _mean_gap(before.get(url, []), true)
            gap = _mean_gap(drawn, expected)
            move = _mean_gap([(token, float(true[token])) for token, _ in drawn], expected)
            allowed = self._allowed(move, base) * (3 if self.dtype != torch.float32 else 1)  # of a few tokens
            if not gap <= max(allowed, LEAST[self.dtype] * 100):
                raise EngineError(
                    f"{url} draws behind a prompt of {len(self.long)} tokens with keys and values of the weights before: the tokens' "
                    f"log-probabilities are {gap:.4g} nats from the trainer's on average, where {allowed:.2g} is rounding and scored "
                    "prompts are right. Its prefix cache is not emptied when weights change: update the server, or start it without "
                    "one (vLLM: --no-enable-prefix-caching)."
                )


def _mean_gap(drawn: Sequence[tuple[int, float]], expected: Tensor) -> float:
    return sum(abs(value - float(expected[token])) for token, value in drawn) / max(1, len(drawn))


def _named(keys: Sequence[str]) -> str:
    return " and ".join(key.rstrip(".") or "all weights" for key in keys)


def _leaves(parameters: Sequence[tuple[str, Tensor]]) -> str:
    """Return what the tensors are called inside their layers."""
    leaves = dict.fromkeys(".".join(name.split(".")[-2:]) for name, _ in parameters)
    return ", ".join(leaves)


def _causes(where: str, quantised: str | None) -> str:
    if quantised:
        return f"The server quantises to {quantised}: serve the model unquantised, or without weight_sync of all weights."
    if "lm_head" in where or "embed" in where:
        return (
            "Usual cause: the head shares the embedding's weight, and the server keeps a copy that it does not renew. Update the server, or "
            "report it with the model's name. weight_sync='adapter' (LoRA) does not need it."
        )
    return (
        "Usual causes: a name in the files that the server does not know (its log warns of weights that were not loaded), or a layout that "
        "it made when it started and does not make again. Update the server (vLLM 0.28 or newer), start it with --enforce-eager, or "
        "report it with the model's name."
    )
