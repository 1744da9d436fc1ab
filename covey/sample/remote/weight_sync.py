"""The policy's weights, brought to servers: a folder for each version, or an adapter beside weights that stay.

Only what was compared with the policy's own table is shown to a server. Where one refuses it, the last good version is given back at
once, as a server is without weights in between.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import torch
from torch import nn

from covey.errors import EngineError, ServerLost, warn
from covey.sample.remote.effective import SavedForm
from covey.sample.remote.labels import are_same_weights
from covey.sample.remote.publish import WeightFolders, write_adapter, write_weights
from covey.sample.remote.server import Server, ServerFacts
from covey.sample.remote.travel import NO_ADAPTER, why_not_adapter, without_adapter
from covey.types import Gather, WeightRoute

T = TypeVar("T")


class WeightSync:
    """Brings weights to servers. Every process of the run has one; the first one writes and talks.

    Args:
        run: the run's name.
        output_dir: of the run.
        gather: exchanges values between the processes.
        rank: of this process.
        folder: where the folders lie; None: see `WeightFolders`.
        route: how weights travel.
        keeps: adapters that servers hold besides the newest one: at least as many as rollouts are sampled ahead.
        in_flight: whether whole weights change under requests that run.

    Attributes:
        adapter: name of the adapter that the last push was for; None: it was for all weights.
        label: what servers answer with after the last push. An adapter has none: then it is that of the weights beneath it, which are
            pushed once.
        seconds: of the last push: "gather", "write" and "load".
        route_taken: "files" or "adapter", of the last push.
        lost: addresses of servers that the last push did not reach.
        adapters: names and folders of the adapters that servers hold, the newest last.
    """

    def __init__(
        self,
        run: str,
        output_dir: str | Path,
        gather: Gather,
        *,
        rank: int = 0,
        folder: str | Path | None = None,
        route: WeightRoute = "auto",
        keeps: int = 2,
        in_flight: bool = False,
    ) -> None:
        self.run, self.gather, self.rank, self.route, self.keeps = run, gather, rank, route, keeps
        self.in_flight = in_flight
        self.folders = WeightFolders(
            Path(folder).absolute() if folder else None, Path(output_dir).absolute(), run
        )
        self.adapter: str | None = None
        self.label: str | None = None
        self.seconds = {"gather": 0.0, "write": 0.0, "load": 0.0}
        self.route_taken: Literal["files", "adapter"] = "files"
        self.lost: tuple[str, ...] = ()
        self._good: tuple[Path, str] | None = None
        """Folder and label of the last weights that servers took."""
        self._unused: list[Path] = []
        """Folders that are deleted before the next one is written, as there may be room for two only."""
        self.adapters: list[tuple[str, Path]] = []
        self._token, self._number, self._has_said = secrets.token_hex(2), 0, False

    def push(self, policy: nn.Module, label: str, servers: Sequence[Server]) -> None:
        """Have servers serve the policy's present weights. Collective.

        Args:
            label: what they answer with afterwards; see the attribute.
            servers: all that are there. One that is lost is left out, and named in `lost`.

        Raises:
            ServerLost: on all processes, no server is left.
            EngineError: on all processes, weights that cannot be written, or that a server refused.
        """
        self.seconds = {"gather": 0.0, "write": 0.0, "load": 0.0}
        facts = self.facts_of(servers)
        dtype = shared_dtype(facts)
        self.route_taken = self._choose(policy, facts)
        if self.route_taken == "files":
            self._push_all(policy, dtype, label, servers)
            self.adapter, self.label = None, label
            return
        stale = self._without_base(servers)
        if stale:
            base = label if self._good is None or not self.adapters else self._good[1]
            with without_adapter(policy):
                self._push_all(policy, dtype, base, stale)
            self.label = base
            self.on_each(stale, self._give_adapters, "the adapters before")
        self._push_adapter(policy, dtype, servers)

    def push_once_more(self, policy: nn.Module, label: str, servers: Sequence[Server]) -> None:
        """Write the weights anew and send them, whatever was sent under the label before. Collective."""
        if self._good is not None:
            self._unused.append(self._good[0])
            self._good = None
        self.push(policy, label, servers)

    def push_part(self, form: SavedForm, keys: Sequence[str], label: str, servers: Sequence[Server]) -> None:
        """Have servers serve some blocks of a policy's present weights beside what they have. Collective; it tests them.

        Args:
            form: of the policy, in the dtype of the servers.
            keys: of the blocks.
            label: what they answer with afterwards.
        """
        blocks = [block for block in form.blocks if block.key in keys]
        folder = self._place(form.bytes, servers, "part")
        write_weights(form, blocks, folder if self.rank == 0 else None, self._agree)
        try:
            self.on_each(servers, lambda server: server.update(folder, label), f"the weights in {folder}")
        finally:
            self._delete([folder])

    def give_again(self, server: Server, label: str) -> None:
        """Have a server that was restarted serve what was pushed last, adapters too. Not collective.

        Args:
            label: what it answers with afterwards.
        """
        if self._good is None:
            raise EngineError("No weights were sent to the servers yet. Call load(policy) first.")
        if self.rank and not self._good[0].is_dir():
            raise ServerLost(
                f"{server.url} was started again, and its weights lie in {self._good[0]} on the machine of the run's first process, which "
                "gives them to it. Set weights_folder to one that all machines see, and any process can."
            )
        server.update(self._good[0], label)
        self._give_adapters(server)

    def close(self) -> None:
        """Delete the folders."""
        self.folders.close()
        self._good, self.adapters, self._unused = None, [], []

    # --- one piece each -----------------------------------------------------------------------------------------------

    def facts_of(self, servers: Sequence[Server]) -> list[ServerFacts]:
        """Return what servers are, on all processes; one that is lost says nothing."""
        return list(self.answers(servers, lambda server: server.facts(), "to say what it is").values())

    def _choose(self, policy: nn.Module, facts: Sequence[ServerFacts]) -> Literal["files", "adapter"]:
        """Return how the weights travel, and say once why an adapter does not travel alone."""
        ranks = [f.max_adapter_rank or 0 for f in facts]
        reason = why_not_adapter(policy, min(ranks, default=0))
        if reason is None and self.route != "files":
            return "adapter"
        if self.route == "adapter":
            raise EngineError(
                f"weight_sync='adapter', and an adapter cannot travel alone: {reason}. Set weight_sync='auto' to send whole weights."
            )
        if self.route == "auto" and reason != NO_ADAPTER and self.rank == 0 and not self._has_said:
            warn(f"Whole weights are sent to the servers after each step, not the adapter alone: {reason}.")
            self._has_said = True
        return "files"

    def _push_all(self, policy: nn.Module, dtype: torch.dtype, label: str, servers: Sequence[Server]) -> None:
        """Write all weights, unless they are the last ones, and have servers load them."""
        if self._good is not None and self._good[1] == label:
            folder = self._good[0]
        else:
            self._delete(self._unused)
            form = SavedForm(policy, dtype)
            folder = self._place(form.bytes, servers)
            self._unused.append(folder)
            written = folder if self.rank == 0 else None
            write_weights(form, form.blocks, written, self._agree, self.seconds)
        started, what = time.monotonic(), f"the weights in {folder}"

        def load(server: Server) -> None:
            server.swap(folder, label) if self.in_flight else server.update(folder, label)

        self.on_each(servers, load, what, self._good)
        self.seconds["load"] += time.monotonic() - started
        self._unused = [] if self._good is None or self._good[0] == folder else [self._good[0]]
        self._good = folder, label

    def _push_adapter(self, policy: nn.Module, dtype: torch.dtype, servers: Sequence[Server]) -> None:
        """Write the adapter, have servers hold it under a new name, and forget those that nobody asks for any more."""
        self._number += 1
        name = self.gather(f"{self.run}-{self._token}-v{self._number}")[0]
        size = sum(p.numel() for p in policy.parameters() if p.requires_grad) * dtype.itemsize
        folder = self._place(size, servers, "adapter")
        write_adapter(policy, folder if self.rank == 0 else None, dtype, self._agree, self.seconds)
        started = time.monotonic()
        self.on_each(servers, lambda server: server.load_adapter(name, folder), f"the adapter in {folder}")
        self.adapters.append((name, folder))
        self.adapter = name
        old, self.adapters = self.adapters[: -self.keeps - 1], self.adapters[-self.keeps - 1 :]
        for server in servers if self.rank == 0 else ():
            for forgotten, _ in old:
                with suppress(EngineError):  # it was restarted, and never had it
                    server.unload_adapter(forgotten)
        self._delete([path for _, path in old])
        self.seconds["load"] += time.monotonic() - started

    def _give_adapters(self, server: Server) -> None:
        """Have a server hold the adapters of the last pushes: rollouts that are sampled ahead may ask for them."""
        for name, folder in self.adapters:
            try:
                server.load_adapter(name, folder)
            except ServerLost:
                raise
            except EngineError:  # it holds that one
                continue

    def _without_base(self, servers: Sequence[Server]) -> list[Server]:
        """Return the servers without the weights that belong beneath the adapter, on all processes."""
        if self._good is None or not self.adapters:
            return list(servers)
        labels = self.answers(servers, lambda server: server.label(), "to say its label")
        beneath = self._good[1]
        return [s for s in servers if s.url in labels and not are_same_weights(labels[s.url], beneath)]

    def _place(self, size: int, servers: Sequence[Server], kind: str = "") -> Path:
        """Return the path of a new folder, on all processes; raise on all where there is no place."""
        path, fault = Path(), None
        if self.rank == 0:
            try:
                path = self.folders.place(size, all(is_here(server.url) for server in servers), kind)
            except OSError as error:
                fault = f"There is no place for the weights: {error}. Set weights_folder to one that the servers can read."
        self._agree(fault)
        return self.gather(path)[0]

    def _delete(self, folders: Sequence[Path]) -> None:
        for folder in folders if self.rank == 0 else ():
            shutil.rmtree(folder, ignore_errors=True)

    def answers(self, servers: Sequence[Server], ask: Callable[[Server], T], what: str) -> dict[str, T]:
        """Return what each server answers to the first process, by its address, on all of them; raise as `on_each` does."""
        given: dict[str, T] = {}

        def note(server: Server) -> None:
            given[server.url] = ask(server)

        self.on_each(servers, note, what)
        return self.gather(given)[0]

    def on_each(
        self,
        servers: Sequence[Server],
        work: Callable[[Server], None],
        what: str,
        good: tuple[Path, str] | None = None,
    ) -> None:
        """Ask something of every server at once, in the first process, and raise in all where one refuses or none is left.

        Args:
            what: a server refuses.
            good: weights that are given back to one that refuses.
        """
        faults: dict[str, EngineError] = {}

        def do(server: Server) -> None:
            try:
                work(server)
            except ServerLost as error:
                faults[server.url] = error
            except EngineError as error:
                faults[server.url] = EngineError(
                    f"{server.url} refused {what}: {error}{self._back(server, good)}"
                )

        if servers and self.rank == 0:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(do, servers))
        lost = {url: str(error) for url, error in faults.items() if isinstance(error, ServerLost)}
        fault = next((str(error) for error in faults.values() if not isinstance(error, ServerLost)), None)
        lost, fault = self.gather((lost, fault))[0]
        self.lost = tuple(lost)
        if fault is not None:
            raise EngineError(fault)
        if servers and len(lost) == len(servers):
            raise ServerLost(
                "No server is left: " + "; ".join(f"{url}: {text}" for url, text in lost.items())
            )

    def _back(self, server: Server, good: tuple[Path, str] | None) -> str:
        """Give a server the last good weights, and return what came of it."""
        if good is None:
            return ""
        try:
            server.update(*good)
        except EngineError as error:
            return f" It did not take the weights before them either, and has none: start it again. ({error})"
        return f" It has the weights before them again ({good[1]})."

    def _agree(self, fault: str | None) -> None:
        """Raise on all processes where one has a fault."""
        faults = [f for f in self.gather(fault) if f is not None]
        if faults:
            raise EngineError(faults[0])


def shared_dtype(facts: Sequence[ServerFacts]) -> torch.dtype:
    """Return the dtype that servers compute in; float32 where they do not say.

    Raises:
        EngineError: they differ, or it is one that weights are not sent in.
    """
    names = {(f.dtype or "float32").removeprefix("torch.") for f in facts} or {"float32"}
    if len(names) > 1:
        raise EngineError(
            f"The servers compute in {' and '.join(sorted(names))}. Start all of them with the same --dtype."
        )
    dtype = getattr(torch, next(iter(names)), None)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise EngineError(
            f"The servers compute in {next(iter(names))!r}; weights are sent in float32, bfloat16 or float16."
        )
    return dtype


def is_here(url: str) -> bool:
    """Return whether a server is on this machine, as its address says."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "0.0.0.0", "::1", socket.gethostname()) or host.startswith("127.")
