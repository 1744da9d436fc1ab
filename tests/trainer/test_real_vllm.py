"""Runs through the real vLLM, where an environment has it.

    COVEY_VLLM_PYTHON=/envs/vllm/bin/python pytest -m slow tests/trainer/test_real_vllm.py

COVEY_VLLM_MODEL names a model to train; by default a tiny random one, whose heads have a size that vLLM computes on a CPU.
A server starts in half a minute, the canary sends all weights some dozens of times: ten minutes in all on two cores.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import threading
import time

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback

from covey.sample.remote.child_command import ChildOrder
from covey.sample.remote.launch import ChildServer
from covey.sample.remote.vllm import VllmServer
from tests.tiny import tiny_policy
from tests.trainer.harness import logged, make

PYTHON = os.environ.get("COVEY_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="COVEY_VLLM_PYTHON names no environment with vLLM"),
]

STEPS, KILLED = 20, 10
LORA = LoraConfig(
    r=8,
    lora_alpha=32,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)
PROMPTS = [
    "The sea is",
    "A house has",
    "My cat likes",
    "Some music is",
    "A tree can",
    "One day I",
    "The sky is",
    "We all want",
]
ARGUMENTS = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 28, "max_model_len": 256}


def vowels(completions, **_):
    """Ten times the share of vowels: what a random tokenizer and a trained model can both be moved to within twenty steps."""
    return [10 * sum(c in "aeiou" for c in text.lower()) / max(len(text), 1) for text in completions]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    if name := os.environ.get("COVEY_VLLM_MODEL"):
        return name
    return tiny_policy(
        tmp_path_factory.mktemp("policy"), scale=2.0, hidden_size=64, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip


def rate(lora):
    """Learning rates of AdamW by which both kinds of models move within twenty steps."""
    is_real = bool(os.environ.get("COVEY_VLLM_MODEL"))
    return (5e-4 if lora else 2e-5) if is_real else (2e-2 if lora else 5e-3)


class AtStep(TrainerCallback):
    """Does something behind one step."""

    def __init__(self, step, work):
        self.step, self.work = step, work

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.work()


def run(policy, folder, lora, work=lambda: None, **given):
    dataset = Dataset.from_dict({"prompt": PROMPTS * 20})
    trainer = make(
        policy, folder, vowels, dataset, peft_config=LORA if lora else None, callbacks=[AtStep(KILLED, lambda: work(trainer))],
        max_steps=STEPS, learning_rate=rate(lora), optim="adamw_torch", max_grad_norm=1.0, per_device_train_batch_size=16,
        max_completion_length=24, max_prompt_length=32, engine_timeout=600.0, **given,
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def native(policy, tmp_path_factory):
    """Rewards of the native engine's runs, by whether they train an adapter."""
    done = {}

    def curve(lora):
        if lora not in done:
            trainer = run_native(policy, tmp_path_factory.mktemp("native"), lora)
            done[lora] = logged(trainer, "reward")
        return done[lora]

    return curve


def run_native(policy, folder, lora):
    dataset = Dataset.from_dict({"prompt": PROMPTS * 20})
    trainer = make(
        policy, folder, vowels, dataset, peft_config=LORA if lora else None, max_steps=STEPS, learning_rate=rate(lora),
        optim="adamw_torch", max_grad_norm=1.0, per_device_train_batch_size=16, max_completion_length=24, max_prompt_length=32,
    )  # fmt: skip
    trainer.train()
    return trainer


def check(trainer, expected):
    """Twenty steps whose log-probabilities agree, and whose rewards are those of the native engine within three errors."""
    rewards, gaps = logged(trainer, "reward"), logged(trainer, "sampling/logp_gap/mean")
    assert len(rewards) == STEPS and max(gaps) < 0.01
    for half in (slice(0, STEPS // 2), slice(STEPS // 2, STEPS)):
        ours, native = rewards[half], expected[half]
        error = math.sqrt((statistics.variance(ours) + statistics.variance(native)) / len(ours))
        assert abs(statistics.fmean(ours) - statistics.fmean(native)) < 3 * error
    assert statistics.fmean(rewards[-5:]) > statistics.fmean(rewards[:5])
    print(
        f"gap {statistics.fmean(gaps):.1e}, rewards {[round(r, 2) for r in rewards]}, native {[round(r, 2) for r in expected]}"
    )


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_given_server_that_is_killed_and_started_again_trains_as_the_native_engine(
    policy, native, tmp_path, lora
):
    order = ChildOrder("vllm", policy, PYTHON, adapter_rank=8 if lora else None, arguments=ARGUMENTS)
    server = ChildServer(order, VllmServer, tmp_path / "server.log", 600.0)

    def kill(trainer):
        os.killpg(server._group, signal.SIGKILL)
        time.sleep(1.0)
        threading.Thread(target=server.start, daemon=True).start()  # as whoever keeps it would

    try:
        server.start()
        trainer = run(
            policy, tmp_path, lora, kill, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url
        )
        assert server.starts == 2
        check(trainer, native(lora))
    finally:
        server.stop()


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.filterwarnings("ignore:The child server:covey.errors.CoveyWarning")
def test_a_child_that_sleeps_and_is_killed_trains_as_the_native_engine(policy, native, tmp_path, lora):
    def kill(trainer):
        os.killpg(trainer.engine.launcher.children[0]._group, signal.SIGKILL)

    arguments = {k: v for k, v in ARGUMENTS.items() if k != "max_model_len"}
    trainer = run(
        policy, tmp_path, lora, kill, use_vllm=True, engine_python=PYTHON, engine_args=arguments, vllm_max_model_length=256,
        vllm_enable_sleep_mode=True,
    )  # fmt: skip
    check(trainer, native(lora))
    assert not trainer.engine.launcher.children[0].is_running
