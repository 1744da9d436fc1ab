"""Policies without weights: their modules on the device `meta`, from a config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from covey.config import ModelConfig
from covey.errors import LoadingError
from covey.models.families import is_family
from covey.models.loading import is_absent, not_loaded

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def config_for(given: ModelConfig) -> PretrainedConfig:
    """Return the config of the model that is named.

    Raises:
        LoadingError: it cannot be read.
    """
    name = str(given.model_name_or_path)
    try:
        return AutoConfig.from_pretrained(
            name, revision=given.model_revision, trust_remote_code=given.trust_remote_code
        )
    except (OSError, ValueError) as error:
        if is_absent(name):
            raise not_loaded("policy", name, error) from error
        reason = str(error).splitlines()[0]
        raise LoadingError(f"the config of {name} cannot be read: {reason}") from error


def outline(given: ModelConfig) -> PreTrainedModel:
    """Return the policy that is named, with its eyes where it has some, without its weights.

    Raises:
        LoadingError: its config cannot be read.
    """
    config = config_for(given)
    loader = AutoModelForImageTextToText if is_family(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = loader.from_config(config, trust_remote_code=given.trust_remote_code)
    return model.requires_grad_(True)  # as it is once weights are loaded
