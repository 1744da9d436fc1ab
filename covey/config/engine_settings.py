"""Settings of the engine that samples: Covey's own in the process, or servers beside it, under Covey's names and under TRL's.

    engine="vllm", engine_urls="http://n2:8000,http://n3:8000"        servers that are there
    engine="vllm", engine_python="/envs/vllm/bin/python"              a server that the trainer starts, on its own device
    use_vllm=True, vllm_mode="server", vllm_server_base_url=...       the same in TRL's words

TRL's names are moved to Covey's; two names that say different things are an error.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from covey.config import hardware
from covey.config.validation import at_least, defaults, help_text
from covey.errors import ConfigError, warn
from covey.types import WeightRoute

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

EngineName = Literal["native", "vllm", "sglang", "covey"]

_VLLM = "Goes with use_vllm"


@dataclass
class EngineSettings:
    """Settings of the engine. Those called vllm_* are TRL's, with its defaults."""

    engine: EngineName = help_text(
        "native",
        "What samples: 'native', in the process; or servers of 'vllm', 'sglang' or 'covey' (covey serve), spoken to over HTTP.",
    )
    engine_urls: list[str] | str | None = help_text(
        None,
        "Servers that are running: a list, or text with commas. Default: one is started on the trainer's own device.",
    )
    engine_timeout: float = help_text(
        240.0, "Seconds after which a server that is not there, or makes no progress, counts as lost."
    )
    engine_python: str | None = help_text(
        None, "Python of the environment from which a server is started. Default: the trainer's own."
    )
    engine_args: dict[str, Any] | str | None = help_text(
        None, "More arguments of a server that is started: {'max_num_seqs': 64} is --max-num-seqs 64."
    )
    engine_restarts: int = help_text(3, "Times that a server which was started and died is started again.")
    engine_canary: bool = help_text(
        True, "Before the first step, prove with changed weights that every weight reaches the servers."
    )
    weight_sync: WeightRoute = help_text(
        "auto",
        "How servers get weights: as 'files' that they read, as an 'adapter'; 'auto': an adapter where the policy has one.",
    )
    weights_folder: str | None = help_text(
        None,
        "Folder of the files, that trainer and servers see. Default: in memory on one machine, else output_dir/weights.",
    )
    use_vllm: bool = help_text(
        False, "The same as engine='vllm'. Where there is no vLLM, the native engine samples, with a warning."
    )
    vllm_mode: Literal["colocate", "server"] = help_text(
        "colocate", f"{_VLLM}: start a server on the trainer's device, or speak to given ones."
    )
    vllm_model_impl: str = help_text("vllm", f"{_VLLM} in mode 'colocate': vLLM's --model-impl.")
    vllm_enable_sleep_mode: bool = help_text(
        False, f"{_VLLM} in mode 'colocate': vLLM gives its memory back while the policy is updated."
    )
    vllm_structured_outputs_regex: str | None = help_text(
        None, f"{_VLLM}: completions follow this regular expression."
    )
    vllm_server_base_url: list[str] | str | None = help_text(
        None, f"{_VLLM} in mode 'server': the same as engine_urls."
    )
    vllm_server_host: str = help_text(
        "0.0.0.0", f"{_VLLM} in mode 'server', without URLs; 0.0.0.0 is this machine."
    )
    vllm_server_port: int = help_text(8000, f"{_VLLM} in mode 'server', without URLs.")
    vllm_server_timeout: float = help_text(240.0, f"{_VLLM}: the same as engine_timeout.")
    vllm_group_port: int = help_text(
        51216, "No effect: no group of processes is made with servers, as weights travel as files."
    )
    vllm_gpu_memory_utilization: float = help_text(
        0.3, f"{_VLLM} in mode 'colocate': share of the whole device's memory, weights included."
    )
    vllm_max_model_length: int | None = help_text(
        None,
        f"{_VLLM} in mode 'colocate': tokens of prompt and completion. Default: what the two limits come to.",
    )
    vllm_tensor_parallel_size: int = help_text(
        1, f"{_VLLM} in mode 'colocate': processes of a machine that share a server on all their devices."
    )
    use_transformers_paged: bool = help_text(
        False, "No effect: the native engine samples instead, with a warning."
    )
    use_transformers_continuous_batching: bool = help_text(
        False, "No effect: the native engine, in which sequences leave and enter, samples instead."
    )
    transformers_continuous_batching_config: dict[str, Any] | str | None = help_text(
        None, "Goes with use_transformers_continuous_batching, and has no effect."
    )
    cache_implementation: str | None = help_text(
        None, "No effect: the native engine keeps its own cache, with a warning."
    )


CHOOSERS = {
    "use_vllm": "there is no vLLM in the trainer's environment or in that of engine_python, and no server is given "
    "(vllm_mode='server', or engine_urls)",
    "use_transformers_paged": "Covey does not drive transformers' paged generation",
    "use_transformers_continuous_batching": "Covey does not drive transformers' continuous batching",
    "cache_implementation": "it is the cache of transformers' generate, which is not called",
}
"""Settings that choose an engine, and why it is not used where it is not."""

LONGEST = 365 * 24 * 3600
"""Seconds of `engine_timeout` at most: sockets take no time without an end."""

OF_STARTED = ("vllm_model_impl", "vllm_enable_sleep_mode", "vllm_gpu_memory_utilization", "vllm_max_model_length",
              "vllm_tensor_parallel_size", "engine_python", "engine_args", "engine_restarts")  # fmt: skip
"""Settings of a server that the trainer starts."""

OF_GIVEN = ("vllm_server_host", "vllm_server_port", "vllm_server_base_url")
"""Settings that say where a server is."""

ROUTES = "weights travel as files that the server reads ('files'), or as an adapter"
NO_ROUTES = {
    "nccl": f"it needs vLLM in the trainer's own environment, and one version of it on both sides; {ROUTES}",
    "ipc": f"it needs vLLM in the trainer's own environment, and pickles that the server opens; {ROUTES}",
}
"""Ways of other trainers to send weights, and why they are not there."""


def read_engine(config: GRPOConfig) -> None:
    """Let `use_vllm` choose the engine, before the values of settings are looked at.

    Raises:
        ConfigError: two engines are asked for, or a way to send weights that is not there.
    """
    if config.weight_sync in NO_ROUTES:
        raise ConfigError(
            f"weight_sync={config.weight_sync!r} is not available: {NO_ROUTES[config.weight_sync]}. Leave it at 'auto'."
        )
    if config.use_vllm is True and config.engine not in ("native", "vllm"):
        raise ConfigError(
            f"use_vllm=True and engine={config.engine!r} ask for two engines. Leave one of them out."
        )
    if config.use_vllm is True:
        config.engine = "vllm"


def resolve_engines(config: GRPOConfig) -> None:
    """Move TRL's names of the engine's settings to Covey's; fall back to the native engine where there is no vLLM.

    One warning names all settings that fall back with it, one those that do nothing beside the others.

    Raises:
        ConfigError: settings that contradict one another, or have no effect; with `strict_hardware`, an engine that is not there.
    """
    default = defaults(type(config))
    given = [f.name for f in fields(EngineSettings) if getattr(config, f.name) != default[f.name]]
    own = [n for n in given if n.startswith(("engine_", "weight"))]
    falls_back = config.engine == "vllm" and not asks_for_servers(config) and not has_vllm(config)
    for chooser, reason in CHOOSERS.items():
        is_vllm = chooser == "use_vllm"
        if not falls_back if is_vllm else chooser not in given:
            continue
        family = [n for n in given if n.startswith(chooser.removeprefix("use_")) and n != chooser]
        family += own if is_vllm else []
        name = "engine" if is_vllm and chooser not in given else chooser
        asked = f"{name}={getattr(config, name)!r}" + (f" (with {', '.join(family)})" if family else "")
        instead = "the native engine" if is_vllm or config.engine == "native" else f"engine {config.engine!r}"
        hardware.use_instead(asked, reason, instead, config.strict_hardware)
        config.engine = "native" if is_vllm else config.engine
        given = [n for n in given if n not in (chooser, "engine", *family)]
    if config.engine != "native":
        idle = idle_settings(config, given)
    else:
        idle = [n for n in given if n != "engine"]
    if config.engine == "native" and config.engine_urls and not falls_back:
        raise ConfigError(
            f"engine_urls={config.engine_urls!r} names servers, and engine='native' samples in the process. Say what they are: "
            "engine='covey' (covey serve), 'vllm' or 'sglang'; or leave engine_urls out."
        )
    if refused := [n for n in idle if n in own]:
        values = ", ".join(f"{n}={getattr(config, n)!r}" for n in refused)
        where = f"engine={config.engine!r}" + (" and servers that run already" if config.engine_urls else "")
        raise ConfigError(f"{values} has no effect with {where}. Leave it out.")
    if idle:
        where = "is not chosen" if config.engine == "native" else "is chosen otherwise"
        warn(f"{', '.join(idle)}: no effect, since the engine that it belongs to {where}.")


def asks_for_servers(config: GRPOConfig) -> bool:
    """Return whether servers are asked for that run already."""
    return bool(config.vllm_mode == "server" or config.vllm_server_base_url or config.engine_urls)


def has_vllm(config: GRPOConfig) -> bool:
    """Return whether vLLM is in the environment that a server would be started from.

    Raises:
        ConfigError: `engine_python` is no Python.
    """
    if config.engine_python is None:
        return hardware.has_package("vllm")
    probe = "import importlib.util as u, sys; sys.exit(10 + (u.find_spec('vllm') is not None))"
    call = [config.engine_python, "-c", probe]
    try:
        found = str(subprocess.run(call, capture_output=True, timeout=60).returncode)
    except (OSError, subprocess.TimeoutExpired) as error:
        found = str(error)
    if found not in ("10", "11"):
        raise ConfigError(
            f"engine_python={config.engine_python!r} is no Python that runs: {found}. Give the path of the interpreter, such as "
            "/envs/vllm/bin/python."
        )
    return found == "11"


def idle_settings(config: GRPOConfig, given: Sequence[str]) -> list[str]:
    """Move TRL's names to Covey's; return the settings among those given that do nothing beside the others.

    Raises:
        ConfigError: settings that contradict one another, or a number out of range.
    """
    idle = [n for n in given if n == "vllm_group_port" or n.startswith(("use_tr", "transformers", "cache_"))]
    if config.engine == "vllm":
        if config.vllm_server_base_url and config.vllm_mode != "server":
            raise ConfigError(
                f"vllm_server_base_url={config.vllm_server_base_url!r} names a server, and vllm_mode='colocate' starts one. Set "
                "vllm_mode='server', or leave the URL out."
            )
        if config.vllm_mode == "server":
            host = f"http://{config.vllm_server_host}:{config.vllm_server_port}"
            is_given = config.vllm_server_base_url or not config.engine_urls or set(OF_GIVEN) & set(given)
            meant = checked_urls(config.vllm_server_base_url or host) if is_given else None
            take(config, "vllm_server_base_url", "engine_urls", meant)
        if "vllm_server_timeout" in given:
            take(config, "vllm_server_timeout", "engine_timeout", config.vllm_server_timeout)
    else:
        idle += [n for n in given if n.startswith("vllm_")]
    if config.engine_urls is not None:
        config.engine_urls = checked_urls(config.engine_urls)
    if config.engine == "sglang" and not config.engine_urls:
        raise ConfigError(
            "engine='sglang' needs servers that run already: engine_urls='http://host:30000'. Start one with "
            "python -m sglang.launch_server --model-path MODEL --enable-metrics."
        )
    idle += [n for n in given if n in (OF_STARTED if config.engine_urls else OF_GIVEN) and n not in idle]
    if not 0 < config.engine_timeout <= LONGEST:
        raise ConfigError(
            f"engine_timeout is {config.engine_timeout:g}; it is a time in seconds, above 0 and at most {LONGEST:,}, a year."
        )
    at_least("engine_restarts", config.engine_restarts, 0)
    check_started(config)
    if config.weights_folder is not None:
        config.weights_folder = str(Path(config.weights_folder).expanduser().absolute())
    return idle


def take(config: GRPOConfig, alias: str, name: str, value: Any) -> None:
    """Give the setting the value that came under TRL's name; None: it did not.

    Raises:
        ConfigError: the setting itself says another thing.
    """
    present, default = getattr(config, name), defaults(type(config))[name]
    present = checked_urls(present) if name == "engine_urls" and present else present
    if value is not None and present not in (default, value):
        raise ConfigError(f"{alias}={value!r} and {name}={present!r} are the same setting. Give one of them.")
    setattr(config, name, present if value is None else value)


def checked_urls(given: str | Sequence[str]) -> list[str]:
    """Return addresses of servers as a client needs them, from a list or text with commas.

    An address to listen at, 0.0.0.0, is this machine to a client.

    Raises:
        ConfigError: one is no address, or stands twice.
    """
    urls: list[str] = []
    if not given:
        raise ConfigError(
            "engine_urls is empty. Name the servers; leave it out to have one started on this device."
        )
    for part in (p for text in ([given] if isinstance(given, str) else given) for p in text.split(",")):
        url = part.strip().rstrip("/")
        url = url if "://" in url else f"http://{url}"
        try:
            split = urlsplit(url)
            is_right = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
            is_right = is_right and split.username is None
        except ValueError:
            is_right = False
        if not is_right or split.query or split.fragment:
            raise ConfigError(
                f"engine_urls has {part!r}, which is no address of a server. Write http://host:port; what a server asks for as a token goes "
                "into the environment variable COVEY_ENGINE_TOKEN."
            )
        urls.append(url.replace("//0.0.0.0", "//127.0.0.1", 1))
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(f"engine_urls has {url} twice. Name each server once.")
    return urls


def check_started(config: GRPOConfig) -> None:
    """Raise a ConfigError where settings of a server that the trainer starts are out of range, or would need several machines."""
    if not 0 < config.vllm_gpu_memory_utilization <= 1:
        raise ConfigError(
            f"vllm_gpu_memory_utilization is {config.vllm_gpu_memory_utilization}; it is a share of the device's memory, above 0."
        )
    size = config.vllm_tensor_parallel_size
    at_least("vllm_tensor_parallel_size", size, 1)
    if size > 1 and config.vllm_enable_sleep_mode:
        raise ConfigError(
            f"vllm_enable_sleep_mode=True does not go with vllm_tensor_parallel_size={size}: processes that share a server have their "
            "samples at different times, and it would sleep while one still draws. Leave one of the two out."
        )
    near = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if config.engine == "vllm" and not config.engine_urls and near % size:
        raise ConfigError(
            f"vllm_tensor_parallel_size={size} does not divide the {near} processes of this machine. That many neighbours share a "
            "server on their devices; over several machines none can. Start vLLM by itself there, and give engine_urls."
        )
