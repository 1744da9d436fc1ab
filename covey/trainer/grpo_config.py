"""Alias of `covey.config`: a script that imports from `trl.trainer.grpo_config` changes one word."""

from covey.config import GRPOConfig as GRPOConfig
