"""Servers in this process with scripted faults: a native engine behind the protocol of `covey.sample.remote.server`."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from covey.errors import EngineError, ServerLost
from covey.sample.native.engine import NativeEngine
from covey.sample.native.sequences import Place
from covey.sample.remote.engine import RemoteEngine
from covey.sample.remote.labels import new_label
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest, ServerFacts
from tests.ranks import alone

IN_TIME = 60.0
"""Seconds in which what is given up in time is over on a machine that has other things to do; what hangs here hangs for longer."""

Fault = Callable[["ScriptedServer", DrawRequest, list[Drawn]], list[Drawn]]
"""Does something to a server or to what it has drawn."""


class ScriptedServer:
    """One server.

    Args:
        start: the policy that it was started with.
        decode: token ids → text.
        faults: fault of the n-th request, counted from 0.
        every: a fault of each so many requests.
        stands_still: whether its counter of tokens moves only with what it draws here. Else it moves whenever it is asked, as where
            others have it draw too: how late this machine lets it draw is no fault of its.
    """

    kind = "covey"
    gives_policy_logprobs = True

    def __init__(
        self,
        start: nn.Module,
        decode,
        name: str = "a",
        faults: dict[int, Fault] | None = None,
        every: tuple[int, Fault] | None = None,
        stands_still: bool = False,
    ) -> None:
        self.url, self.start, self.decode = f"http://{name}:1", start, decode
        self.stands_still, self.looks = stands_still, 0
        self.faults, self.every = faults or {}, every
        self.lock = threading.Lock()
        self.requests = self.tokens = self.pushes = self.failures = 0
        self.is_dead = self.hangs = False
        self.dropped = set[tuple[object, ...]]()
        self.ends = threading.Event()
        """Lets go of threads that hang."""
        self.restart()

    def restart(self) -> None:
        self.engine = NativeEngine(self.decode, path="general")
        self.engine.load(self.start)
        self.served, self.tokens = UNLABELLED, 0

    def put(self, policy: nn.Module, label: str) -> None:
        """Serve weights under a label."""
        self.ask()
        with self.lock:
            self.engine = NativeEngine(self.decode, path="general")
            self.engine.load(policy)
            self.served = label
            self.pushes += 1

    def ask(self) -> None:
        if self.is_dead:
            raise ServerLost(f"{self.url} takes no connection.") from ConnectionRefusedError()

    def facts(self) -> ServerFacts:
        return ServerFacts("covey", "1.0", "tiny")

    def draw(self, request: DrawRequest) -> list[Drawn]:
        self.ask()
        with self.lock:
            number, self.requests = self.requests, self.requests + 1
            fault = self.faults.get(number)
            if self.every is not None and (number + 1) % self.every[0] == 0:
                fault = self.every[1]
            self.failures += fault is not None
            if fault is not None and getattr(fault, "comes_before", False):
                fault(self, request, [])
            drawn = [] if self.hangs else self.drawn(request)
        if self.hangs:
            self.ends.wait(3 * IN_TIME)
            raise ServerLost("too late")
        return drawn if fault is None else fault(self, request, drawn)

    def drawn(self, request: DrawRequest) -> list[Drawn]:
        prompt = replace(request.prompt, ids=(*request.prompt.ids, *request.given))
        place = Place(request.first, len(request.given) - request.opening, request.room)
        groups = self.engine.generate([prompt], request.count, request.settings, None, [place])
        completions = [c for group in groups for c in group.completions]
        self.tokens += sum(len(c.ids) for c in completions)
        return [Drawn(c.ids, c.logprobs, c.finish, c.policy_logprobs) for c in completions]

    def prompt_logprobs(self, ids: Sequence[int], adapter: str | None = None) -> list[float]:
        raise NotImplementedError

    def label(self) -> str:
        self.ask()
        return self.served

    def update(self, folder: Path, label: str) -> None:
        raise NotImplementedError

    def load_adapter(self, name: str, folder: Path) -> None: ...

    def unload_adapter(self, name: str) -> None: ...

    def sleep(self, keeps_weights: bool) -> None: ...

    def wake(self) -> None: ...

    def progress(self) -> int | None:
        self.ask()
        self.looks += not (self.hangs or self.stands_still)
        return self.tokens + self.looks

    def is_alive(self) -> bool:
        return not self.is_dead


class MemorySync:
    """Sends weights within the process: a copy of the policy for each push."""

    adapter = None
    label: str | None = None
    lost: tuple[str, ...] = ()
    fault: str | None = None

    def __init__(self) -> None:
        self.seconds = {"load": 0.0}
        self.copy: nn.Module | None = None

    def push(self, policy: nn.Module, label: str, servers: Sequence[ScriptedServer]) -> None:
        if self.fault is not None:
            raise EngineError(self.fault)
        self.copy, lost = copy.deepcopy(policy), []
        for server in servers:
            try:
                server.put(self.copy, label)
            except ServerLost:
                lost.append(server.url)
        self.label, self.lost = label, tuple(lost)
        if len(lost) == len(servers):
            raise ServerLost("No server is left.")

    def give_again(self, server: ScriptedServer, label: str) -> None:
        server.put(self.copy, label)

    def close(self) -> None:
        self.copy = None


class NoChecks:
    """Counts what is asked of it."""

    gap: float | None = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, policy, servers) -> None:
        self.calls.append("start")

    def probe(self, policy, servers) -> None:
        self.calls.append("probe")


def remote(servers, decode, timeout=300.0, gather=alone, **options) -> RemoteEngine:
    """An engine over scripted servers."""
    options = {"sync": MemorySync(), "checks": NoChecks(), **options}
    return RemoteEngine(
        servers,
        options.pop("sync"),
        options.pop("checks"),
        decode,
        run="ours",
        timeout=timeout,
        gather=gather,
        **options,
    )


# --- faults -----------------------------------------------------------------------------------------------------------


def before(fault: Fault) -> Fault:
    """Let a fault come before anything is drawn."""
    fault.comes_before = True
    return fault


def drop(server, request, drawn):
    raise ServerLost(f"{server.url}: the connection was lost: RemoteDisconnected.")


def drop_once(server, request, drawn):
    """Drop what is asked for the first time: of every two requests one, and none so often that its prompt is blamed."""
    asked = request.prompt.row, request.first, request.given
    if asked not in server.dropped:
        server.dropped.add(asked)
        drop(server, request, drawn)
    return drawn


def restart(server, request, drawn):
    server.restart()
    raise ServerLost(f"{server.url}: the connection was lost: ConnectionResetError.")


@before
def restart_unseen(server, request, drawn):
    """Restart between two requests: what is asked is drawn with the weights of the start."""
    server.restart()
    return drawn


@before
def hang(server, request, drawn):
    server.hangs = True
    return drawn


@before
def die(server, request, drawn):
    server.is_dead = True
    server.ask()


@before
def taken(server, request, drawn):
    """Another run pushes its own weights."""
    server.engine.load(server.start)
    server.served = str(new_label("theirs", 7))
    return drawn


def late(server, request, drawn):
    time.sleep(0.01 * (request.prompt.row % 3))
    return drawn


def changed(**fields) -> Fault:
    """Change fields of the last completion."""

    def fault(server, request, drawn):
        last = drawn[-1]
        values = {name: make(getattr(last, name)) for name, make in fields.items()}
        return [*drawn[:-1], replace(last, **values)]

    return fault


WRONG: dict[str, tuple[Fault, str]] = {
    "fewer": (lambda s, r, d: d[:-1], "2 completions came, 3 were asked for"),
    "more": (lambda s, r, d: [*d, d[0]], "4 completions came, 3 were asked for"),
    "none": (lambda s, r, d: [], "0 completions came"),
    "empty": (changed(ids=lambda _: (), logprobs=lambda _: ()), "completion 2: 0 tokens came"),
    "long": (
        changed(ids=lambda ids: (9,) * 61, logprobs=lambda _: (-1.0,) * 61),
        "61 tokens came, where there had to be 1 to",
    ),
    "outside": (changed(ids=lambda ids: (*ids[:-1], 50_000)), "id 50000 came, and the policy has ids from 0"),
    "negative": (changed(ids=lambda ids: (*ids[:-1], -1)), "id -1 came"),
    "padding": (changed(ids=lambda ids: (0, *ids[1:])), "id 0 is there, which is never to be drawn"),
    "nan": (changed(logprobs=lambda x: (math.nan, *x[1:])), "token 0 is nan. The logits are garbage"),
    "null": (changed(logprobs=lambda x: (None, *x[1:])), "token 0 is None. The logits are garbage"),
    "positive": (changed(logprobs=lambda x: (0.5, *x[1:])), "token 0 is 0.5. The logits are garbage"),
    "floor": (changed(logprobs=lambda x: (-9999.0, *x[1:])), "token 0 is -9999.0. The logits are garbage"),
    "infinite": (changed(logprobs=lambda x: (-math.inf, *x[1:])), "is -inf. The logits are garbage"),
    "policy's nan": (changed(policy_logprobs=lambda x: (math.nan, *x[1:])), "token 0 is nan"),
    "fewer numbers": (changed(logprobs=lambda x: x[1:]), "log-probabilities came with"),
    "short": (
        changed(ids=lambda ids: (9,), logprobs=lambda _: (-1.0,), policy_logprobs=lambda _: (-1.0,),
                reason=lambda _: "length"),
        "1 tokens came and the limit is said to have ended them",
    ),
    "another end": (
        changed(ids=lambda ids: (9,), logprobs=lambda _: (-1.0,), policy_logprobs=lambda _: (-1.0,),
                reason=lambda _: "stop"),
        "it ended with id 9, which is no end id of this run",
    ),
    "behind the end": (
        changed(ids=lambda ids: (2, 9), logprobs=lambda _: (-1.0,) * 2, policy_logprobs=lambda _: (-1.0,) * 2),
        "token 0 is the end id 2, and 1 more tokens came behind it",
    ),
}  # fmt: skip
"""Answers that are none, and what the error says."""
