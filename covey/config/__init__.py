"""GRPOConfig and ModelConfig: TRL's names and defaults, validated once.

A misspelt name raises and suggests. A setting that would have no effect raises or warns; none is rewritten silently.
The steps receive plain arguments and do not know these classes.
"""

from __future__ import annotations

from covey.config.grpo import GRPOConfig
from covey.config.model import ModelConfig, get_kbit_device_map, get_peft_config, get_quantization_config
from covey.config.resolving import ALIASES
from covey.config.validation import UnknownSettingError

__all__ = [
    "ALIASES",
    "GRPOConfig",
    "ModelConfig",
    "UnknownSettingError",
    "get_kbit_device_map",
    "get_peft_config",
    "get_quantization_config",
]
