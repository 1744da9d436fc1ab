"""A run that samples on `covey serve` is the run of the native engine: the same weights to the bit, whatever servers there are and do."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress

import pandas as pd
import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey import GRPOTrainer
from covey.errors import ServerLost
from covey.runs.record.reader import Run
from covey.sample.remote import served_queue
from covey.sample.remote.launch import free_port
from covey.tools import Tags
from tests.sample.remote.serving import serving
from tests.tiny import VOCABULARY, tiny_policy, tiny_tokenizer
from tests.trainer.distributed.processes import ROOT, completions, run
from tests.trainer.harness import MANY_ENDS, by_length, chats, config, make, rows, same, weights

pytestmark = pytest.mark.any_version

TOKENIZER = tiny_tokenizer()
LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
SERVED = {"engine": "covey", "engine_timeout": 600.0, "engine_canary": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=2.0, generation=MANY_ENDS)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """What servers are started with: the run has to send its own weights."""
    return tiny_policy(tmp_path_factory.mktemp("other"), scale=2.0, seed=7, generation=MANY_ENDS)


def servers(stack, folder, number=1):
    """Start so many; returns their addresses."""
    tokenizer, urls = AutoTokenizer.from_pretrained(folder), []
    for _ in range(number):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        urls.append(stack.enter_context(serving(model, tokenizer))[0].url)
    return urls


def record(trainer) -> pd.DataFrame:
    return Run(trainer.args.output_dir).completions()


def assert_same_run(one, other):
    """Two trainers that did the same: bits of log-probabilities hang on what is decoded together, and are all that may differ."""
    assert same(weights(one), weights(other))
    first, second = record(one), record(other)
    assert len(first) and list(first.columns) == list(second.columns)
    rounded = [name for name in first.columns if name in ("logprob", "turns")]
    pd.testing.assert_frame_equal(first.drop(columns=rounded), second.drop(columns=rounded))
    assert second["logprob"].tolist() == pytest.approx(first["logprob"].tolist(), abs=1e-5)
    if "turns" in rounded:
        turns = [
            [re.sub(r'"(logprob|seconds)":[^,}]*', "", text) for text in run["turns"]]
            for run in (first, second)
        ]
        assert turns[0] == turns[1]


def count(text: str) -> str:
    """Counts letters.

    Args:
        text: Any.
    """
    return "x" * (len(text) % 30)


SAID = [i for i in range(VOCABULARY) if i not in TOKENIZER("((a)")["input_ids"]]
TOOLS = {"tools": [count], "tool_format": Tags("(", ")", "[{}]"), "max_completion_length": 60, "dataset": chats(8),
         "generation_kwargs": {"suppress_tokens": SAID}}  # fmt: skip
"""The policy knows three letters, so it often calls."""
RUNS = {
    "full": {},
    "lora": {"peft_config": LORA},
    "other distribution": {"top_p": 0.9, "temperature": 0.8, "repetition_penalty": 1.1, "generation_kwargs": {"min_new_tokens": 2}},
    "checkpointing": {"peft_config": LORA, "gradient_checkpointing": True},
    "several updates": {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4, "beta": 0.1},
    "tools": TOOLS,
    "tools, lora": {**TOOLS, "peft_config": LORA},
}  # fmt: skip


def trained(folder, out, **given):
    """Train to the end."""
    extra = {name: given.pop(name) for name in ("tools", "peft_config") if name in given}
    rewards, dataset = given.pop("rewards"), given.pop("dataset")
    trainer = GRPOTrainer(folder, rewards, config(out, **given), dataset, **extra)
    trainer.train()
    return trainer


def settings(**given):
    return {
        "rewards": by_length,
        "dataset": rows(8),
        "max_steps": 3,
        "learning_rate": 0.3,
        "max_completion_length": 16,
        **given,
    }


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_on_servers_is_the_native_run(folder, other, tmp_path, kind, monkeypatch):
    given = settings(**RUNS[kind])
    expected = trained(folder, tmp_path / "native", **given)
    if "tools" in kind:
        assert record(expected)["calls"].sum() > 5, "the policy calls too little"
    original = served_queue.ServedQueue._do

    def late(self, jobs):
        time.sleep(random.random() * 0.02)
        original(self, jobs)

    monkeypatch.setattr(served_queue.ServedQueue, "_do", late)
    for number in (1, 2):
        with ExitStack() as stack:
            urls = servers(stack, other, number)
            trainer = trained(folder, tmp_path / f"{number}", **given, **SERVED, engine_urls=urls)
            assert [post.server.url for post in trainer.engine.posts] == urls
        assert_same_run(expected, trainer)


def test_a_server_that_is_lost_and_started_again_changes_nothing(folder, tmp_path):
    """Killed in the middle of a round; another one is started at its address, with the weights from the disk."""
    given = settings(max_completion_length=120, generation_kwargs={"min_new_tokens": 100})
    expected = trained(folder, tmp_path / "native", **given)
    port = free_port()
    started = [serve(folder, port)]
    try:
        assert started[0].stdout.readline().strip() == f"http://127.0.0.1:{port}"
        trainer = make(
            folder, tmp_path / "served", **given, **SERVED, engine_urls=[f"http://127.0.0.1:{port}"]
        )

        def kill():
            server = trainer.engine.posts[0].server
            drawn = 0
            while drawn < 1200:  # a round has 800 to 960
                with suppress(ServerLost):  # it may be slow to say
                    drawn = server.progress()
                time.sleep(0.01)
            started[0].send_signal(signal.SIGKILL)
            started.append(serve(folder, port))

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        trainer.train()
        killer.join(60)
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()
    assert len(started) == 2 and trainer.state.global_step == 3
    assert_same_run(expected, trainer)


def serve(folder, port):
    return subprocess.Popen(
        [sys.executable, "-m", "covey", "serve", folder, "--port", str(port), "--dtype", "float32"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("more", [{}, {"lora": True}], ids=["full", "lora"])
def test_two_processes_on_servers_are_two_processes_without(folder, other, tmp_path, more):
    given = {
        "learning_rate": 0.5,
        "max_steps": 3,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        **more,
    }
    expected = run(2, folder, tmp_path / "native", **given)
    with ExitStack() as stack:
        urls = servers(stack, other, 2)
        served = run(2, folder, tmp_path / "served", **given, **SERVED, engine_urls=urls)
    assert same(expected[0], served[0]) and completions(expected[2]) == completions(served[2])
