"""What needs a package is resolved with the settings: one warning and AdamW, or an error that names the package."""

import warnings

import pytest
from transformers.training_args import OptimizerNames

from covey import GRPOConfig
from covey.config import hardware
from covey.config.packages import LOGGER_PACKAGES
from covey.errors import ConfigError, CoveyWarning

TORCH = {"adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"}
"""Optimizers that need torch and transformers alone."""


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr("covey.config.packages.has_package", lambda name: False)


def settings(**given):
    return GRPOConfig(output_dir="unused", use_cpu=True, **given)


@pytest.mark.parametrize("name", [o.value for o in OptimizerNames])
def test_an_optimizer_without_its_package_falls_back_to_adamw(name, bare):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config = settings(optim=name)
    messages = [str(w.message) for w in said if issubclass(w.category, CoveyWarning)]
    if name in TORCH:
        assert (config.optim, messages) == (name, [])
        return
    assert config.optim == "adamw_torch_fused" and len(messages) == 1
    assert f"optim={name!r}" in messages[0] and "adamw_torch_fused" in messages[0]
    with pytest.raises(ConfigError, match=name):
        settings(optim=OptimizerNames(name), strict_hardware=True)


def test_an_optimizer_whose_package_is_there_is_left_alone(monkeypatch):
    monkeypatch.setattr("covey.config.packages.has_package", lambda name: name == "bitsandbytes")
    assert settings(optim="paged_adamw_8bit").optim == "paged_adamw_8bit"
    with pytest.warns(CoveyWarning, match="within the backward pass"):
        assert settings(optim="galore_adamw_layerwise").optim == "adamw_torch_fused"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(optim="adamw_8bits"), ["optim is 'adamw_8bits'", "Did you mean 'adamw_8bit'"]),
        (dict(optim="nonsense"), ["optim is 'nonsense'", "'adamw_torch'"]),
        (dict(lr_scheduler_type="cosin"), ["lr_scheduler_type is 'cosin'", "'cosine'"]),
        (dict(save_strategy="step"), ["save_strategy is 'step'", "Did you mean 'steps'"]),
        (dict(eval_strategy="Epoch"), ["eval_strategy is 'Epoch'", "Did you mean 'epoch'"]),
        (dict(hub_strategy="ends"), ["hub_strategy", "'end'"]),
        (dict(report_to="wandbb"), ["report_to has 'wandbb'", "Did you mean 'wandb'"]),
        (dict(report_to=["none", "tensorboard"]), ["report_to has 'tensorboard'", "pip install tensorboard"]),
        (dict(report_to="wandb"), ["pip install wandb", "record"]),
        (dict(deepspeed="nowhere.json"), ["deepspeed"]),
        (dict(fsdp="nonsense"), ["fsdp"]),
    ],
)
def test_a_choice_that_cannot_be_had_is_refused_with_the_settings(given, words, bare):
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_the_loggers_are_those_of_transformers(bare):
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(LOGGER_PACKAGES) <= set(INTEGRATION_TO_CALLBACK)
    assert settings(report_to="none").report_to == [] and settings(report_to="all") is not None
    assert not hardware.has_package("no_such_package")
