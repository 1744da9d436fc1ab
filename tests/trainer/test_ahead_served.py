"""A run on `covey serve` that samples ahead is one run to the bit: whatever servers there are, whoever waits, wherever it is resumed."""

import random
import time
from contextlib import ExitStack

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.sample.remote import served_queue
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, make, rows, same, weights
from tests.trainer.test_ahead import SETTINGS, Slow, numbers

STEPS = 5
pytestmark = [pytest.mark.any_version, pytest.mark.filterwarnings("ignore:.* serves weights of")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=2.0, generation=MANY_ENDS)


@pytest.fixture(scope="module")
def urls(folder):
    """Two servers, which were started with other weights."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serving(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer)
            )[0].url
            for _ in range(2)
        ]


@pytest.fixture(autouse=True)
def late(monkeypatch):
    """Servers take their time, another one for each request."""
    original, clock = served_queue.ServedQueue._do, random.Random()

    def do(self, jobs):
        time.sleep(clock.random() * 0.02)
        original(self, jobs)

    monkeypatch.setattr(served_queue.ServedQueue, "_do", do)


def made(folder, out, delay, seed, **settings):
    given = {**SETTINGS, "learning_rate": 0.05, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1,
             "log_completions": True, **settings}  # fmt: skip
    return make(folder, out, Slow(delay, seed), rows(16), **given)


def served(urls):
    return {"engine": "covey", "engine_urls": urls, "engine_canary": False}


def is_same_run(one, other):
    """Weights, and every number that a server does not tell of itself."""
    own = ("engine/",)
    first, second = (
        [{k: v for k, v in e.items() if not k.startswith(own)} for e in numbers(t)] for t in (one, other)
    )
    return same(weights(one), weights(other)) and first == second


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_with_any_servers_and_delays_and_resumed_anywhere_it_is_the_same_run(folder, urls, tmp_path, lag):
    whole = made(folder, tmp_path / "run", 0.2, 0, async_lag=lag, **served(urls))
    whole.train()
    lines = (tmp_path / "run" / "completions.jsonl").read_text()
    alone = made(folder, tmp_path / "alone", 0.0, 1, async_lag=lag, **served(urls[:1]))
    alone.train()
    assert is_same_run(whole, alone) and (tmp_path / "alone" / "completions.jsonl").read_text() == lines
    for stop in range(1, STEPS):
        again = made(folder, tmp_path / "run", 0.02, stop, async_lag=lag, **served(urls[stop % 2 :]))
        again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{stop}"))
        assert is_same_run(whole, again), stop
        assert again.scorer.rewards[0].function.calls == whole.scorer.rewards[0].function.calls
        assert (tmp_path / "run" / "completions.jsonl").read_text() == lines
