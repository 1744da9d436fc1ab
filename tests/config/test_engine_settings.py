"""The settings of engines: TRL's table, what contradicts what, and where there is no vLLM."""

import os
import sys
import warnings

import pytest

from covey import GRPOConfig
from covey.config.sampling_names import lacks_policy_logprobs, sampler_options
from covey.errors import ConfigError, CoveyWarning

URL = "http://n2:8000"
SERVER = {"use_vllm": True, "vllm_mode": "server"}


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch):
    monkeypatch.setattr("covey.config.hardware.has_package", lambda name: False)


def made(**given):
    """The config, and what was said meanwhile."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config = GRPOConfig(output_dir="unused", use_cpu=True, report_to="none", **given)
    return config, [str(w.message) for w in said if issubclass(w.category, CoveyWarning)]


TAKEN = [
    ({**SERVER}, {"engine": "vllm", "engine_urls": ["http://127.0.0.1:8000"]}),
    ({**SERVER, "vllm_server_host": "n2", "vllm_server_port": 9000}, {"engine_urls": ["http://n2:9000"]}),
    ({**SERVER, "vllm_server_base_url": URL + "/"}, {"engine_urls": [URL]}),
    ({**SERVER, "vllm_server_base_url": f"{URL}, n3:8000"}, {"engine_urls": [URL, "http://n3:8000"]}),
    ({**SERVER, "vllm_server_base_url": [URL, "0.0.0.0:1"]}, {"engine_urls": [URL, "http://127.0.0.1:1"]}),
    ({**SERVER, "engine_urls": URL}, {"engine_urls": [URL]}),
    ({**SERVER, "vllm_server_base_url": URL, "engine_urls": [URL]}, {"engine_urls": [URL]}),
    ({**SERVER, "vllm_server_timeout": 60.0}, {"engine_timeout": 60.0}),
    ({"use_vllm": True, "engine_urls": URL}, {"engine": "vllm", "engine_urls": [URL]}),
    ({"engine": "vllm", "engine_urls": URL}, {"engine_urls": [URL]}),
    ({"engine": "vllm", "use_vllm": True, "engine_urls": URL}, {"engine": "vllm"}),
    ({"engine": "sglang", "engine_urls": "https://n2"}, {"engine_urls": ["https://n2"]}),
    ({"engine": "covey", "engine_urls": URL, "engine_timeout": 9.0}, {"engine_timeout": 9.0}),
    ({"engine": "covey", "engine_args": '{"max_sequences": 4}'}, {"engine_args": {"max_sequences": 4}, "engine_urls": None}),
    ({"engine": "covey", "engine_urls": URL, "weights_folder": "w"}, {"weights_folder": os.path.abspath("w")}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "means"), TAKEN, ids=lambda v: "-".join(map(str, v)))
def test_each_name_means_what_the_table_says_and_nothing_is_said(given, means):
    config, said = made(**given)
    assert {name: getattr(config, name) for name in means} == means and said == []


REFUSED = [
    ({"use_vllm": True, "engine": "sglang", "engine_urls": URL}, "ask for two engines"),
    ({**SERVER, "vllm_server_base_url": URL, "engine_urls": "http://n3:1"}, "are the same setting"),
    ({**SERVER, "vllm_server_port": 9000, "engine_urls": URL}, "are the same setting"),
    ({**SERVER, "vllm_server_timeout": 60.0, "engine_timeout": 61.0}, "are the same setting"),
    ({"use_vllm": True, "vllm_server_base_url": URL}, "vllm_mode='colocate' starts one"),
    ({**SERVER, "vllm_mode": "servr"}, "Did you mean 'server'"),
    ({"engine": "sglang"}, "sglang.launch_server"),
    ({"engine": "vlm"}, "Did you mean 'vllm'"),
    ({"engine": "covey", "engine_urls": ""}, "engine_urls is empty"),
    ({"engine": "covey", "engine_urls": []}, "engine_urls is empty"),
    ({"engine": "vllm", "engine_urls": "ftp://n2"}, "no address of a server"),
    ({"engine": "vllm", "engine_urls": "http://n2:x"}, "no address of a server"),
    ({"engine": "vllm", "engine_urls": "http://me:word@n2:1"}, "no address of a server.*COVEY_ENGINE_TOKEN"),
    ({"engine": "covey", "engine_timeout": 1e10}, "at most 31,536,000, a year"),
    ({"engine": "vllm", "engine_urls": f"{URL},{URL}/"}, "twice"),
    ({"engine": "covey", "engine_timeout": 0.0}, "above 0"),
    ({"engine": "covey", "engine_restarts": -1}, "at least 0"),
    ({"engine": "covey", "engine_urls": URL, "engine_python": sys.executable}, "engine_python.*servers that run already"),
    ({"engine": "covey", "engine_urls": URL, "engine_args": {"a": 1}}, "engine_args.*no effect"),
    ({"engine_urls": URL}, "names servers, and engine='native'.*engine='covey'"),
    ({"engine_canary": False}, "engine_canary=False has no effect with engine='native'"),
    ({"weight_sync": "files"}, "weight_sync='files' has no effect"),
    ({"engine": "covey", "weight_sync": "nccl"}, "nccl.*needs vLLM in the trainer's own environment.*files that the server reads"),
    ({"engine": "covey", "weight_sync": "ipc"}, "ipc.*pickles"),
    ({"engine": "vllm", "engine_python": "/nowhere/python"}, "no Python that runs"),
    ({"engine": "vllm", "engine_python": "/bin/true"}, "no Python that runs"),
    ({**SERVER, "vllm_gpu_memory_utilization": 1.5}, "share of the device's memory"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "text"), REFUSED, ids=lambda v: "-".join(map(str, v)) if isinstance(v, dict) else ""
)
def test_what_contradicts_or_cannot_be_had_is_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        made(**given)


@pytest.mark.parametrize(
    "given",
    [{"use_vllm": True}, {"engine": "vllm"}, {"use_vllm": True, "vllm_mode": "colocate", "engine_timeout": 9.0},
     {"engine": "vllm", "engine_python": sys.executable}],
    ids=str,
)  # fmt: skip
def test_without_any_vllm_the_native_engine_samples_or_strict_hardware_raises(given):
    config, [said] = made(**given)
    assert config.engine == "native" and "native engine is used instead" in said.lower()
    assert all(
        name in said for name in given if name not in ("vllm_mode", "engine") or "use_vllm" not in given
    )
    with pytest.raises(ConfigError, match="strict_hardware=False"):
        made(strict_hardware=True, **given)


def test_vllm_in_this_environment_or_another_is_found_without_importing_it(monkeypatch, tmp_path):
    monkeypatch.setattr("covey.config.hardware.has_package", lambda name: name == "vllm")
    config, said = made(use_vllm=True, vllm_gpu_memory_utilization=0.5, vllm_enable_sleep_mode=True)
    assert config.engine == "vllm" and config.engine_urls is None and said == []
    monkeypatch.setattr("covey.config.hardware.has_package", lambda name: False)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert made(engine="vllm", engine_python=sys.executable)[0].engine == "vllm"


def test_processes_that_share_a_server_are_neighbours(monkeypatch):
    monkeypatch.setattr("covey.config.hardware.has_package", lambda name: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert made(use_vllm=True, vllm_tensor_parallel_size=2)[0].vllm_tensor_parallel_size == 2
    with pytest.raises(ConfigError, match="does not go with vllm_tensor_parallel_size=2"):
        made(use_vllm=True, vllm_tensor_parallel_size=2, vllm_enable_sleep_mode=True)
    for size in (3, 8):
        with pytest.raises(ConfigError, match="over several machines none can"):
            made(use_vllm=True, vllm_tensor_parallel_size=size)
    _, [said] = made(**SERVER, vllm_tensor_parallel_size=8)  # the server's own
    assert said.startswith("vllm_tensor_parallel_size: no effect")


@pytest.mark.parametrize(
    ("name", "value"),
    [("vllm_model_impl", "transformers"), ("vllm_enable_sleep_mode", True), ("vllm_gpu_memory_utilization", 0.5),
     ("vllm_max_model_length", 99), ("vllm_group_port", 1), ("cache_implementation", "static")],
)  # fmt: skip
def test_what_does_nothing_beside_a_given_server_is_said(name, value):
    _, [said] = made(**SERVER, **{name: value})
    assert name in said


def test_a_config_made_of_one_is_the_same():
    first, _ = made(**SERVER, vllm_server_base_url=[URL], vllm_server_timeout=9.0)
    names = (
        "engine",
        "engine_urls",
        "engine_timeout",
        "use_vllm",
        "vllm_mode",
        "vllm_server_base_url",
        "vllm_server_timeout",
    )
    again, said = made(**{name: getattr(first, name) for name in names})
    assert all(getattr(again, name) == getattr(first, name) for name in names) and said == []


# --- generation_kwargs ------------------------------------------------------------------------------------------------


def test_names_of_vllm_mean_ours_and_what_only_it_knows_goes_through():
    kwargs = {
        "stop": ["x"],
        "stop_token_ids": [5],
        "min_tokens": 2,
        "max_tokens": 64,
        "presence_penalty": 0.5,
        "suppress_tokens": [7],
    }
    config, said = made(**SERVER, generation_kwargs={**kwargs, "include_stop_str_in_output": True})
    ours, theirs = sampler_options(config)
    assert ours == {
        "stop_strings": ["x"],
        "eos_token_id": [5],
        "min_new_tokens": 2,
        "max_new_tokens": 64,
        "suppress_tokens": [7],
    }
    assert theirs == {"presence_penalty": 0.5} and config.max_completion_length == 64
    assert len(said) == 1 and "importance_sampling_correction is off" in said[0]


def test_a_seed_is_left_out_with_one_warning():
    config, [said] = made(**SERVER, generation_kwargs={"seed": 3})
    assert "seed has no effect" in said and sampler_options(config) == ({}, {})


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [({"n": 4}, "num_generations says it"), ({"logprobs": 5}, "asks for what it needs"), ({"best_of": 2}, "as they are drawn"),
     ({"no_repeat_ngram_size": 3}, "no way to do"), ({"bad_words_ids": [[5]]}, "no way to do"),
     ({"begin_suppress_tokens": [5]}, "no way to do"), ({"stop": ["a"], "stop_strings": ["b"]}, "are the same"),
     ({"skip_special_tokens": False}, "keep_special_tokens"), ({"model": "x"}, "server's own model"), ({"bad_words": ["x"]}, None)],
    ids=str,
)  # fmt: skip
def test_what_the_run_says_itself_or_servers_cannot_do_is_refused_by_name(kwargs, text):
    if text is None:
        assert sampler_options(made(**SERVER, generation_kwargs=kwargs)[0])[1] == kwargs
        return
    with pytest.raises(ConfigError, match=text):
        made(**SERVER, generation_kwargs=kwargs)


def test_other_engines_know_no_names_of_vllm():
    for given in ({}, {"engine": "sglang", "engine_urls": URL}):
        with pytest.raises(ConfigError, match="a name of another engine"):
            made(**given, generation_kwargs={"stop_token_ids": [5]})
    with pytest.raises(ConfigError, match="no way to do"):
        made(engine="sglang", engine_urls=URL, generation_kwargs={"bad_words_ids": [[5]]})
    assert made(engine="covey", engine_urls=URL, generation_kwargs={"bad_words_ids": [[5]]})[0]
    with pytest.raises(ConfigError, match="Give it in generation_kwargs"):
        made(**SERVER, eval_generation_kwargs={"presence_penalty": 0.5})


@pytest.mark.parametrize(
    "given",
    [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"generation_kwargs": {"min_tokens": 4}},
     {"generation_kwargs": {"allowed_token_ids": [1, 2]}}, {"vllm_structured_outputs_regex": "a+"}],
    ids=str,
)  # fmt: skip
def test_the_correction_is_off_with_one_warning_where_the_policys_own_logprobs_are_not_known(given):
    """[trl#6789] Its weights would be, on average, the probability of what was kept."""
    config, said = made(**SERVER, **given)
    assert (
        lacks_policy_logprobs(config)
        and sum("importance_sampling_correction is off" in text for text in said) == 1
    )
    _, said = made(**SERVER, **given, importance_sampling_correction=False)
    assert not any("importance_sampling_correction is off" in text for text in said)
    others = {
        n: v for n, v in given.items() if n not in ("vllm_structured_outputs_regex", "generation_kwargs")
    }
    assert not lacks_policy_logprobs(made(engine="covey", engine_urls=URL, **others)[0])


def test_without_it_the_correction_stays():
    config, said = made(
        **SERVER, temperature=0.7, generation_kwargs={"stop": ["x"]}, importance_sampling_mode="token_mask"
    )
    assert not lacks_policy_logprobs(config) and said == []
