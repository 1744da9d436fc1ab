"""`covey serve` in a thread of the test's process."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from covey.errors import EngineError
from covey.sample.native.stop_strings import Decode
from covey.sample.remote.client import Client
from covey.sample.remote.engine import RemoteEngine
from covey.sample.remote.served import CoveyServer
from covey.sample.remote.served_http import CoveyHTTPServer
from covey.sample.remote.served_policy import ServedPolicy
from covey.sample.remote.weight_sync import WeightSync
from tests.ranks import alone
from tests.tiny import EOS, PAD, STOP


@contextmanager
def serving(
    policy: nn.Module,
    tokenizer: Any,
    timeout: float = 300.0,
    together: bool = False,
    token: str | None = None,
    port: int = 0,
    **options: Any,
) -> Iterator[tuple[CoveyServer, CoveyHTTPServer]]:
    """Yield a client's server and the server itself."""
    served = ServedPolicy(policy, tokenizer, "tiny", (PAD, EOS, STOP), **options)
    http = CoveyHTTPServer(served, port=port, together=together, token=token)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield CoveyServer(Client(http.url, timeout, token)), http
    finally:
        http.shutdown()
        http.server_close()
        thread.join(60)
        http.queue.thread.join(60)
        assert not http.queue.thread.is_alive()


class NoChecks:
    """Believes every server."""

    def start(self, policy, servers):
        pass

    def probe(self, policy, servers):
        pass


class ServedEngine:
    """RemoteEngine over servers of this process. They are started at the first load, with other weights than the policy's.

    Args:
        decode: token ids → text.
        tokenizer: of the servers.
        number: of servers.
        options: of the servers' engines.
    """

    def __init__(self, decode: Decode, tokenizer: Any, number: int = 1, **options: Any) -> None:
        self.decode, self.tokenizer, self.number = decode, tokenizer, number
        options.pop("schedule", None)  # turns go on as answers come, whatever a native engine is told
        self.options = options
        self.ends = ExitStack()
        self.engine: RemoteEngine | None = None
        self.folder = self.ends.enter_context(tempfile.TemporaryDirectory())
        OPEN.append(self)

    def load(self, policy: nn.Module, version: int | None = None) -> None:
        if self.engine is None:
            servers = []
            for _ in range(self.number):
                other = copy.deepcopy(policy)
                with torch.no_grad():
                    for parameter in other.parameters():
                        parameter.mul_(0.5)
                server, http = self.ends.enter_context(serving(other, self.tokenizer))
                for name, value in self.options.items():
                    setattr(http.policy.engine, name, value)
                servers.append(server)
            sync = WeightSync("tests", self.folder, alone)
            self.engine = RemoteEngine(
                servers,
                sync,
                NoChecks(),
                self.decode,
                run="tests",
                timeout=300.0,
                gather=alone,
            )
        self.engine.load(policy, version)

    def generate(self, *call: Any) -> Iterator[Any]:
        if self.engine is None:
            raise EngineError("load first")
        return self.engine.generate(*call)

    def sleep(self) -> None:
        self.engine.sleep()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.ends.close()


OPEN: list[ServedEngine] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while OPEN:
        OPEN.pop().close()
