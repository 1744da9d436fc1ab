"""Scripts that were written for TRL's vllm_* settings train on a server of vLLM; here on the fake one, which draws for real."""

import json
import warnings
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig

from covey import GRPOConfig
from covey.errors import EngineError
from covey.trainer.remote_engine import child_order
from tests.sample.remote.fake_sglang import FakeSglang
from tests.sample.remote.fake_vllm import FakeVllm
from tests.tiny import tiny_model, tiny_policy
from tests.trainer.harness import MANY_ENDS, logged, make, rows, same, train, weights

pytestmark = pytest.mark.any_version

LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])


def by_ids(completion_ids):
    """Differs within a group, so that there is something to learn."""
    return [float(sum(ids) % 7) for ids in completion_ids]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(
        tmp_path_factory.mktemp("policy"), scale=3.0, tie_word_embeddings=True, generation=MANY_ENDS
    )


def script(policy, folder, *fakes, **given):
    """Arguments of a script for TRL."""
    urls = ",".join(fake.url for fake in fakes)
    settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": urls, "vllm_server_timeout": 300.0,
                "max_steps": 3, "learning_rate": 0.05}  # fmt: skip
    return {"policy": policy, "folder": folder, "rewards": by_ids, "dataset": rows(8), **settings, **given}


@pytest.mark.parametrize("peft_config", [None, LORA], ids=["full", "lora"])
def test_a_script_for_trl_trains_on_a_server_and_a_repeat_is_the_same(policy, tmp_path, capsys, peft_config):
    """Also beside a second server, which is restarted once and drops connections: they decide where, not what."""
    runs = []
    for number, faults in enumerate([[{}], [{}, {"restarts": 2, "drops": 7}]]):
        fakes = [FakeVllm(policy, fault) for fault in faults]
        trainer = train(**script(policy, tmp_path / str(number), *fakes, peft_config=peft_config))
        runs.append((logged(trainer, "reward"), weights(trainer)))
        # All that differs is the share of the padding token, which is not drawn.
        assert max(logged(trainer, "sampling/logp_gap/max")) < 0.02
        assert trainer.use_vllm and trainer.engine.posts[0].server.kind == "vllm"
        routes = [route for route, _ in fakes[0].asked]
        assert routes.count("/v1/load_lora_adapter" if peft_config else "/collective_rpc") >= 3
        for fake in fakes:
            assert not fake.is_paused and fake.happened == set(fake.faults)
            fake.close()
    proven = "adapters" if peft_config else "weights"
    assert capsys.readouterr().out.count(f"Proving that {proven} reach the servers: group 1 of") == 2
    (first, first_weights), (second, second_weights) = runs
    assert first == second and len(first) == 3 and len(set(first)) > 1 and same(first_weights, second_weights)


def test_the_same_script_on_sglang_learns_the_same(policy, tmp_path):
    """The two fakes have one sampler, so all that could differ is what is asked for."""
    with FakeVllm(policy) as fake:
        expected = train(**script(policy, tmp_path / "vllm", fake))
    with FakeSglang(policy) as fake:
        given = script(policy, tmp_path / "sglang", engine="sglang", engine_urls=fake.url)
        given = {n: v for n, v in given.items() if "vllm" not in n}
        trainer = train(**given)
    assert logged(trainer, "reward") == logged(expected, "reward") and same(
        weights(trainer), weights(expected)
    )


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped(policy, tmp_path):
    with FakeVllm(policy) as fake:
        whole = train(
            **script(policy, tmp_path / "whole", fake, max_steps=4, save_strategy="steps", save_steps=2)
        )
    with FakeVllm(policy) as fake:
        train(**script(policy, tmp_path / "run", fake, max_steps=2, save_strategy="steps", save_steps=2))
        fake.start()  # another process since
        trainer = make(
            **script(policy, tmp_path / "run", fake, max_steps=4, save_strategy="steps", save_steps=2)
        )
        trainer.train(resume_from_checkpoint=True)
    assert same(weights(trainer), weights(whole))


def test_evaluation_samples_with_the_weights_of_its_step_and_after_the_run_with_the_last_ones(
    policy, tmp_path
):
    """The run's end closes the engine; what comes after it opens it again, and what was put into the model is what is served."""
    with FakeVllm(policy) as fake:
        given = script(
            policy, tmp_path, fake, max_steps=2, eval_dataset=rows(4), eval_strategy="steps", eval_steps=1
        )
        trainer = train(**given)
        last = logged(trainer, "eval_reward")[-1]
        assert trainer.evaluate()["eval_reward"] == last
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.5)
        served = trainer.evaluate()["eval_reward"]
        trainer.save_model(str(tmp_path / "changed"))
    with FakeVllm(
        tmp_path / "changed" if (tmp_path / "changed" / "tokenizer.json").exists() else policy
    ) as fake:
        given = script(
            str(tmp_path / "changed"),
            tmp_path / "other",
            fake,
            eval_dataset=rows(4),
            processing_class=trainer.processing_class,
        )
        assert make(**given).evaluate()["eval_reward"] == served


BEFORE_THE_FIRST_STEP = {
    "log-probabilities before the temperature [trl#4159]": ({"raw_logprobs": True}, {"temperature": 0.6}, "--logprobs-mode processed_logprobs"),
    "and it says so": ({"raw_logprobs": "told"}, {"temperature": 0.6}, "--logprobs-mode processed_logprobs"),
    "one layer is never loaded [vllm#48312]": ({"stale_layer": "layers.1.mlp.up_proj"}, {}, "does not serve all weights.*layers.1, the feed-forward part"),
    "the final norm is never loaded": ({"stale_layer": "model.norm"}, {}, "does not serve all weights.*model.norm"),
    "seeds and prompts in pieces on a CPU": ({"chunks": True}, {}, "--no-enable-chunked-prefill"),
    "its context is too short [trl#3180]": ({}, {"max_prompt_length": 600, "max_completion_length": 8}, "--max-model-len 608"),
    "no development mode": ({"no_dev_mode": True}, {}, "VLLM_SERVER_DEV_MODE=1 vllm serve"),
    "a server of TRL before 1.11": ({"old": True}, {}, "server of TRL before 1.11"),
    "a field that vLLM would pass over": ({}, {"generation_kwargs": {"presense_penalty": 0.5}}, "Did you mean 'presence_penalty'"),
    "it never answers [trl#6797]": ({"silent": 1}, {"vllm_server_timeout": 0.3}, "answer"),
    "another vocabulary": ({"wrong_ids": True}, {}, "another model is served"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_STEP)
def test_a_wrong_server_ends_the_run_before_the_first_step_with_what_to_do(policy, tmp_path, name):
    faults, settings, text = BEFORE_THE_FIRST_STEP[name]
    with FakeVllm(policy, faults) as fake, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make(**script(policy, tmp_path, fake, **settings))
        with pytest.raises(EngineError, match=text):
            trainer.train()
    assert trainer.state.global_step == 0 and not logged(trainer, "loss")
    events = (
        (tmp_path / "record" / "events.jsonl").read_text()
        if (tmp_path / "record" / "events.jsonl").exists()
        else ""
    )
    assert "failed" in events or json.dumps("failed") in "".join(
        p.read_text(errors="replace") for p in (tmp_path / "record").rglob("*.json*")
    )


@pytest.mark.parametrize("head", [True, False], ids=["a tied head that stays", "a head of its own"])
def test_a_tied_head_that_vllm_keeps_on_a_cpu_trains_as_it_should(policy, tmp_path, head):
    """[vllm#51665] The folder holds the head, tied or not."""
    with FakeVllm(policy, {"stale_head": True} if head else {}) as fake:
        assert len(logged(train(**script(policy, tmp_path, fake)), "reward")) == 3


def test_the_correction_is_off_under_truncated_sampling_and_on_without(policy, tmp_path):
    """[trl#6789] Beside the warning the weights are none."""
    with FakeVllm(policy) as fake, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = make(**script(policy, tmp_path / "a", fake))
        cut = make(**script(policy, tmp_path / "b", fake, top_k=5))
    assert plain.updater.objective.correction is not None and cut.updater.objective.correction is None


def test_late_settings_of_the_engine_are_refused(policy, tmp_path):
    with FakeVllm(policy) as fake:
        trainer = make(**script(policy, tmp_path, fake))
        trainer.args.engine_timeout = 9.0
        with pytest.raises(ValueError, match=r"engine_timeout=9\.0: it was assigned after"):
            trainer.train()


@pytest.mark.parametrize("said, visible, device", [(None, None, "1"), ("2", "4,7", "7")])
def test_a_process_starts_its_server_on_its_own_device_also_where_the_launcher_says_nothing(
    said, visible, device, monkeypatch
):
    for name, value in (("LOCAL_WORLD_SIZE", said), ("CUDA_VISIBLE_DEVICES", visible)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    args = Mock(GRPOConfig, engine="vllm", weight_sync="files", world_size=2, local_process_index=1, engine_args=None,
                vllm_tensor_parallel_size=1, max_prompt_length=8, max_completion_length=8, device=torch.device("cuda"))  # fmt: skip
    policy = tiny_model(name_or_path="org/policy")
    assert child_order(args, policy, nullcontext).devices == (device,)
