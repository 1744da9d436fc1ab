"""Every wrong setting has a message that names it; retired names work; hardware falls back loudly or not at all."""

import math
import re
import warnings
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import HfArgumentParser

from covey import GRPOConfig, ModelConfig, get_peft_config
from covey.config import UnknownSettingError, get_kbit_device_map, get_quantization_config
from covey.config.choices import LOSS_TYPES, OTHER_SETTINGS
from covey.errors import ConfigError, CoveyWarning
from covey.sample.sampling import generation_options
from covey.types import LossType
from covey.update.reduction import Reduction, Totals, row_weights


def settings(**given):
    return GRPOConfig(output_dir="unused", **given)


def test_the_defaults_run_on_any_machine():
    config = settings()
    assert (config.learning_rate, config.num_generations, config.loss_type, config.beta) == (
        1e-6,
        8,
        "dapo",
        0.0,
    )
    if not torch.cuda.is_available():
        assert config.bf16 is False and config.use_cpu


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(num_generation=4), ["'num_generation'", "num_generations"]),
        (dict(learning_rat=4), ["'learning_rat'", "learning_rate"]),
        (dict(num_generations=1), ["num_generations is 1", "at least 2"]),
        (dict(num_generations=2.5), ["num_generations is 2.5", "whole number"]),
        (dict(num_generations_eval=0), ["num_generations_eval"]),
        (dict(max_completion_length=0), ["max_completion_length"]),
        (dict(max_prompt_length=0), ["max_prompt_length"]),
        (dict(overlong_prompts="cut"), ["overlong_prompts", "'truncate'"]),
        (dict(temperature=0.0), ["temperature is 0", "greedy"]),
        (dict(temperature=1e-8), ["temperature"]),
        (dict(top_p=1.5), ["top_p", "between 0 and 1"]),
        (dict(min_p=-0.1), ["min_p"]),
        (dict(top_k=-1), ["top_k", "0 for all"]),
        (dict(repetition_penalty=0.0), ["repetition_penalty"]),
        (dict(loss_type="dapoo"), ["loss_type", "'dapo'"]),
        (dict(loss_type="GRPO"), ["Did you mean 'grpo'?"]),
        (dict(loss_type="gspo"), ["gspo is no loss", 'importance_sampling_level="sequence"']),
        (dict(loss_type="reinforce++"), ['advantage_estimator="reinforce_pp"']),
        (dict(loss_type="rloo"), ['advantage_estimator="rloo"']),
        (dict(scale_rewards="std"), ["scale_rewards", "'group'"]),
        (dict(multi_objective_aggregation="sum"), ["multi_objective_aggregation"]),
        (dict(multi_objective_aggregation="normalize_then_sum", scale_rewards="none"), ["no effect"]),
        (dict(epsilon=-0.1), ["epsilon"]),
        (dict(delta=1.1), ["delta", "1.2"]),
        (dict(beta=-1), ["beta"]),
        (dict(sync_ref_model=True), ["sync_ref_model", "beta"]),
        (dict(num_iterations=0), ["num_iterations"]),
        (dict(max_nonfinite_steps=0), ["max_nonfinite_steps"]),
        (dict(label_smoothing_factor=0.1), ["label_smoothing_factor", "no effect"]),
        (dict(auto_find_batch_size=True), ["auto_find_batch_size"]),
        (dict(generation_kwargs="{not json"), ["generation_kwargs", "JSON"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_do(given, words):
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_misspelt_name_is_a_type_error_too():
    with pytest.raises(TypeError):
        settings(nonsense=1)
    with pytest.raises(UnknownSettingError, match=r"ModelConfig has no setting 'lora_rank'"):
        ModelConfig(lora_rank=3)


def test_names_that_were_retired_elsewhere_work():
    assert settings(max_prompt_length=256).max_prompt_length == 256
    assert settings(max_prompt_length=None).max_prompt_length is None
    assert ModelConfig(torch_dtype="bfloat16").dtype == "bfloat16"
    assert ModelConfig(revision="v2").model_revision == "v2"
    assert settings(scale_rewards=True).scale_rewards == "group"
    assert settings(scale_rewards=False).scale_rewards == "none"


def test_dictionaries_may_come_as_json():
    assert settings(generation_kwargs='{"min_new_tokens": 3}').generation_kwargs == {"min_new_tokens": 3}


def test_gradient_checkpointing_is_on_unless_it_is_switched_off():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert settings().gradient_checkpointing
        assert not settings(gradient_checkpointing=False).gradient_checkpointing
        config = settings(gradient_checkpointing_kwargs={"use_reentrant": True})
    assert config.gradient_checkpointing_kwargs == {"use_reentrant": True}


@pytest.mark.parametrize(
    "given", [dict(top_p=0.9), dict(top_k=5), dict(min_p=0.1), dict(repetition_penalty=1.1)]
)
def test_drawing_from_another_distribution_is_warned_about(given):
    with pytest.warns(CoveyWarning, match="another distribution"):
        settings(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has what is asked for")
def test_hardware_that_is_missing_falls_back_or_raises():
    with pytest.warns(CoveyWarning, match=r"fp16=True.*Float32 is used instead"):
        assert settings(fp16=True).fp16 is False
    with pytest.raises(ConfigError, match="strict_hardware=False"):
        settings(fp16=True, strict_hardware=True)
    with pytest.warns(CoveyWarning, match="use_vllm"):
        settings(use_vllm=True)
    quantised = ModelConfig(load_in_4bit=True)
    with pytest.warns(CoveyWarning, match=r"load_in_4bit.*full precision|Full precision"):
        assert get_quantization_config(quantised) is None
    assert get_kbit_device_map() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine has one of the two")
def test_apples_mps_is_not_trained_on(monkeypatch):
    """It has no float64, in which sampling draws: the first round would raise a TypeError."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.warns(CoveyWarning, match=r"MPS.*float64.*The CPU is used instead") as said:
        config = settings()
    assert len(said) == 1 and config.use_cpu and config.device.type == "cpu" and config.bf16 is False
    with pytest.raises(ConfigError, match="use_cpu=True"):
        settings(strict_hardware=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings(use_cpu=True, strict_hardware=True).device.type == "cpu"


def test_a_quantisation_is_described_where_the_hardware_has_it(monkeypatch):
    monkeypatch.setattr("covey.config.model.has_cuda", lambda: True)
    monkeypatch.setattr("covey.config.model.has_package", lambda name: True)
    config = get_quantization_config(
        ModelConfig(load_in_4bit=True, dtype="bfloat16", bnb_4bit_quant_type="fp4", use_bnb_nested_quant=True)
    )
    assert config.load_in_4bit and config.bnb_4bit_quant_type == "fp4" and config.bnb_4bit_use_double_quant
    assert config.bnb_4bit_compute_dtype == torch.bfloat16
    assert get_quantization_config(ModelConfig(load_in_8bit=True)).load_in_8bit
    with pytest.raises(ConfigError, match="Choose one"):
        ModelConfig(load_in_4bit=True, load_in_8bit=True)


OWN = dict(max_completion_length=8, temperature=1.0, top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(temperature=0.5), ["temperature=0.5", "temperature=1.0", "one place"]),
        (dict(max_new_tokens=9), ["max_new_tokens=9", "max_completion_length=8"]),
        (dict(do_sample=False), ["do_sample", "GRPO decides"]),
        (dict(num_beams=4), ["num_beams=4", "drawn from the policy"]),
        (dict(length_penalty=-0.1), ["length_penalty", "acts on beams"]),
        (dict(min_new_token=3), ["'min_new_token'", "min_new_tokens"]),
    ],
)
def test_conflicts_in_generation_kwargs_are_reported(given, words):
    with pytest.raises(ConfigError) as error:
        generation_options(given, OWN)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "loss_type", [name for name, spec in LOSS_TYPES.items() if "importance_sampling_level" in spec.options]
)
def test_one_ratio_per_completion_is_told_of_where_completions_weigh_by_their_length(loss_type):
    lengths, everything = [2, 6], [True, True]
    totals = Totals.of(lengths, everything, "pp")
    weights = row_weights(Reduction(LOSS_TYPES[loss_type].reduction, 8), lengths, everything, "pp", totals)
    by_length = weights[0] * 2 != pytest.approx(weights[1] * 6)
    for level in ("token", "sequence", "sequence_token"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            settings(
                loss_type=loss_type,
                importance_sampling_level=level,
                epsilon_high=0.3 if loss_type == "cispo" else None,
            )
        is_told = any("weighs by its length" in str(w.message) for w in told)
        assert is_told == (by_length and level != "token"), level


def test_generation_kwargs_are_read():
    options = generation_options(
        dict(min_new_tokens=2, suppress_tokens=[3], stop_strings="x", eos_token_id=7, temperature=1.0), OWN
    )
    assert (options.min_new_tokens, options.suppress_tokens) == (2, (3,))
    assert (options.stop_strings, options.eos_token_id) == (("x",), (7,))


def test_peft_config_without_peft_is_none():
    assert get_peft_config(ModelConfig()) is None


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (dict(beta="0.1"), "a number. Leave out the quotes: 0.1."),
        (dict(epsilon="0.2"), "a number."),
        (dict(temperature="1.0"), "a number."),
        (dict(importance_sampling_cap="2"), "a number or None."),
        (dict(learning_rate="1e-3"), "a number. Leave out the quotes: 1e-3."),
        (dict(learning_rate=True), "a number."),
        (dict(max_grad_norm="1"), "a number or None."),
        (dict(warmup_steps="5"), "a number."),
        (dict(top_k=5.5), "a whole number."),
        (dict(num_iterations=True), "a whole number."),
        (dict(seed="a"), "a whole number."),
        (dict(max_steps=10.0), "a whole number."),
        (dict(reward_weights=["a"]), "a list (a number) or None."),
        (dict(gradient_checkpointing="no"), "true or false or None."),
        (dict(record=1), "true or false."),
        (dict(beta=None), "a number."),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(given, kind):
    [(name, value)] = given.items()
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert str(error.value).startswith(f"{name} is {value!r}; it must be {kind}")


def test_values_of_the_right_kind_in_other_clothes_pass():
    config = settings(
        beta=0,
        learning_rate=np.float32(0.5),
        num_iterations=np.int64(2),
        max_grad_norm=None,
        fp16=np.False_,
        reward_weights=(1, 0.5),
    )
    assert (config.beta, config.learning_rate, config.num_iterations) == (0, 0.5, 2)
    made = {
        f: getattr(config, f) for f in ("warmup_steps", "logging_steps", "save_steps", "eval_steps", "bf16")
    }
    settings(**made)  # what a constructed one says of itself can be given again


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["beta", "epsilon", "entropy_coef", "learning_rate", "importance_sampling_cap", "delta"]
)
def test_a_number_that_is_not_finite_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}; it must be finite"):
        settings(**{name: value})


def test_only_bounds_that_say_so_may_be_infinite():
    assert settings(epsilon_high=math.inf).epsilon_high == math.inf
    assert settings(loss_type="clip_cov", covariance_high=math.inf).covariance_high == math.inf
    for wrong in (
        dict(epsilon_high=math.nan),
        dict(epsilon_high=-math.inf),
        dict(reward_weights=[1.0, math.nan]),
    ):
        with pytest.raises(ConfigError, match="must be finite"):
            settings(**wrong)


def test_a_negative_learning_rate_is_refused():
    with pytest.raises(ConfigError, match=r"learning_rate is -0\.1; .* must not be negative"):
        settings(learning_rate=-0.1)


@pytest.mark.parametrize("epochs", [0, -1.0, math.nan, math.inf])
def test_a_run_of_no_length_is_refused(epochs):
    with pytest.raises(ConfigError, match="max_steps is 0: a run of zero steps"):
        settings(max_steps=0)
    with pytest.raises(ConfigError, match=f"num_train_epochs is {epochs}; without max_steps"):
        settings(num_train_epochs=epochs)
    assert settings(max_steps=3, num_train_epochs=epochs).max_steps == 3


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_what_is_said_elsewhere_is_advice_that_works(name):
    advice = OTHER_SETTINGS[name]
    settings = dict(re.findall(r'(\w+)="(\w+)"', advice))
    assert settings and name not in LOSS_TYPES
    GRPOConfig(output_dir="unused", use_cpu=True, **settings)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ([], dict(loss_type="dapo", scale_rewards="group", display="auto", record_completions="all")),
        (
            ["--loss_type", "grpo", "--kl_estimator", "k2", "--beta", "0.1"],
            dict(loss_type="grpo", kl_estimator="k2"),
        ),
        (["--scale_rewards", "none"], dict(scale_rewards="none")),
        (["--scale_rewards", "True"], dict(scale_rewards="group")),
        (["--scale_rewards", "False"], dict(scale_rewards="none")),
        (["--record_completions", "0.5"], dict(record_completions=0.5)),
        (["--generation_kwargs", '{"min_new_tokens": 3}'], dict(generation_kwargs={"min_new_tokens": 3})),
    ],
)
def test_the_parser_of_transformers_reads_the_settings(words, values):
    [config] = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(["--output_dir", "unused", *words])
    assert {name: getattr(config, name) for name in values} == values


def test_the_parser_of_transformers_names_the_choices(capsys):
    with pytest.raises(SystemExit):
        HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(
            ["--output_dir", "unused", "--loss_type", "GRPO"]
        )
    assert "'grpo', 'dr_grpo'" in capsys.readouterr().err.replace("choose from ", "").replace("(", "")


def test_every_loss_type_has_an_entry():
    assert set(LOSS_TYPES) == set(get_args(LossType))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("display", "display is 'odd'; it must be one of 'auto', 'live', 'plain'."),
        ("kl_estimator", "kl_estimator is 'odd'; it must be one of 'k1', 'k2', 'k3'."),
        ("scale_rewards", "scale_rewards is 'odd'; it must be one of 'group', 'batch', 'none'."),
        ("cispo_bound", "cispo_bound is 'odd'; it must be one of 'absolute', 'relative'."),
    ],
)
def test_a_choice_is_refused_with_what_there_is(name, message):
    with pytest.raises(ConfigError) as error:
        settings(**{name: "odd"})
    assert str(error.value) == message
    with pytest.raises(ConfigError, match=r"bnb_4bit_quant_type is 'int4'; it must be one of 'nf4', 'fp4'\."):
        ModelConfig(bnb_4bit_quant_type="int4")
