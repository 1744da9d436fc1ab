"""What one completion is worth. Stands alone: needs no trainer and no torch, and runs inside other trainers too.

Names are loaded on first use, so that an import costs what is used of it.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "AssertTests": "sandbox.rewards",
    "BoxedFormat": "rules.formats",
    "CallTests": "sandbox.rewards",
    "CosineLength": "rules.lengths",
    "Countdown": "rules.countdown",
    "ExactMatch": "rules.exact",
    "Failure": "failure",
    "JsonFormat": "rules.json_format",
    "LengthBudget": "rules.lengths",
    "MultipleChoice": "rules.choice",
    "NumberMatch": "rules.numbers",
    "Repetition": "rules.repetition",
    "Reward": "reward",
    "RewardBatch": "batch",
    "RewardModel": "neural.reward_model",
    "RewardTable": "batch",
    "SameAnswer": "rules.equivalence",
    "Sandbox": "sandbox.sandbox",
    "SoftOverlong": "rules.lengths",
    "StdioTests": "sandbox.rewards",
    "Tagged": "rules.formats",
    "ThinkFormat": "rules.formats",
    "as_rewards": "reward",
    "code_reward_func": "rules.code_syntax",
    "evaluate": "evaluate",
    "format_reward_func": "rules.functions",
    "load_reward_model": "neural.reward_model",
    "math_reward_func": "rules.equivalence",
    "simple_math_reward_func": "rules.functions",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"covey.rewards.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'covey.rewards' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
