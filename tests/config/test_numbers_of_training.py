"""Numbers that transformers would pass on as they are: None, a wrong sign, nan and inf are found with the settings."""

import math

import pytest

from covey import GRPOConfig
from covey.config.consistency import TRAINING
from covey.config.validation import kinds_of, options
from covey.errors import ConfigError, CoveyWarning

NUMBERS = {
    n: k for n, k in kinds_of(GRPOConfig).items() if {int, float} & set(options(k)) and str not in options(k)
}


def settings(**given):
    return GRPOConfig(output_dir="unused", use_cpu=True, report_to="none", **given)


@pytest.mark.parametrize("name", [n for n, k in NUMBERS.items() if type(None) not in options(k)])
def test_a_number_that_is_needed_cannot_be_none(name):
    with pytest.raises(ConfigError, match=f"{name} is None; it must be a "):
        settings(**{name: None})


@pytest.mark.parametrize(
    "name", [n for n, k in NUMBERS.items() if float in options(k) and n != "warmup_ratio"]
)
def test_no_number_is_nan(name):
    with pytest.raises(ConfigError, match=f"{name} is nan|num_train_epochs"):
        settings(**{name: math.nan})


@pytest.mark.parametrize(("name", "bounds"), TRAINING.items())
def test_a_number_out_of_its_range_is_refused_by_name(name, bounds):
    low, high = bounds
    wrong = [low - 1] + ([high + 1] if high < math.inf else [])
    for value in wrong:
        with pytest.raises(ConfigError, match=rf"{name} is {value}; it must be (between )?{low:g}"):
            settings(**{name: value})


def test_no_limit_on_the_gradient_has_three_names():
    assert settings(max_grad_norm=None).max_grad_norm == settings(max_grad_norm=0).max_grad_norm == 0
    assert settings(max_grad_norm=math.inf).max_grad_norm == math.inf
    with pytest.raises(ConfigError, match="max_grad_norm is -1"):
        settings(max_grad_norm=-1.0)


@pytest.mark.parametrize(
    "given",
    [
        dict(save_steps=0),
        dict(logging_steps=0),
        dict(adam_beta1=1.0),
        dict(adam_beta2=1),
        dict(eval_delay=-0.5),
    ],
)
def test_a_number_with_which_nothing_happens_is_refused(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        settings(**given)
    assert settings(save_steps=0, save_strategy="no", logging_steps=0, logging_strategy="no").save_steps == 0


@pytest.mark.parametrize(("bound", "cap"), [("absolute", "0.3"), ("relative", "1.3")])
def test_cispo_without_a_bound_says_what_is_capped_at_what(bound, cap):
    with pytest.warns(CoveyWarning, match=f"capped at {cap} "):
        config = settings(loss_type="cispo", cispo_bound=bound, epsilon=0.3)
    assert config.epsilon_high is None
    with pytest.raises(ConfigError, match="no lower bound"):
        settings(loss_type="cispo", cispo_bound="absolute", epsilon=0.3, epsilon_high=5.0)
