"""The engine that samples elsewhere: on servers at given addresses, or on children of this process.

load       all processes: nobody samples → weights to every server → probe → nobody samples yet
generate   each process for itself: requests to whichever server is free
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from torch import nn

from covey.errors import EngineError, ServerLost, warn
from covey.models.inspect import context_length, text_config
from covey.sample.native.stop_strings import Decode
from covey.sample.remote.dispatch import Dispatch
from covey.sample.remote.drawn_check import check_drawn
from covey.sample.remote.labels import described, new_label, pushed_again, read_label
from covey.sample.remote.post import Post
from covey.sample.remote.remote_round import RemoteRound
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest, Server, ServerFacts
from covey.sample.sampling import Sampling
from covey.sample.turns import Turns
from covey.types import Gather, Group, Prompt

PUSHES = 3
"""Times that weights are sent where servers are lost meanwhile."""

PATIENCE = 5.0
"""Seconds of waiting for servers until it is told."""


class Sync(Protocol):
    """Sends weights to servers; `covey.sample.remote.weight_sync.WeightSync`.

    Attributes:
        adapter: name of the adapter to draw with after the last push; None: the servers' own weights.
        label: what servers answer with after the last push.
        lost: addresses of servers that the last push did not reach.
        seconds: of the last push, by what took them.
    """

    adapter: str | None
    label: str | None
    lost: tuple[str, ...]

    @property
    def seconds(self) -> Mapping[str, float]: ...

    def push(self, policy: nn.Module, label: str, servers: Sequence[Server]) -> None:
        """Have servers serve the policy's weights under the label. Collective; raises EngineError on all processes."""
        ...

    def give_again(self, server: Server, label: str) -> None:
        """Have a server that was restarted serve what was pushed last, under the label. Not collective."""
        ...

    def close(self) -> None:
        """Delete what was written for servers."""
        ...


class ServerChecks(Protocol):
    """Proves that servers serve what was sent; `covey.sample.remote.checks`.

    Attributes:
        gap: largest over the servers of the mean distance of log-probabilities in the last probe, in nats; None: there was none.
    """

    @property
    def gap(self) -> float | None: ...

    def start(self, policy: nn.Module, servers: Sequence[Server]) -> None:
        """Once, before anything is sampled. Collective."""
        ...

    def probe(self, policy: nn.Module, servers: Sequence[Server]) -> None:
        """After each push. Collective."""
        ...


class Children(Protocol):
    """Servers that this process has started; `covey.sample.remote.launch.Launcher`.

    Attributes:
        sleeps: whether they give their memory back between rounds.
    """

    sleeps: bool

    @property
    def servers(self) -> Sequence[Server]: ...

    def revive(self, server: Server, *, hangs: bool = False) -> bool:
        """Start a server again if it is a child that died, or hangs; raises EngineError where it has died too often."""
        ...

    def sleep(self, keeps_weights: bool) -> bool:
        """Have all of them give back their memory, where they are to; returns whether they do."""
        ...

    def wake(self) -> None:
        """Have all of them take it back; weights that were not kept have to be sent then."""
        ...

    def close(self) -> None:
        """End all of them. `revive` starts one again that is wanted once more."""
        ...


class RemoteEngine:
    """Samples on servers; see `covey.sample.engine.Engine` for the contract.

    A turn goes on as soon as its answer is there: what is drawn hangs on nothing but the text before it, so there is no schedule.

    Args:
        servers: all of them serve the same weights.
        sync: sends weights.
        checks: proves them.
        decode: token ids → text without end and padding tokens.
        run: name of the run, in labels.
        timeout: seconds without any server, or without a new token on one, after which it is given up.
        gather: returns every process's value.
        launcher: of servers that are children of this process: it draws from these alone, as they sleep when it has its samples.
        first: number of the server that is asked first where all are idle; processes with another one each share the servers evenly.
        swaps_in_flight: see `Engine`; its servers have to be able to.

    Attributes:
        samples_beside_updates: whether rounds may be sampled while the policy is updated: not where its memory is taken back.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        sync: Sync,
        checks: ServerChecks,
        decode: Decode,
        *,
        run: str,
        timeout: float = 240.0,
        gather: Gather,
        launcher: Children | None = None,
        first: int = 0,
        swaps_in_flight: bool = False,
    ) -> None:
        self.swaps_in_flight = swaps_in_flight
        self.sync, self.checks, self.decode = sync, checks, decode
        self.run, self.timeout = run, timeout
        self.gather, self.launcher = gather, launcher
        self.posts = [Post(server, timeout, self._serve_again) for server in servers]
        own = servers if launcher is None else launcher.servers
        mine = [post for post in self.posts if post.server in own]
        self.number, turn = first, first % len(mine) if mine else 0
        self._own = mine[turn:] + mine[:turn]
        """Those that this process draws from, the one that is asked first in front."""
        self.gives_policy_logprobs = all(server.gives_policy_logprobs for server in servers)
        self.samples_beside_updates = launcher is None or not launcher.sleeps
        self.policy: nn.Module | None = None
        self.version: int | None = None
        self.label: str | None = None
        """Of the last push; None: there was none."""
        self._is_asleep = False
        self._changes = threading.Lock()
        """Is held while weights are sent: to all, or again to one."""
        self._first: ServerFacts | None = None
        """What the first server that was proven says of itself."""
        self._rounds: list[Dispatch] = []
        """Those that may still have requests open."""
        self._numbers: dict[str, float] = {}

    # --- weights ------------------------------------------------------------------------------------------------------

    def load(self, policy: nn.Module, version: int | None = None) -> None:
        """Send the policy's weights to every server, where they are not there yet. Collective.

        Raises:
            EngineError: on every process, with the text of the first one that failed.
        """
        if not self.swaps_in_flight:
            self._together(self._settle)
        if self._is_asleep:
            self._together(self._wake)
        is_due = self.label is None or version is None or version != self.version or policy is not self.policy
        if any(self.gather(is_due)):
            self._push(policy, version)

    def _push(self, policy: nn.Module, version: int | None) -> None:
        """Send weights, and prove that they are served. Where servers are lost meanwhile, once more without them."""
        self.policy, self.version = policy, None
        for tries_left in reversed(range(PUSHES)):
            found: list[int] = []
            self._together(partial(self._find, found))
            # The first process speaks to the servers, so what it has found holds for all.
            alive = [self.posts[n].server for n in self.gather(found)[0]]
            label = self.gather(str(new_label(self.run, version)))[0]
            if self.swaps_in_flight and self.label is not None:
                self._together(partial(self._swap, label))
            try:
                with self._changes:
                    self._prove(policy, label, alive)
                break
            except ServerLost:
                if not tries_left:
                    raise
        self.label, self.version = self.sync.label, version
        assert self.label is not None
        for post in self.posts:
            post.serve(self.label)

    def _prove(self, policy: nn.Module, label: str, servers: Sequence[Server]) -> None:
        """Send weights to these servers, and prove that they are served; before the first time, that any are."""
        if self._first is None:
            facts: list[ServerFacts] = []

            def start() -> None:
                self.checks.start(policy, servers)
                facts.append(servers[0].facts())

            self._together(start)
            [self._first] = facts  # once it has gone well on every process
        self._together(partial(self.sync.push, policy, label, servers))
        reached = [server for server in servers if server.url not in self.sync.lost]
        self._together(partial(self.checks.probe, policy, reached))

    def _find(self, answering: list[int]) -> None:
        """Note which servers answer. At first all must, within the time-out; later one is enough."""
        end, is_untold = time.monotonic() + self.timeout, self.number == 0 and self.launcher is None
        while True:
            answering[:] = [n for n, post in enumerate(self.posts) if self._answers(post)]
            missing = [post for n, post in enumerate(self.posts) if n not in answering]
            if not missing or (answering and self.label is not None):
                return
            if time.monotonic() >= end:
                troubles = "\n".join(f"{post.server.url}: {post.trouble}" for post in missing)
                raise EngineError(
                    f"{len(missing)} of {len(self.posts)} servers do not answer after {self.timeout:g} seconds:\n{troubles}\n"
                    "Start them, or take them out of engine_urls."
                )
            if is_untold and time.monotonic() >= end - self.timeout + PATIENCE:
                is_untold = False
                self._tell_of_waiting(missing)
            for post in missing:
                self._revive(post)
            time.sleep(min(1.0, self.timeout / 10))

    def _tell_of_waiting(self, missing: Sequence[Post]) -> None:
        """Say what is waited for: minutes without a line look like a run that hangs."""
        urls = ", ".join(post.server.url for post in missing)
        warn(f"Waiting up to {self.timeout:g} seconds (engine_timeout) for {urls}: {missing[0].trouble}")

    def _answers(self, post: Post) -> bool:
        try:
            self._take_over(post.server.url, post.server.label())
        except ServerLost as error:
            post.trouble = str(error)
            return False
        return True

    def _take_over(self, url: str, text: str) -> None:
        """Refuse or warn of a server that another run has pushed weights to."""
        label = read_label(text)
        if text == UNLABELLED or label is None or label.run == self.run or label.is_of_dead:
            return
        if self.label is None and label.is_own:  # an earlier trainer of this process, such as a notebook's
            return
        if self.label is not None:
            raise EngineError(
                f"{url} serves {described(text)}; this run had pushed {described(self.label)}. Two runs cannot share a server: end "
                "the other one, or give each its own engine_urls."
            )
        state = (
            "still runs" if label.is_of_dead is False else "cannot be asked from here whether it still runs"
        )
        warn(
            f"{url} serves {described(text)}, which {state}. This run takes the server over; the other one will stop at its next "
            "round. Give each run its own engine_urls."
        )

    def _serve_again(self, server: Server) -> str:
        """Have a server that was restarted serve the last push; returns its label there."""
        with self._changes:
            assert self.sync.label is not None
            label = pushed_again(self.sync.label)
            self.sync.give_again(server, label)
        return label

    def _swap(self, label: str) -> None:
        """Have every server's label read before weights change under its requests."""
        for post in self.posts:
            post.swap(label)

    def _settle(self) -> None:
        """Wait until nothing of this process is being drawn."""
        for dispatch in self._rounds:
            dispatch.wait()
        self._rounds.clear()

    def _together(self, work: Callable[[], None]) -> None:
        """Do something that all processes do; where it fails on one, it fails on all with the same text."""
        fault: Exception | None = None
        try:
            work()
        except Exception as error:  # the others wait for this process
            fault = error
        told = self.gather(None if fault is None else (str(fault), isinstance(fault, ServerLost)))
        first = next((one for one in told if one is not None), None)
        if first is None:
            return
        if fault is not None and str(fault) == first[0]:
            raise fault
        raise (ServerLost if first[1] else EngineError)(first[0]) from fault

    # --- sampling -----------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, settings: Sampling, turns: Turns | None = None
    ) -> Iterator[Group]:
        """Sample `group_size` completions of each prompt; see `covey.sample.engine.Engine.generate`. Not collective."""
        if self.policy is None or self.label is None:
            raise EngineError("The engine has no policy yet. Call load(policy) before generate(...).")
        if (seen := next((p for p in prompts if p.pictures), None)) is not None:
            raise EngineError(
                f"Row {seen.row}: its prompt shows pictures, and servers draw from text alone. Set engine='native', or use_images=False, "
                "which shows them to the rewards alone."
            )
        if not prompts:
            return
        for post in self._own:
            post.start_round()
        dispatch = Dispatch(self._own, self.timeout, self._check, self._revive)
        self._rounds = [*(one for one in self._rounds if one.is_busy), dispatch]
        context, adapter = context_length(self.policy), self.sync.adapter
        swaps = self.swaps_in_flight and adapter is None  # a request names its adapter, and keeps it
        form = (adapter, self.gives_policy_logprobs, dispatch, swaps)
        sampled = RemoteRound(prompts, group_size, settings, turns, context, self.decode, *form)
        try:
            yield from sampled.groups()
        finally:
            dispatch.close()
            self._note(sampled, dispatch)

    def _note(self, sampled: RemoteRound, dispatch: Dispatch) -> None:
        """Keep the numbers of a round."""
        own = [post for post in self.posts if post in self._own]
        self._numbers = {
            "engine/wait_seconds": sampled.seconds,
            "engine/retries": float(dispatch.retries),
            "engine/lost": float(sum(post.losses for post in own)),
            **{f"engine/tokens/{number}": float(post.tokens) for number, post in enumerate(own)},
        }

    def _check(self, post: Post, request: DrawRequest, drawn: Sequence[Drawn]) -> None:
        assert self.policy is not None
        check_drawn(post.server.url, request, drawn, getattr(text_config(self.policy), "vocab_size", None))

    def _revive(self, post: Post) -> None:
        """Have a server started again, where it is a child that died or hangs."""
        if self.launcher is not None and self.launcher.revive(post.server, hangs=post.hangs):
            post.hangs = False

    # --- the rest -----------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the last round and the last push: seconds waited, tokens by server, requests sent again."""
        seconds = {f"engine/sync/{part}": float(value) for part, value in self.sync.seconds.items()}
        gap = self.checks.gap
        probed = {} if gap is None or gap != gap else {"engine/probe_gap": gap}
        return {**self._numbers, "engine/sync_seconds": sum(seconds.values()), **seconds, **probed}

    @property
    def facts(self) -> dict[str, object]:
        """Kind, release, addresses and model, for a run's header."""
        # Asked later, a server that sleeps would wake up.
        first = self._first or self.posts[0].server.facts()
        return {
            "kind": first.kind,
            "release": first.release,
            "urls": [post.server.url for post in self.posts],
            "model": first.model,
        }

    def sleep(self) -> None:
        """Have children give back their memory; servers at given addresses keep theirs."""
        if self.launcher is None or self._is_asleep:
            return
        self._settle()
        keeps_weights = self.sync.adapter is not None
        self._is_asleep = self.launcher.sleep(keeps_weights)
        if self._is_asleep and not keeps_weights:
            self.version = None

    def _wake(self) -> None:
        assert self.launcher is not None
        self.launcher.wake()
        self._is_asleep = False

    def close(self) -> None:
        """Let go of requests that are open, delete what was written for servers, and end children."""
        for dispatch in self._rounds:
            dispatch.close()
        self._rounds.clear()
        self.sync.close()
        if self.launcher is not None:
            self.launcher.close()
        self.label = self.version = None
        self._is_asleep = False
