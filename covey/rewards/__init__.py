"""Rewards: functions and models that give a completion a number. They need neither trainer nor torch, and run inside other
trainers too.

Names are loaded on first use, so that an import costs what is used of it.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "accuracy_reward": "trl_names",
    "as_rewards": "mixture",
    "AssertTests": "sandbox.rewards",
    "BoxedFormat": "rules.formats",
    "CallTests": "sandbox.rewards",
    "check_rewards": "check.run",
    "CheckReport": "check.report",
    "code_reward_func": "rules.code_syntax",
    "Cosine": "schedules",
    "CosineLength": "rules.lengths",
    "Countdown": "rules.countdown",
    "ExactMatch": "rules.exact",
    "Failure": "contract",
    "format_reward_func": "rules.functions",
    "get_cosine_scaled_reward": "trl_names",
    "get_repetition_penalty_reward": "trl_names",
    "get_soft_overlong_punishment": "trl_names",
    "JsonFormat": "rules.json_format",
    "Judge": "neural.judge",
    "LengthBudget": "rules.lengths",
    "Linear": "schedules",
    "load_reward_model": "neural.reward_model",
    "math_reward_func": "rules.equivalence",
    "Mixture": "mixture",
    "MultipleChoice": "rules.choice",
    "NumberMatch": "rules.numbers",
    "OpenAIClient": "neural.client",
    "reasoning_accuracy_reward": "trl_names",
    "ReasoningGym": "reasoning_gym",
    "Repetition": "rules.repetition",
    "Reward": "contract",
    "reward": "contract",
    "RewardBatch": "batch",
    "RewardModel": "neural.reward_model",
    "RewardOptions": "options",
    "RewardTable": "batch",
    "Rubric": "neural.rubric",
    "SameAnswer": "rules.equivalence",
    "Sandbox": "sandbox.sandbox",
    "simple_math_reward_func": "rules.functions",
    "SoftOverlong": "rules.lengths",
    "StdioTests": "sandbox.rewards",
    "Steps": "schedules",
    "Tagged": "rules.formats",
    "text_of": "text",
    "think_format_reward": "trl_names",
    "ThinkFormat": "rules.formats",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"covey.rewards.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'covey.rewards' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
