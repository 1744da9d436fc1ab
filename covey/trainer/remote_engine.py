"""Settings → the engine that samples on servers: given ones, or children that this process starts."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from covey.config import GRPOConfig
from covey.config.sampling_names import sampler_options
from covey.errors import ConfigError
from covey.models.inference_mode import Autocast
from covey.models.inspect import compute_dtype, innermost
from covey.sample.remote.checks import Checks
from covey.sample.remote.child_command import ChildOrder, check_head_size, devices_of
from covey.sample.remote.client import Client
from covey.sample.remote.engine import RemoteEngine
from covey.sample.remote.launch import ChildServer, Launcher
from covey.sample.remote.many_sockets import allow_many
from covey.sample.remote.served import CoveyServer
from covey.sample.remote.server import Server, ServerKind
from covey.sample.remote.sglang import SglangServer
from covey.sample.remote.travel import adapter_of, why_not_adapter
from covey.sample.remote.vllm import VllmServer
from covey.sample.remote.weight_sync import WeightSync
from covey.sample.sampling import Sampling
from covey.trainer.distributed import gather


def make_remote_engine(
    args: GRPOConfig,
    policy: nn.Module,
    sampling: Sampling,
    decode: Callable[[Sequence[int]], str],
    autocast: Autocast,
    say: Callable[[str], None],
) -> RemoteEngine:
    """Build the engine that samples on servers. Collective; children are started when they are first needed.

    Raises:
        ConfigError: children cannot be started here, processes would not wait for a lost server, or servers cannot swap in flight.
    """
    if args.async_in_flight and args.engine == "sglang" and args.weight_sync != "adapter":
        raise ConfigError(
            "async_in_flight=True does not go with engine='sglang': whole weights are not changed under its running requests. Set "
            "weight_sync='adapter' where the policy trains an adapter; or leave it out: async_lag works without, and the run can be repeated."
        )
    if args.world_size > 1 and args.engine_timeout > args.ddp_timeout:
        raise ConfigError(
            f"engine_timeout={args.engine_timeout:g} is longer than ddp_timeout={args.ddp_timeout}: while one process waits for a "
            "server the others would give it up. Set ddp_timeout to twice engine_timeout."
        )
    allow_many()
    folder = Path(args.output_dir or ".").absolute()
    # Two runs of one name are told apart by their folders; the same run, resumed, is the same.
    run = f"{args.run_name or folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:6]}"
    launcher = None if args.engine_urls else make_launcher(args, policy, autocast, folder)
    known = {server.url: server for server in (launcher.servers if launcher is not None else ())}
    urls = args.engine_urls or [url for part in gather(list(known)) for url in part]
    sync = WeightSync(
        run,
        folder,
        gather,
        rank=args.process_index,
        folder=args.weights_folder,
        route=args.weight_sync,
        keeps=max(2, args.async_lag),
        in_flight=args.async_in_flight,
    )
    prompt = args.max_prompt_length
    length = None if prompt is None else prompt + args.max_completion_length
    dtype, draws = dtype_of(policy, autocast), not fields_of_requests(args)
    checks = Checks(
        sync, sampling, length, autocast, dtype, canary=args.engine_canary, compares_draws=draws, say=say
    )
    return RemoteEngine(
        [known.get(url) or make_server(args, url) for url in urls],
        sync,
        checks,
        decode,
        run=run,
        timeout=args.engine_timeout,
        gather=gather,
        launcher=launcher,
        first=args.process_index,
        swaps_in_flight=args.async_in_flight,
    )


def make_server(args: GRPOConfig, url: str) -> Server:
    """Build what speaks to the server at an address."""
    if args.engine == "sglang":
        return SglangServer(url, args.engine_timeout)
    if args.engine == "covey":
        return CoveyServer(Client(url, args.engine_timeout), args.keep_special_tokens)
    return VllmServer(url, args.engine_timeout, fields_of_requests(args))


def fields_of_requests(args: GRPOConfig) -> dict[str, Any]:
    """Return the fields of requests that only vLLM knows: what `generation_kwargs` has of them, and the form of completions."""
    fields = sampler_options(args)[1]
    if args.engine == "vllm" and args.vllm_structured_outputs_regex is not None:
        fields["structured_outputs"] = {"regex": args.vllm_structured_outputs_regex}
    return fields


def make_launcher(args: GRPOConfig, policy: nn.Module, autocast: Autocast, folder: Path) -> Launcher | None:
    """Build the parent of this process's child server; None where a neighbour has the one that both share.

    Raises:
        ConfigError: the processes of this run are on several machines, or the policy has no name to start from.
    """
    if processes_here(args) < args.world_size:
        raise ConfigError(
            f"engine={args.engine!r} without engine_urls starts servers on this machine, and the run's {args.world_size} processes are "
            "on several. Start servers on each by `covey serve --engine vllm MODEL`, and give their addresses: engine_urls."
        )
    order = child_order(args, policy, autocast)
    check_head_size(cast(Any, innermost(policy)).config, order)
    if args.local_process_index % args.vllm_tensor_parallel_size:
        return None
    log = folder / f"engine-{args.process_index}.log"
    child = ChildServer(order, partial(make_server, args), log, args.engine_timeout)
    return Launcher([child], args.engine_restarts, args.vllm_enable_sleep_mode)


def child_order(args: GRPOConfig, policy: nn.Module, autocast: Autocast) -> ChildOrder:
    """Return what the child server of this process is asked to be."""
    name = str(getattr(cast(Any, innermost(policy)).config, "_name_or_path", "") or "")
    if not name:
        raise ConfigError(
            f"engine={args.engine!r} starts a server from the policy's name or folder, and this policy has none. Save it, and give the "
            "folder as model; or start a server and give engine_urls."
        )
    adapter, layers = adapter_of(policy)
    travels = args.weight_sync != "files" and why_not_adapter(policy, 512) is None
    prompt, devices = args.max_prompt_length, tuple[str, ...]()
    if args.device.type == "cuda":
        near, size = processes_here(args), args.vllm_tensor_parallel_size
        devices = devices_of(args.local_process_index, near, size, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return ChildOrder(
        cast(ServerKind, args.engine),
        str(Path(name).absolute()) if Path(name).is_dir() else name,
        args.engine_python or sys.executable,
        dtype=str(dtype_of(policy, autocast)).removeprefix("torch."),
        max_length=args.vllm_max_model_length or (prompt and prompt + args.max_completion_length),
        devices=devices,
        memory_share=args.vllm_gpu_memory_utilization,
        implementation=args.vllm_model_impl,
        sleeps=args.vllm_enable_sleep_mode,
        adapter_rank=max((layer.r[adapter] for _, layer in layers), default=None) if travels else None,
        adapters=4,
        trusts_code=args.trust_remote_code,
        arguments=cast(dict[str, object], args.engine_args or {}),
    )


def processes_here(args: GRPOConfig) -> int:
    """Return the number of the run's processes on this machine: all of them, where the launcher does not say."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))


def dtype_of(policy: nn.Module, autocast: Autocast) -> torch.dtype:
    """Return the dtype that the policy computes in."""
    weights = next(policy.parameters())
    with autocast():
        return compute_dtype(weights.device, weights.dtype)
