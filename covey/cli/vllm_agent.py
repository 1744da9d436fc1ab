"""`covey serve MODEL --engine vllm -- ARGUMENTS`: vLLM under a parent that starts it again and takes weights."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from pathlib import Path

from covey.errors import ConfigError
from covey.text.foreign import show

START_SECONDS = 1800.0
"""Until vLLM has to be ready: large models are read for long."""
RESTARTS = 3

OF_NATIVE = {"device": None, "max_sequences": 512, "together": None}
OF_VLLM: dict[str, object] = {"engine_python": None, "restarts": None, "log": None, "passed_on": []}
"""Options of one engine, and their values where nothing is said."""


def check_engine(args: argparse.Namespace) -> None:
    """Raise for options that the chosen engine does not have.

    Raises:
        ConfigError: there is one.
    """
    other, idle = ("native", OF_NATIVE) if args.engine == "vllm" else ("vllm", OF_VLLM)
    for name, default in idle.items():
        if getattr(args, name) != default:
            option = "what stands behind --" if name == "passed_on" else f"--{name.replace('_', '-')}"
            hint = ". vLLM's own options stand behind --" if args.engine == "vllm" else ""
            raise ConfigError(f"{option} belongs to --engine {other}{hint}.")


@contextmanager
def address_faults(host: str, port: int) -> Iterator[None]:
    """Say in words what keeps a server from listening at an address.

    Raises:
        ConfigError: it is taken, or none of this machine.
    """
    try:
        yield
    except (OSError, OverflowError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        what = (
            "--port 0 takes a free one"
            if getattr(error, "errno", None) == EADDRINUSE
            else "Choose another --host or --port"
        )
        raise ConfigError(f"{host}, port {port}, cannot be used: {why}. {what}.") from error


def serve_vllm(args: argparse.Namespace, token: str | None) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        ConfigError: an address that cannot be had.
        EngineError: vLLM does not start, or died too often; with the end of its log.
    """
    restarts = RESTARTS if args.restarts is None else args.restarts
    if restarts < 0:
        raise ConfigError(f"--restarts is {restarts}; it must be at least 0.")
    from transformers import AutoConfig

    from covey.sample.remote.agent import Agent
    from covey.sample.remote.child_command import ChildOrder, check_head_size, command
    from covey.sample.remote.launch import ChildServer
    from covey.sample.remote.vllm import VllmServer

    order = ChildOrder(
        "vllm",
        args.model,
        args.engine_python or sys.executable,
        args.dtype,
        trusts_code=args.trust_remote_code,
        words=tuple(args.passed_on),
    )
    command(order, args.port)  # what is wrong with it is said now
    check_head_size(AutoConfig.from_pretrained(args.model, trust_remote_code=args.trust_remote_code), order)
    log = Path(args.log or Path(tempfile.gettempdir(), f"covey-vllm-{args.port}.log")).absolute()
    child = ChildServer(order, VllmServer, log, START_SECONDS)
    with address_faults(args.host, args.port):
        agent = Agent(child, restarts, args.host, args.port, token)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    show(agent.url, flush=True)
    show(f"vLLM starts; its log: {log}", sys.stderr)
    try:
        agent.keep(threading.Event())
    except KeyboardInterrupt:
        show(file=sys.stderr)
    return 0
