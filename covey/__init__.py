"""Covey: GRPO on any mixture of rewards.

    from covey import GRPOConfig, GRPOTrainer

Public names are loaded on first use, so that `import covey.rewards` brings no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "GRPOConfig": "covey.config",
    "GRPOTrainer": "covey.trainer.grpo_trainer",
    "ModelConfig": "covey.config",
    "get_kbit_device_map": "covey.config",
    "get_peft_config": "covey.config",
    "get_quantization_config": "covey.config",
}

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "ModelConfig",
    "get_kbit_device_map",
    "get_peft_config",
    "get_quantization_config",
]

if TYPE_CHECKING:
    from covey.config import (
        GRPOConfig,
        ModelConfig,
        get_kbit_device_map,
        get_peft_config,
        get_quantization_config,
    )
    from covey.trainer.grpo_trainer import GRPOTrainer


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'covey' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
