"""Alias of `covey.config`: a script that imports from `trl.trainer.model_config` changes one word."""

from covey.config import ModelConfig as ModelConfig
