"""Covey: GRPO on any mixture of rewards.

    from covey import GRPOConfig, GRPOTrainer

Public names are loaded on first use, so that `import covey.rewards` brings no torch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    # Read when torch is loaded. By default a thread that waits keeps its core busy for milliseconds, and where other work
    # shares the cores it is that core's turn that the thread it waits for needs: runs were 10 times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_HOMES = {
    "GRPOConfig": "covey.config",
    "GRPOTrainer": "covey.trainer.grpo_trainer",
    "ModelConfig": "covey.config",
    "ScriptArguments": "covey.config",
    "TrlParser": "covey.config",
    "get_kbit_device_map": "covey.config",
    "get_peft_config": "covey.config",
    "get_quantization_config": "covey.config",
}

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "ModelConfig",
    "ScriptArguments",
    "TrlParser",
    "get_kbit_device_map",
    "get_peft_config",
    "get_quantization_config",
]

if TYPE_CHECKING:
    from covey.config import (
        GRPOConfig,
        ModelConfig,
        ScriptArguments,
        TrlParser,
        get_kbit_device_map,
        get_peft_config,
        get_quantization_config,
    )
    from covey.trainer.grpo_trainer import GRPOTrainer


_ELSEWHERE = {
    "LogCompletionsCallback": "GRPOConfig(log_completions=True), which sends tables of completions to the loggers of report_to",
    "RichProgressCallback": "GRPOConfig(display='live')",
    "SyncRefModelCallback": "GRPOConfig(sync_ref_model=True), beside beta",
    "WinRateCallback": "compute_metrics of GRPOTrainer, with covey.rewards.Judge",
    "GRPOScriptArguments": "ScriptArguments, with fields of your own in a class derived from it",
    "RLOOConfig": "GRPOConfig(advantage_estimator='rloo')",
    "RLOOTrainer": "GRPOTrainer with GRPOConfig(advantage_estimator='rloo')",
}
"""Names that scripts import from TRL, and what does the same here."""


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ELSEWHERE:
        raise ImportError(f"covey has no {name}. Use {_ELSEWHERE[name]}.")
    raise AttributeError(f"module 'covey' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
