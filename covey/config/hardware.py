"""Abilities of this machine, and what is used instead of those that it lacks.

Settings that only concern hardware fall back, with one warning that names what is used instead; with
`strict_hardware=True` they raise.
"""

from __future__ import annotations

import importlib.util
import platform
import sys

import psutil
import torch

from covey.errors import ConfigError, warn


def use_instead(asked: str, reason: str, instead: str, strict: bool) -> None:
    """Warn that `instead` is used because of `reason`, or raise where hardware is strict."""
    if strict:
        raise ConfigError(
            f"{asked} is asked for, but {reason}. Unset it, or set strict_hardware=False to use {instead}."
        )
    warn(f"{asked}: {reason}. {instead[0].upper()}{instead[1:]} is used instead.")


def has_accelerator() -> bool:
    """Return whether torch sees an accelerator that Covey trains on: any but Apple's MPS."""
    if torch.cuda.is_available():
        return True
    has_other = hasattr(torch, "accelerator") and torch.accelerator.is_available()
    return bool(has_other) and not has_mps()


def has_mps() -> bool:
    """Return whether torch sees Apple's MPS. It has no float64, in which sampling draws."""
    return torch.backends.mps.is_available()


def has_cuda() -> bool:
    return torch.cuda.is_available()


def computes_bf16(on_cpu: bool) -> bool:
    """Return whether bfloat16 arithmetic is done by the hardware, rather than emulated."""
    if not on_cpu and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if not on_cpu and has_accelerator():
        return True
    return cpu_computes_bf16()


def cpu_computes_bf16() -> bool:
    """Return whether the processor multiplies bfloat16 matrices (AVX512-BF16, AMX, or Arm's BF16)."""
    names = ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16")
    if hasattr(torch.cpu, "get_capabilities"):  # from torch 2.10 on
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in names)
    if platform.system() != "Linux":
        return False
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        flags = {flag for line in file if line.startswith(("flags", "Features")) for flag in line.split()}
    return not flags.isdisjoint(names)


def peak_memory_mb(device: torch.device) -> float:
    """Return the most memory held so far, in MiB: of the GPU where there is one, of the process otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource  # Unix has it
    except ImportError:
        held = psutil.Process().memory_info()
        return getattr(held, "peak_wset", held.rss) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB on Linux


def has_package(name: str) -> bool:
    """Return whether a package can be imported; it is not imported."""
    return importlib.util.find_spec(name) is not None


SEEING_PACKAGES = {"PIL": "pillow", "torchvision": "torchvision"}
"""What processors of pictures need, the extra `vision`: by the name that is imported, that of the package."""


def missing_to_see() -> list[str]:
    """Return the packages of the extra `vision` that are not there."""
    return [package for name, package in SEEING_PACKAGES.items() if not has_package(name)]
