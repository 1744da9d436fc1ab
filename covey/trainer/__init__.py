"""GRPOTrainer and the parts of it that touch `transformers.Trainer` or `GRPOConfig`; nothing else lives here.

GRPOTrainer and GRPOConfig are loaded on first use, so that its smaller parts bring no model code.
"""

from typing import TYPE_CHECKING

__all__ = ["GRPOConfig", "GRPOTrainer"]

if TYPE_CHECKING:
    from covey.config import GRPOConfig
    from covey.trainer.grpo_trainer import GRPOTrainer


def __getattr__(name: str) -> object:
    if name in __all__:
        import covey

        return getattr(covey, name)
    raise AttributeError(f"module 'covey.trainer' has no attribute {name!r}")
