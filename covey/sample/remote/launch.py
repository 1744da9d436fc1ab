"""Child servers: started with the run, started again when they die, ended with it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

from covey.errors import EngineError, ServerLost, warn
from covey.sample.remote import watcher
from covey.sample.remote.child_command import ChildOrder, command, environment
from covey.sample.remote.server import Server
from covey.text.secrets import without_secret_options

POLL_SECONDS = 0.25
GRACE_SECONDS = 10.0
"""Seconds that a server has between being asked to end and being killed."""
LOG_LINES = 40
PORTS = range(20_000, 32_000)
"""Of child servers, which take a minute until they listen. Systems give connections ports from 32,768 on."""


class ChildServer:
    """One server that this process starts; it ends with it, however that ends.

    Args:
        order: what it is asked to be.
        make_server: URL → how it is spoken to.
        log: file that its output is added to.
        timeout: seconds from its start to its first token.
        grace: seconds between being asked to end and being killed.
    """

    def __init__(
        self,
        order: ChildOrder,
        make_server: Callable[[str], Server],
        log: Path,
        timeout: float,
        grace: float = GRACE_SECONDS,
    ) -> None:
        if not hasattr(os, "waitid") or not Path("/proc/self/maps").exists():
            raise EngineError(
                f"Child servers need Linux, and this is {sys.platform}. Start a server elsewhere and give its address: engine_urls."
            )
        self.order, self.log, self.timeout, self.grace = order, log, timeout, grace
        self.url = f"http://127.0.0.1:{free_port()}"
        self.server = make_server(self.url)
        self.starts = self._stops = 0
        self._watcher: subprocess.Popen[str] | None = None
        self._group = 0

    def start(self) -> None:
        """Start it, and wait until it has computed a token.

        Raises:
            EngineError: it ended, or was not ready in time; with the last lines of its log.
        """
        self.stop()
        stops = self._stops
        words = command(self.order, int(self.url.rpartition(":")[2]))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as out:
            out.write(f"\n# start {self.starts + 1}: {json.dumps(without_secret_options(words))}\n")
        self.starts += 1
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", watcher.__file__, str(self.grace), str(self.log), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment(self.order),
            start_new_session=True,
        )  # fmt: skip
        if self._stops != stops:  # from another thread, which found nothing to stop yet
            self.stop()
            raise self.failure("was ended while it was started")
        assert self._watcher.stdout is not None
        self._group = int(self._watcher.stdout.readline() or 0)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        """Wait for an answer and one token. A server that cannot compute answers too."""
        deadline = time.monotonic() + self.timeout
        while not self.server.is_alive():
            if not self.is_running:
                raise self.failure("ended before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {self.timeout:.0f} s (engine_timeout)")
            time.sleep(POLL_SECONDS)
        try:
            self.server.prompt_logprobs((1, 1))
        except EngineError as error:
            raise self.failure(f"answers, but computes nothing ({error})") from None
        if not self.is_running:  # another server answered at its port
            raise self.failure("ended before it was ready")

    @property
    def is_running(self) -> bool:
        return self._watcher is not None and self._watcher.poll() is None

    def stop(self) -> None:
        """End it and all its processes: it is asked, and killed if it does not."""
        self._stops += 1
        process, self._watcher = self._watcher, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(self.grace + 15.0)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.wait() == -signal.SIGKILL and self._group:  # by somebody: nobody else ends the group then
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
        process.stdout.close()

    def failure(self, what: str) -> EngineError:
        """Return an error with the last lines of the log."""
        return EngineError(
            f"The child server ({self.order.kind}) at {self.url} {what}. Its log, {self.log}, ends with:\n{self.tail()}"
        )

    def tail(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of its log."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 65_536))
            return "\n".join(
                line[:300] for line in log.read().decode("utf-8", "replace").splitlines()[-lines:]
            )
        return "(there is no log)"


class Launcher:
    """The child servers of a process.

    Args:
        restarts: times that each is started again at most.
        sleeps: whether they give their memory back between rounds.
    """

    def __init__(self, children: Sequence[ChildServer], restarts: int = 3, sleeps: bool = False) -> None:
        self.children, self.restarts, self.sleeps = tuple(children), restarts, sleeps
        self._lock = threading.Lock()

    @property
    def servers(self) -> list[Server]:
        return [child.server for child in self.children]

    def revive(self, server: Server, *, hangs: bool = False) -> bool:
        """Start a child that does not run, or `hangs` (computes nothing), with the weights of its start; return whether one was started.

        Raises:
            EngineError: it was started again often enough, or does not start any more.
        """
        with self._lock:
            child = next((child for child in self.children if child.server is server), None)
            if child is None or (not hangs and is_well(child)):
                return False
            what = "hangs" if hangs else "died"
            if child.starts > self.restarts:
                limit = f"engine_restarts={self.restarts}"
                raise child.failure(f"{what}, after it was started {child.starts} times ({limit})")
            if child.starts:  # else it was ended with the run, and is wanted once more
                warn(f"The child server at {child.url} {what} and is started again. Its log: {child.log}")
            free_memory()  # what is given back while a server measures the memory that is free, it takes for its own
            child.start()
            return True

    def sleep(self, keeps_weights: bool) -> bool:
        """Have the children give back their memory, where they are to; returns whether they do.

        Args:
            keeps_weights: as those that get adapters have to.
        """
        for child in self.children if self.sleeps else ():
            self._unless_dead(child, lambda server: server.sleep(keeps_weights))
        return self.sleeps

    def wake(self) -> None:
        """Have the children take their memory back, after the trainer has given back what it does not use.

        Raises:
            EngineError: there is not enough memory, also after it was tried once more; with the numbers.
        """
        for child in self.children if self.sleeps else ():
            for is_last in (False, True):
                free_memory()
                try:
                    self._unless_dead(child, lambda server: server.wake())
                    break
                except EngineError as error:
                    if "out of memory" not in str(error).lower():
                        raise
                    if is_last:
                        raise EngineError(
                            f"{child.url} cannot take its memory back: {error}\n{memory_numbers()}Lower vllm_gpu_memory_utilization, "
                            "or the tokens of a micro-batch (max_tokens_per_forward)."
                        ) from None

    def _unless_dead(self, child: ChildServer, work: Callable[[Server], None]) -> None:
        """Ask a server for something; where it has died, nothing: it is found missing, and wakes up by its start."""
        try:
            work(child.server)
        except ServerLost:
            if is_well(child):  # a large one takes seconds to be gone, and answers no more meanwhile
                raise

    def close(self) -> None:
        """End all of them; a second time does nothing."""
        threads = [threading.Thread(target=child.stop) for child in self.children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for child in self.children:
            child.starts = 0


def is_well(child: ChildServer) -> bool:
    """Return whether a child runs, and answers one of three times: a busy one is slow to."""
    for _ in range(3):
        if not child.is_running or child.server.is_alive():
            break
        time.sleep(POLL_SECONDS)
    else:
        return False
    return child.is_running


def free_memory() -> None:
    """Give the trainer's unused memory back to the accelerator, where there is one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def memory_numbers() -> str:
    """Return how the accelerator's memory is used, for an error; nothing where there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    held, used = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    return (
        f"Of {total / 2**30:.1f} GiB, {free / 2**30:.1f} are free; the trainer holds {held / 2**30:.1f}, "
        f"{used / 2**30:.1f} of them in use. "
    )


def free_port() -> int:
    """Return a port of this machine that is free, of those that the system gives to no connection: none takes it until it is used.

    Raises:
        EngineError: none of many is free.
    """
    for port in SystemRandom().sample(PORTS, 100):
        with suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port
    raise EngineError(
        f"No port from {PORTS[0]} to {PORTS[-1]} is free for a child server. End what listens there."
    )
