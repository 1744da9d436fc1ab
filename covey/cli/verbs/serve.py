"""`covey serve MODEL`: the sampler that trains, behind HTTP, for runs on this machine or others."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.vllm_agent import address_faults, check_engine, serve_vllm
from covey.errors import ConfigError, warn
from covey.text.foreign import show

if TYPE_CHECKING:
    from covey.sample.remote.served_policy import ServedPolicy

EXAMPLES = """
examples:
  covey serve my-model                              prints the address, and serves until Ctrl-C or SIGTERM
  covey serve my-model --port 8000 --dtype float32
  covey serve runs/demo/checkpoint-200 --device cuda:1
  COVEY_ENGINE_TOKEN=secret covey serve my-model --host 10.0.0.5 --port 8000

  covey serve my-model --engine vllm --port 8000 -- --tensor-parallel-size 2
                                                    vLLM, started again when it dies; it takes weights that are sent to it

A run uses it by engine="covey" and engine_urls="http://127.0.0.1:8000": it sends its weights before it samples, and again after
each update. Several servers share the prompts. The server is for a private network: whoever reaches it can have it read
safetensors files, and draw. With a token, only who knows it; there is no encryption.

Draws depend on the seed, the step, the prompt and the index, as in the process: the same ids, whatever server draws them.
On a CPU each request is decoded by itself, which makes log-probabilities equal to the bit too; --together is faster where many
wait, and what is drawn is the same up to rounding.

A model that sees is served as a model of text: pictures are refused. docs/engines.md has the protocol.

Exit status: 0 stopped, 2 wrong input, or the port is taken, 3 vLLM is not there, does not start, or died too often.
"""

LOOPBACK = ("127.", "localhost", "::1")

ENDING_SECONDS = 10.0
"""How long a group that is being drawn may take to end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    number: Any = {"type": int, "metavar": "N"}
    add("model", metavar="MODEL", help="a model's name or folder, a checkpoint, or an adapter: it is merged")
    add("--host", default="127.0.0.1", metavar="NAME", help="address to listen on (default: 127.0.0.1)")
    add("--port", default=8000, help="0 takes a free one (default: 8000)", **number)
    add("--dtype", default="auto", metavar="NAME", help="of the weights (auto: as saved)")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    add("--max-sequences", default=512, help="that are decoded together at most (default: 512)", **number)
    add(
        "--together",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="decode requests that wait in one batch (default: not on a CPU)",
    )
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")
    add("--engine", default="native", choices=("native", "vllm"), help="what samples (default: native)")
    add(
        "--engine-python",
        metavar="FILE",
        help="vllm: Python of the environment that has it (default: this one)",
    )
    add(
        "--restarts",
        metavar="N",
        type=int,
        help="vllm: times that it is started again when it dies (default: 3)",
    )
    add(
        "--log",
        metavar="FILE",
        help="vllm: what it prints (default: covey-vllm-PORT.log in the folder for such files)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from covey.sample.remote.client import TOKEN
    from covey.sample.remote.many_sockets import allow_many
    from covey.sample.remote.served_http import CoveyHTTPServer

    if not 0 <= args.port < 65536:
        raise ConfigError(f"--port is {args.port}; it is a number from 0 to 65535.")
    if args.max_sequences < 1:
        raise ConfigError(f"--max-sequences is {args.max_sequences}; it must be at least 1.")
    check_engine(args)
    allow_many()
    token = os.environ.get(TOKEN, "").strip() or None
    if not args.host.startswith(LOOPBACK) and token is None:
        warn(
            f"--host {args.host} lets other machines draw, and send weights, without asking who they are. Set {TOKEN} on both sides, or "
            "keep the network private."
        )
    if args.engine == "vllm":
        return serve_vllm(args, token)
    check_address(args.host, args.port)
    policy = served_policy(args)
    together = policy.device.type != "cpu" if args.together is None else args.together
    with address_faults(args.host, args.port):
        server = CoveyHTTPServer(policy, args.host, args.port, together, token)
    # `shutdown` waits for the loop, which runs in this thread.
    end = threading.Thread(target=server.shutdown, daemon=True)
    before = signal.signal(signal.SIGTERM, lambda *_: None if end.ident else end.start())
    show(server.url, flush=True)
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        show(file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
        server.server_close()
    server.queue.thread.join(ENDING_SECONDS)
    if server.queue.thread.is_alive():  # in the middle of a long group: the interpreter must not end under it
        sys.stdout.flush()
        os._exit(0)
    return 0


def check_address(host: str, port: int) -> None:
    """Raise before a model is loaded, which may take minutes, where its address cannot be had.

    Raises:
        ConfigError: it is taken, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with address_faults(host, port), socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def served_policy(args: argparse.Namespace) -> ServedPolicy:
    """Return the policy that the command's options name.

    Raises:
        LoadingError: it cannot be loaded.
    """
    from covey.cli.engines import engine_of
    from covey.cli.verbs.generate import device_of
    from covey.models import adapters, fitness, loading
    from covey.recipes.bundled import policy_name
    from covey.sample.remote.served_policy import ServedPolicy

    name, options, trust = policy_name(args.model), {"dtype": args.dtype}, args.trust_remote_code
    device, policy = device_of(args.device), None
    if Path(name, "adapter_config.json").is_file():
        loaded: Any = adapters.load_adapter(name, None, options)
        policy = loaded.merge_and_unload()
    else:
        policy = loading.load_policy(name, options, trust_remote_code=trust)
    if getattr(policy, "_hf_peft_config_loaded", False):
        raise ConfigError(
            f"{name} is an adapter. Download it, and give its folder: it is merged into its base then."
        )
    fitness.check_causal(policy)
    policy.to(device).eval()
    tokenizer = loading.load_tokenizer(None, name, trust)
    fitness.check_tokenizer(tokenizer, policy)
    _, ending = engine_of(policy, tokenizer)
    unsaid = [i for i in (*ending, tokenizer.pad_token_id) if i is not None]
    return ServedPolicy(policy, tokenizer, args.model, unsaid, max_sequences=args.max_sequences)
