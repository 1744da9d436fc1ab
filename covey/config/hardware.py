"""What this machine can do, and what is used instead of what it cannot.

Settings that only concern hardware fall back, with one warning that names what is used instead; with
`strict_hardware=True` they raise.
"""

from __future__ import annotations

import importlib.util
import platform
import resource
import sys
from typing import Any

from covey.errors import ConfigError, warn


def use_instead(asked: str, reason: str, instead: str, strict: bool) -> None:
    """Say that `instead` is used because of `reason`, or raise where hardware is strict."""
    if strict:
        raise ConfigError(
            f"{asked} is asked for, but {reason}. Unset it, or set strict_hardware=False to use {instead}."
        )
    warn(f"{asked}: {reason}. {instead[0].upper()}{instead[1:]} is used instead.")


def has_accelerator() -> bool:
    """Whether torch sees an accelerator that Covey trains on: any but Apple's MPS."""
    import torch

    return torch.cuda.is_available() or (_has_other_accelerator() and not has_mps())


def has_mps() -> bool:
    """Whether torch sees Apple's MPS. It has no float64, in which sampling draws."""
    import torch

    return torch.backends.mps.is_available()


def _has_other_accelerator() -> bool:
    import torch

    return bool(hasattr(torch, "accelerator") and torch.accelerator.is_available())


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def computes_bf16(on_cpu: bool) -> bool:
    """Whether bfloat16 arithmetic is done by the hardware, rather than emulated."""
    import torch

    if not on_cpu and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if not on_cpu and has_accelerator():
        return True
    return cpu_computes_bf16()


def cpu_computes_bf16() -> bool:
    """Whether the processor multiplies bfloat16 matrices (AVX512-BF16, AMX, or Arm's BF16)."""
    import torch

    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else _capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"))


def _capabilities() -> dict[str, bool]:
    """Flags of the processor where torch does not tell (before 2.10): Linux' own list."""
    if platform.system() != "Linux":
        return {}
    with open("/proc/cpuinfo") as file:
        return {
            flag: True for line in file if line.startswith(("flags", "Features")) for flag in line.split()
        }


def peak_memory_mb(device: Any) -> float:
    """Most memory held so far: of the GPU where there is one, of the process otherwise. In MiB."""
    import torch

    if getattr(device, "type", "cpu") == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB on Linux


def has_package(name: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    return importlib.util.find_spec(name) is not None
