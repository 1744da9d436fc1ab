"""Every name that a script of TRL or of an older transformers gives is taken, falls back with a word, or is refused with a reason."""

import dataclasses
import warnings

import pytest

from covey import GRPOConfig, ModelConfig
from covey.config import ALIASES
from covey.config.elsewhere import NO_EFFECT, REFUSED
from covey.config.engine_settings import CHOOSERS, EngineSettings
from covey.config.retired import INSIDE, RENAMED, RetiredSettings
from covey.config.sampling_names import OTHER_NAMES
from covey.config.validation import kinds_of, options
from covey.errors import ConfigError, CoveyWarning
from covey.sample.sampling import GenerationOptions

OTHERS = {
    "GRPOConfig": """learning_rate logging_steps gradient_checkpointing bf16 lr_scheduler_kwargs use_liger_kernel model_init_kwargs
        torch_empty_cache_steps trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 remove_unused_columns
        num_generations num_generations_eval max_completion_length ds3_gather_for_generation shuffle_dataset pad_to_multiple_of
        generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs
        repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url
        vllm_structured_outputs_regex vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
        vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size beta num_iterations epsilon delta epsilon_high
        sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg reward_weights
        importance_sampling_level multi_objective_aggregation scale_rewards loss_type mask_truncated_completions sync_ref_model
        ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min
        entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations vllm_importance_sampling_correction
        vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min log_completions
        off_policy_mask_threshold use_bias_correction_kl log_multimodal num_completions_to_print log_unique_prompts
        log_completions_hub_repo use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged vllm_importance_sampling_cap max_prompt_length""",
    "ModelConfig": """model_name_or_path model_revision dtype attn_implementation use_peft lora_r lora_alpha lora_dropout
        lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora load_in_8bit load_in_4bit
        bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage torch_dtype trust_remote_code""",
}
"""What the configs of TRL 1.16 are asked for, and what scripts of earlier releases still give."""


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch):
    monkeypatch.setattr("covey.config.packages.has_package", lambda name: False)
    monkeypatch.setattr("covey.config.hardware.has_package", lambda name: False)


def made(**given):
    """The config, and what was said meanwhile."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config = GRPOConfig(output_dir="unused", use_cpu=True, **given)
    return config, [str(w.message) for w in said if issubclass(w.category, CoveyWarning)]


@pytest.mark.parametrize(("cls", "name"), [(c, n) for c in OTHERS for n in OTHERS[c].split()])
def test_every_name_of_the_field_is_a_setting(cls, name):
    """With the default of the class, so that nothing but the name is tried."""
    of = {"GRPOConfig": GRPOConfig, "ModelConfig": ModelConfig}[cls]
    default = {f.name: f.default for f in dataclasses.fields(of)}.get(name, False)
    of(**{name: default})


ASKS_FOR_A_SERVER = ("vllm_mode", "vllm_server_base_url")
OF_OTHERS = [
    f
    for f in dataclasses.fields(EngineSettings)
    if f.name.startswith(("use_", "vllm_", "transformers_", "cache_")) and f.name not in ASKS_FOR_A_SERVER
]


@pytest.mark.parametrize("field", OF_OTHERS, ids=lambda f: f.name)
def test_all_settings_of_an_engine_fall_back_with_it_under_one_warning(field):
    chooser = next((c for c in CHOOSERS if field.name.startswith(c.removeprefix("use_"))), field.name)
    value = {bool: True, int: 3, float: 0.5, str: "word"}.get(
        options(kinds_of(EngineSettings)[field.name])[0], {"a": 1}
    )
    given = {chooser: "static" if chooser == "cache_implementation" else True, field.name: value}
    config, [said] = made(**given)
    assert field.name in said and "native engine is used instead" in said.lower()
    assert getattr(config, field.name) == value
    with pytest.raises(ConfigError, match=chooser):
        made(strict_hardware=True, **given)
    if field.name not in CHOOSERS:
        _, [said] = made(**{field.name: value})
        assert said.startswith(f"{field.name}: no effect")


@pytest.mark.parametrize("name", NO_EFFECT)
def test_what_is_not_needed_here_is_taken_with_the_reason(name):
    default = getattr(made()[0], name)
    value = {"pad_to_multiple_of": 8, "liger_kernel_config": {"rope": True}, "include_num_input_tokens_seen": "all",
             "eval_accumulation_steps": 2, "length_column_name": "size"}.get(name)  # fmt: skip
    value = value or (["inputs"] if isinstance(default, list) or name == "label_names" else not default)
    config, [said] = made(**{name: value})
    assert said.startswith(f"{name}={value!r} has no effect: ") and getattr(config, name) == default
    assert made(**{name: getattr(config, name)})[1] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_yet_is_refused_with_what_to_do(name):
    with pytest.raises(ConfigError, match=f"{name}=.* is not available"):
        made(**{name: 3 if "iterations" in name else "me/repo"})


RETIRED_VALUES = {
    "warmup_ratio": 0.1, "evaluation_strategy": "steps", "torchdynamo": "eager", "past_index": 1,
    "wandb_log_unique_prompts": True, "fsdp_transformer_layer_cls_to_wrap": "Layer", "mp_parameters": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "field", [f for f in dataclasses.fields(RetiredSettings) if f.name != "xpu_backend"], ids=lambda f: f.name
)  # a backend of ddp needs processes
def test_a_retired_name_is_taken_with_one_line_and_acts_as_it_did(field):
    name = field.name
    kind = options(kinds_of(RetiredSettings)[name])[0]
    value = RETIRED_VALUES.get(name, {int: 2, bool: True, str: "word"}.get(kind))
    given = {"use_vllm": True} if name.startswith("vllm") else {}
    given |= {"eval_strategy": "steps"} if name == "evaluation_strategy" else {}
    config, said = made(**{name: value}, **given)
    [line] = [text for text in said if text.startswith(f"{name}=")]
    assert "Retired" in line and getattr(config, name) is None
    if name in RENAMED:
        assert getattr(config, RENAMED[name]) == (
            False if name == "use_liger_loss" else value
        )  # Liger's has no effect
    elif name in INSIDE:
        outer, inner = INSIDE[name]
        held = getattr(config, outer)
        assert (held[inner] if isinstance(held, dict) else getattr(held, inner)) in (value, [value])
    elif name == "adafactor":
        assert config.optim == "adafactor"
    else:
        assert "no effect" in line or name == "push_to_hub_organization"


def test_retired_names_mean_what_they_meant():
    config, _ = made(warmup_ratio=0.1)
    assert config.warmup_steps == 0.1 and config.get_warmup_steps(100) == 10
    config, _ = made(push_to_hub_organization="us", push_to_hub_model_id="ours")
    assert config.hub_model_id == "us/ours"
    assert made(no_cuda=True, evaluation_strategy="epoch")[0].eval_strategy == "epoch"
    with pytest.raises(
        ConfigError, match=r"warmup_ratio=0\.1 is the retired name of warmup_steps, which is 5"
    ):
        made(warmup_ratio=0.1, warmup_steps=5)
    with pytest.raises(ConfigError, match="Say it in accelerator_config alone"):
        made(split_batches=True, accelerator_config={"split_batches": False})
    with pytest.raises(TypeError, match="Did you mean eval_strategy"):
        made(evaluation_strateg="no")


@pytest.mark.parametrize("setting", ["generation_kwargs", "eval_generation_kwargs"])
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_other_engines_are_refused_with_the_one_that_is_meant(setting, name):
    with pytest.raises(ConfigError) as error:
        made(**{setting: {name: 3}})
    meant = OTHER_NAMES[name].split(".")[-1]
    options = {f.name for f in dataclasses.fields(GenerationOptions)}
    assert meant in (
        options if "." not in OTHER_NAMES[name] else {f.name for f in dataclasses.fields(GRPOConfig)}
    )
    assert f"{setting} has {name!r}" in str(error.value) and str(error.value).endswith(f"{meant}.")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("top_k", "top_k", 50), ("top_p", "top_p", 0.9), ("temperature", "temperature", 0.7), ("min_p", "min_p", 0.1),
     ("max_new_tokens", "max_completion_length", 64), ("repetition_penalty", "repetition_penalty", 1.1)],
)  # fmt: skip
def test_an_option_counts_where_its_field_stands_at_its_default(name, field, value):
    assert getattr(made(generation_kwargs={name: value})[0], field) == value
    config, _ = made(generation_kwargs={name: value}, **{field: value * 2 if field != "top_p" else 0.5})
    assert getattr(config, field) != value  # a conflict, which the trainer refuses
    with pytest.raises(ConfigError, match=name):
        made(generation_kwargs={name: "many"})


@pytest.mark.parametrize(
    "name", ["tokenize", "add_generation_prompt", "return_tensors", "return_dict", "padding", "max_length"]
)
def test_template_arguments_that_the_run_says_itself_are_refused(name):
    with pytest.raises(ConfigError, match=f"chat_template_kwargs has '{name}'"):
        made(chat_template_kwargs={name: False, "enable_thinking": False})
    assert made(chat_template_kwargs={"enable_thinking": False})[1] == []
    with pytest.raises(ConfigError, match="must be a mapping"):
        made(chat_template_kwargs='["a"]')


def test_aliases_are_settings():
    assert set(ALIASES) <= {f.name for f in dataclasses.fields(GRPOConfig)}
