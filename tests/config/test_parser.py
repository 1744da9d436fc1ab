"""Every setting goes through the parsers that scripts use: its default and another value come back as they were."""

import dataclasses
import enum
import functools
import json
import os
import typing
import warnings

import pytest
from transformers import HfArgumentParser

import covey
from covey import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
from covey.config.retired import RetiredSettings
from covey.config.validation import choices, is_enum, kinds_of, options
from covey.errors import ConfigError, CoveyWarning

RETIRED = {f.name for f in dataclasses.fields(RetiredSettings)}
NEEDS_MORE = {
    "deepspeed": "a package", "fsdp": "a launcher", "fsdp_config": "a launcher", "tf32": "a GPU", "torch_compile_backend": "a compiler",
    "parallelism_config": "an object of accelerate",
    "turn_discount": "turn credit", "group_allocation": "scale_rewards", "log_completions_hub_repo": "not there yet", "report_to": "a package", "dataloader_prefetch_factor": "workers",
    "load_best_model_at_end": "evaluation", "lr_scheduler_type": "evaluation", "bf16": "a GPU", "fp16": "a GPU",
    "dataloader_multiprocessing_context": "workers", "ddp_backend": "processes", "engine": "vLLM", "engine_urls": "another engine",
    "engine_timeout": "another engine", "engine_python": "another engine", "engine_args": "another engine", "use_vllm": "vLLM",
    "engine_restarts": "another engine", "engine_canary": "another engine", "weight_sync": "another engine",
    "weights_folder": "another engine", "async_in_flight": "async_lag", "max_staleness": "async_in_flight",
    "allow_image_urls": "not there yet", "freeze_projector": "freeze_vision_tower",
}  # fmt: skip
"""Settings of which another value needs what this test does not have."""

OTHER_VALUES = {
    "accelerator_config": {"even_batches": False}, "warmup_steps": 0.5, "epsilon_high": 0.5, "delta": 3.0, "max_steps": 7,
    "scale_rewards": "none", "steps_per_generation": 2, "optim": "sgd", "eval_strategy": "epoch", "log_level": "error",
    "logging_steps": 5, "save_steps": 5, "num_train_epochs": 2.0, "include_num_input_tokens_seen": "all", "hub_strategy": "end",
    "train_sampling_strategy": "random", "pad_to_multiple_of": "8", "adam_beta1": 0.5, "adam_beta2": 0.5, "save_strategy": "epoch",
    "logging_strategy": "epoch", "debug": ["underflow_overflow"], "log_level_replica": "error", "dataloader_num_workers": 0,
    "top_p": 0.5, "top_entropy_quantile": 0.5, "vllm_importance_sampling_cap": 4.0, "record_completions": 0.5,
    "vllm_importance_sampling_clip_max": 4.0,
}  # fmt: skip


def words_of(value):
    if isinstance(value, list | tuple):
        return [str(v) for v in value]
    if isinstance(value, dict):
        return [json.dumps(value)]
    return [str(value.value if isinstance(value, enum.Enum) else value)]


def another(name, kind, default):
    """A value that the field may have and its default is not; None where the rules of the tables give none."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    kinds = set(options(kind))
    words = [w for w in choices(kind) if w != default]
    if words:
        return words[0]
    enums = [k for k in kinds if is_enum(k)]
    if enums:
        return next(m.value for m in enums[0] if m.value != default)
    if bool in kinds:
        return not default
    if dict in {typing.get_origin(k) or k for k in kinds}:
        return {"a": 1}
    if list[str] in kinds:
        return ["one", "two"]
    if list[float] in kinds:
        return [0.5, 1.0]
    if int in kinds:
        return (default or 0) + 3
    if float in kinds:
        return (default or 0.0) + 0.25
    return "word"


@functools.cache
def parser_of(cls):
    return HfArgumentParser(cls)


def parse(cls, *argv):
    base = ["--output_dir", "unused", "--use_cpu"] if cls is GRPOConfig else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoveyWarning)
        return parser_of(cls).parse_args_into_dataclasses([*base, *argv], look_for_args_file=False)[0]


def cases():
    for cls in (GRPOConfig, ModelConfig, ScriptArguments):
        kinds = kinds_of(cls)
        for field in dataclasses.fields(cls):
            if field.init and field.name not in ("output_dir", "use_cpu", *RETIRED):
                yield cls, field, kinds[field.name]


@pytest.mark.parametrize(("cls", "field", "kind"), cases(), ids=lambda v: getattr(v, "name", ""))
def test_a_default_and_another_value_come_back_from_a_command_line(cls, field, kind, monkeypatch):
    if field.default not in (None, "", dataclasses.MISSING):
        made = parse(cls, f"--{field.name}", *words_of(field.default))
        assert getattr(made, field.name) == getattr(parse(cls), field.name)
    if field.name in NEEDS_MORE:
        return
    # one at a time, so without those that it acts on
    monkeypatch.setattr("covey.config.consistency.check_no_effect", lambda config: None)
    value = another(field.name, kind, field.default)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoveyWarning)
        expected = cls(
            **{field.name: value}, **({"output_dir": "unused", "use_cpu": True} if cls is GRPOConfig else {})
        )
    assert getattr(parse(cls, f"--{field.name}", *words_of(value)), field.name) == getattr(
        expected, field.name
    )


@pytest.mark.parametrize("name", [n for n, k in kinds_of(GRPOConfig).items() if bool in options(k)])
def test_a_switch_needs_no_value(name, monkeypatch):
    monkeypatch.setattr("covey.config.resolving.computes_bf16", lambda on_cpu: True)
    monkeypatch.setattr("covey.config.consistency.check_no_effect", lambda config: None)
    evaluates = ["--eval_strategy", "epoch", "--save_strategy", "epoch"]
    servers = ["--async_lag", "1", "--engine", "covey", "--engine_urls", "http://n2:8000"]
    needs = {"load_best_model_at_end": evaluates, "async_in_flight": servers}
    needs = {**needs, "freeze_projector": ["--freeze_vision_tower"]}.get(name, [])
    if name in ("fp16", "tf32", "full_determinism", "push_to_hub", "bf16_full_eval", "torch_compile"):
        return
    parse(GRPOConfig, f"--{name}", *needs)


def test_the_heads_of_public_scripts_parse():
    """As in TRL's scripts: three dataclasses side by side, switches without values, lists, mappings as JSON."""
    argv = [
        *("--output_dir", "unused", "--use_cpu", "--gradient_checkpointing", "--trust_remote_code", "--use_peft"),
        *("--dataset_name", "d", "--model_name_or_path", "m", "--lora_target_modules", "q_proj", "v_proj", "--lora_init", "pissa"),
        *("--lora_kwargs", '{"rank_pattern": {"q": 2}}', "--reward_weights", "0.5", "1", "--learning-rate", "1e-5"),
    ]  # fmt: skip
    for parser in (HfArgumentParser, TrlParser):
        types = (ScriptArguments, GRPOConfig, ModelConfig)
        script, config, model = parser(types).parse_args_into_dataclasses(argv, look_for_args_file=False)
        assert (script.dataset_name, config.trust_remote_code, config.gradient_checkpointing) == (
            "d",
            True,
            True,
        )
        assert (config.reward_weights, config.learning_rate) == ([0.5, 1.0], 1e-5)
        assert (model.lora_target_modules, model.lora_init) == (["q_proj", "v_proj"], "pissa")
        assert model.lora_kwargs == {"rank_pattern": {"q": 2}}
        assert parser(types).format_help()  # argparse reads % in a help text


def test_trust_reaches_both_configs_from_one_flag():
    types = (GRPOConfig, ModelConfig)
    argv = ["--output_dir", "unused", "--trust_remote_code"]
    config, model = TrlParser(types).parse_args_and_config(argv)
    assert config.trust_remote_code and model.trust_remote_code
    assert not any(part.trust_remote_code for part in TrlParser(types).parse_args_and_config(argv[:2]))
    given = ModelConfig(trust_remote_code=True)
    assert given.trust_remote_code and dataclasses.replace(given, lora_r=4).trust_remote_code


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "env: {COVEY_TEST_OF_ENV: 5}\noutput_dir: unused\nlearning_rate: 1e-5\nreward_weights: [0.5, 1]\nuse_cpu: true\n"
        "generation_kwargs: {min_new_tokens: 2}\nlora_target_modules: all-linear\nnum_generations: 4\n"
    )
    return str(path)


def test_a_file_gives_defaults_and_the_command_line_wins(config_file, monkeypatch):
    monkeypatch.setenv("COVEY_TEST_OF_ENV", "before")
    for flag in (["--config", config_file], [f"--config={config_file}"]):
        parser = TrlParser((GRPOConfig, ModelConfig))
        config, model = parser.parse_args_and_config([*flag, "--num_generations", "2"])
        assert (config.num_generations, config.learning_rate, config.reward_weights) == (2, 1e-5, [0.5, 1])
        assert (config.generation_kwargs, config.use_cpu) == ({"min_new_tokens": 2}, True)
        assert model.lora_target_modules == "all-linear" and os.environ["COVEY_TEST_OF_ENV"] == "5"


@dataclasses.dataclass
class Needed:
    number: int
    word: str = "alpha"


def test_what_a_file_has_is_no_longer_required(tmp_path):
    (tmp_path / "f.yaml").write_text("number: 23\nleft: over\n")
    argv = ["--config", str(tmp_path / "f.yaml"), "--right", "1"]
    made, left = TrlParser(Needed).parse_args_and_config(argv, return_remaining_strings=True)
    assert (made, left) == (Needed(23), ["--left", "over", "--right", "1"])
    _, ours, files = TrlParser([Needed]).parse_args_and_config(
        argv, return_remaining_strings=True, separate_remaining_strings=True
    )
    assert (ours, files) == (["--right", "1"], ["--left", "over"])
    [made] = TrlParser([Needed]).parse_args_and_config(argv[:2], fail_with_unknown_args=False)
    assert made.number == 23


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("numbr: 1\n", ["'numbr'", "Did you mean number?"]),
        ("- 1\n", ["holds list"]),
        ("env: 3\nnumber: 1\n", ["env is 3"]),
        ("a: [\n", ["--config"]),
        (None, ["--config", "No such file"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, words):
    path = tmp_path / "f.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as error:
        TrlParser(Needed).parse_args_and_config(["--config", str(path)])
    assert all(word in str(error.value) for word in words), str(error.value)
    with pytest.raises(ConfigError, match="needs the path"):
        TrlParser(Needed).parse_args_and_config(["--config"])


@pytest.mark.parametrize("name", covey._ELSEWHERE)
def test_names_that_scripts_import_from_elsewhere_are_answered(name):
    with pytest.raises(ImportError, match=f"covey has no {name}. Use "):
        exec(f"from covey import {name}")
    assert not hasattr(covey, "nothing_of_the_kind")
