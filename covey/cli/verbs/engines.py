"""`covey engines check URL...`: proves servers before a run: what they are, how fast weights reach them, whether all of them do."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, CoveyError, EngineError, ServerLost
from covey.text.foreign import show

if TYPE_CHECKING:
    from torch import nn

    from covey.sample.remote.server import Server, ServerFacts

EXAMPLES = """
examples:
  covey engines check http://127.0.0.1:8000
  covey engines check http://n2:8000 http://n3:8000 --model Qwen/Qwen3-0.6B --weights-folder /shared/weights
  covey engines check http://n2:8000 --adapter               also that adapters (LoRA) arrive
  covey engines check http://n2:8000 --temperature 0.7 --longest 4096        as the run will ask

It loads the model here, sends its weights, compares what the server says of a text with the model's own forward pass, and changes
every weight once in both to see that it arrives. Then the server has the model's weights, as it was started. A server that a run
uses is left alone.

Exit status: 0 all servers can be trained with, 1 one cannot, 2 wrong input, 3 a server is not there.
"""

PINGS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    number: Any = {"type": int, "metavar": "N"}
    add("what", choices=("check",), help="prove servers")
    add("urls", nargs="+", metavar="URL", help="address of a server of covey serve, vLLM or SGLang")
    add(
        "--model",
        metavar="MODEL",
        help="name or folder of what they serve (default: what the first one says)",
    )
    add(
        "--adapter",
        action="store_true",
        help="also send an adapter (LoRA, rank 8 at most), changed layer by layer",
    )
    add(
        "--temperature", type=float, default=1.0, metavar="T", help="at which draws are compared (default: 1)"
    )
    add("--longest", help="tokens of prompt and completion that the run will need", **number)
    add(
        "--weights-folder",
        metavar="FOLDER",
        help="that the servers see (default: memory here, or a folder for such files)",
    )
    add(
        "--timeout",
        type=float,
        default=240.0,
        metavar="S",
        help="seconds that a server has for an answer (default: 240)",
    )
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")


def run(args: argparse.Namespace) -> int:
    """Check one server after another; the exit code is 1 where one cannot be trained with."""
    from covey.config.engine_settings import checked_urls
    from covey.models.loading import load_policy, resolved_dtype

    urls = checked_urls(args.urls)  # as settings have them, commas and all
    servers = [server_at(url, args.timeout) for url in urls]
    facts = [server.facts() for server in servers]
    name = args.model or next((f.model for f in facts if f.model), "")
    if not name:
        raise ConfigError("The servers do not say which model they serve. Name it: --model.")
    policies: dict[str, Any] = {}
    is_right = True
    for server, fact in zip(servers, facts, strict=True):
        dtype = fact.dtype or "float32"
        if dtype not in policies:  # in float32: then only the server rounds, but for the weights themselves
            policy: Any = load_policy(name, None, trust_remote_code=args.trust_remote_code)
            policies[dtype] = policy.to(resolved_dtype(dtype)).float()
        show(f"{server.url}  {described(fact)}")
        try:
            refuse_busy(server)
            check(server, fact, policies[dtype], args)
        except ServerLost:
            raise
        except CoveyError as error:
            show(f"  not fit: {error}", sys.stderr)
            is_right = False
        else:
            show("  can be trained with")
    return 0 if is_right else 1


def server_at(url: str, timeout: float) -> Server:
    """Return what speaks to the program at an address.

    Raises:
        EngineError: nothing answers there.
    """
    from covey.sample.remote.client import Client
    from covey.sample.remote.served import CoveyServer
    from covey.sample.remote.sglang import SglangServer
    from covey.sample.remote.strangers import kind_at
    from covey.sample.remote.vllm import VllmServer

    client = Client(url, timeout)
    kind = kind_at(client)
    if kind == "covey":
        return CoveyServer(client)
    return SglangServer(url, timeout) if kind == "sglang" else VllmServer(url, timeout)


def described(facts: ServerFacts) -> str:
    """Return what a server is, for people."""
    said = (
        f"{facts.kind} {facts.release or ''}".strip(),
        facts.model,
        facts.dtype,
        f"on {facts.device}" if facts.device else None,
        f"{facts.max_length} tokens" if facts.max_length else None,
        f"quantised: {facts.quantization}" if facts.quantization else None,
        f"adapters up to rank {facts.max_adapter_rank}" if facts.max_adapter_rank else "no adapters",
    )
    return ", ".join(text for text in said if text)


def refuse_busy(server: Server) -> None:
    """Refuse a server that a living run has sent weights to.

    Raises:
        EngineError: names the run.
    """
    from covey.sample.remote.labels import described as what
    from covey.sample.remote.labels import read_label

    text = server.label()
    label = read_label(text)
    if label is not None and not label.is_of_dead and label.run != RUN:
        raise EngineError(
            f"it serves {what(text)}, which may go on. Check it when that process has ended, or start the server again."
        )


RUN = "covey-engines-check"


def check(server: Server, facts: ServerFacts, policy: nn.Module, args: argparse.Namespace) -> None:
    """Prove one server, and print figures.

    Raises:
        EngineError: it cannot be trained with; says why.
    """
    pings = []
    for _ in range(PINGS):
        started = time.monotonic()
        server.label()
        pings.append(time.monotonic() - started)
    show(f"  round trip           {1000 * statistics.median(pings):.1f} ms")
    prove(server, policy, args, "files")
    if not args.adapter:
        return
    if not facts.max_adapter_rank:
        raise EngineError(
            "it takes no adapters. Start vLLM with --enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 set."
        )
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=min(8, facts.max_adapter_rank), target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: Any = get_peft_model(policy, config)
    try:
        prove(server, adapted, args, "adapter")
    finally:
        adapted.unload()


def say(progress: str) -> None:
    """Print how far a proof is, within the report of a server."""
    show(f"  {progress}", flush=True)


def prove(server: Server, policy: nn.Module, args: argparse.Namespace, route: Any) -> None:
    """Send weights by one route, prove that all of them arrive, and print figures."""
    from covey.sample.remote.checks import Checks
    from covey.sample.remote.weight_sync import WeightSync
    from covey.sample.sampling import Sampling

    with tempfile.TemporaryDirectory() as folder:
        given = None if args.weights_folder is None else Path(args.weights_folder)
        sync = WeightSync(RUN, folder, lambda value: [value], folder=given, route=route)
        checks = Checks(sync, Sampling(16, temperature=args.temperature), longest=args.longest, say=say)
        started = time.monotonic()
        try:
            checks.start(policy, [server])
        finally:
            with suppress(EngineError):
                for name, _ in sync.adapters:
                    server.unload_adapter(name)
            sync.close()
        took = time.monotonic() - started
    first = checks.first_push
    size = (
        f"{sum(p.numel() * p.element_size() for p in policy.parameters()) / 1e6:,.0f} MB"
        if route == "files"
        else "one adapter"
    )
    written = first["gather"] + first["write"]
    show(
        f"  {'weights' if route == 'files' else 'adapter':20} {size} written in {written:.2f} s, loaded in {first['load']:.2f} s"
    )
    show(
        f"  {'log-probabilities':20} {checks.gap:.2g} nats a token from the model's own on average ({checks.bound:g} is rounding)"
    )
    show(
        f"  {'every tensor':20} arrives: changed and compared in {took:.1f} s, {checks.worst:.0%} of what rounding may be"
    )
