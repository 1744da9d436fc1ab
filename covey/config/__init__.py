"""GRPOConfig and ModelConfig: TRL's names and defaults, validated once.

A misspelt name raises and suggests. A setting that would have no effect raises or warns; none is rewritten silently.
The steps receive plain arguments and do not know these classes.

Names are loaded on first use: `covey.config.choices` is read where there is no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "ALIASES": "resolving",
    "GRPOConfig": "grpo",
    "ModelConfig": "model",
    "ScriptArguments": "parser",
    "TrlParser": "parser",
    "UnknownSettingError": "validation",
    "get_kbit_device_map": "model",
    "get_peft_config": "model",
    "get_quantization_config": "model",
}

__all__ = [
    "ALIASES",
    "GRPOConfig",
    "ModelConfig",
    "ScriptArguments",
    "TrlParser",
    "UnknownSettingError",
    "get_kbit_device_map",
    "get_peft_config",
    "get_quantization_config",
]

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig
    from covey.config.model import (
        ModelConfig,
        get_kbit_device_map,
        get_peft_config,
        get_quantization_config,
    )
    from covey.config.parser import ScriptArguments, TrlParser
    from covey.config.resolving import ALIASES
    from covey.config.validation import UnknownSettingError


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"covey.config.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'covey.config' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
