"""`covey serve`: what it prints, what it loads, how it ends."""

import os
import signal
import socket
import threading
import time
import warnings
from queue import SimpleQueue

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from covey.cli import main
from covey.cli.verbs import serve
from covey.errors import ConfigError, CoveyWarning
from covey.sample.native.engine import NativeEngine
from covey.sample.remote.client import TOKEN, Client
from covey.sample.remote.served import CoveyServer
from covey.sample.remote.served_queue import Job, ServedQueue
from covey.sample.remote.server import DrawRequest
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.clocks import PATIENCE, eventually
from tests.tiny import EOS, tiny_policy, tiny_tokenizer
from tests.trainer.harness import by_length, rows, train

PROMPT = Prompt("ab", (70, 71), {}, 0, (4,))
SETTINGS = Sampling(max_new_tokens=8, stop_ids=(EOS,), seed=1)


@pytest.fixture
def folder(tmp_path):
    return tiny_policy(tmp_path / "m", scale=2.0)


def served(words, ask, number=signal.SIGTERM):
    """Run the command, ask once it serves, and end it by a signal; returns the status, what was asked and the address."""
    addresses, said, show = SimpleQueue(), [], serve.show

    def printed(*words, **options):
        show(*words, **options)
        addresses.put(words[0] if words else None)

    def other():
        said.append(CoveyServer(Client(addresses.get(timeout=PATIENCE), PATIENCE)))
        eventually(said[0].is_alive)
        try:
            said.append(ask(said[0]))
        finally:
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "show", printed)
        status = main(["serve", *words, "--port", "0"])
    thread.join(PATIENCE)
    server, answer = said
    assert signal.getsignal(signal.SIGTERM) == before and not server.is_alive()
    return status, answer, server.url


def native(model):
    engine = NativeEngine(tiny_tokenizer().decode)
    engine.load(model)
    [group] = engine.generate([PROMPT], 2, SETTINGS)
    return [(c.ids, c.logprobs) for c in group.completions]


def draws(server):
    return [(d.ids, d.logprobs) for d in server.draw(DrawRequest(PROMPT, SETTINGS, count=2))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_address_serves_and_ends_in_order(folder, capsys, number):
    status, said, url = served([folder], draws, number)
    out = capsys.readouterr()
    assert status == 0 and out.out == f"{url}\n" and url.startswith("http://127.0.0.1:")
    assert "Traceback" not in out.err
    assert said == native(AutoModelForCausalLM.from_pretrained(folder))


def test_an_end_waits_for_the_group_that_is_drawn_but_not_for_ever(folder, monkeypatch):
    """A signal while something is drawn: what waits is given back, and the interpreter does not end under the thread."""
    ended, held, queues = [], threading.Event(), []
    monkeypatch.setattr(serve, "ENDING_SECONDS", 0.1)
    monkeypatch.setattr(serve.os, "_exit", ended.append)
    original = ServedQueue.__init__

    def kept(self, *args):
        original(self, *args)
        queues.append(self)

    monkeypatch.setattr(ServedQueue, "__init__", kept)

    def ask(server):
        queues[0].put(Job(lambda: held.wait(PATIENCE)))
        while not queues[0].is_busy:
            time.sleep(0.01)

    assert served([folder], ask)[0] == 0 and ended == [0]
    held.set()
    queues[0].thread.join(PATIENCE)


def test_dtype_and_device_are_those_that_are_named(folder):
    _, facts, _ = served([folder, "--dtype", "bfloat16", "--device", "cpu"], CoveyServer.facts)
    assert (facts.dtype, facts.device, facts.model) == ("bfloat16", "cpu", folder)


def test_an_adapter_is_served_merged(folder, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(base, config)
    adapted.save_pretrained(tmp_path / "adapter")
    _, said, _ = served([str(tmp_path / "adapter")], draws)
    merged = adapted.merge_and_unload()
    assert said == native(merged)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_checkpoint_of_a_run_that_goes_on_is_served(folder, tmp_path, adapter):
    more = {"peft_config": LoraConfig(r=4, target_modules="all-linear")} if adapter else {}
    given = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, **more}
    trainer = train(folder, tmp_path / "run", by_length, rows(8), **given)
    _, said, _ = served([str(tmp_path / "run" / "checkpoint-1"), "--dtype", "float32"], draws)
    assert said == native(trainer.model.merge_and_unload() if adapter else trainer.model)


def test_a_host_that_others_reach_is_warned_of_unless_there_is_a_token(folder, monkeypatch, capsys):
    def stop(args):
        raise ConfigError("as far as this")

    monkeypatch.setattr(serve, "served_policy", stop)
    warnings.simplefilter("always", CoveyWarning)  # whatever filters the tests run with
    warned = []
    for host, token in (("0.0.0.0", ""), ("0.0.0.0", "secret"), ("127.0.0.1", ""), ("localhost", "")):
        monkeypatch.setenv(TOKEN, token)
        assert main(["serve", folder, "--host", host, "--port", "0"]) == 2
        said = capsys.readouterr().err
        assert "as far as this" in said
        warned.append("without asking who they are" in said)
    assert warned == [True, False, False, False]


def test_a_token_of_the_environment_is_asked_for(folder, monkeypatch):
    monkeypatch.setenv(TOKEN, "secret")

    def ask(server):
        said = r"token is missing or another one\. It is sent as a bearer token\..* Set the environment variable COVEY_ENGINE_TOKEN"
        with pytest.raises(Exception, match=said):
            CoveyServer(Client(server.url, PATIENCE, "other")).label()
        return server.label()

    assert served([folder], ask)[1] == "default"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port is 70000; it is a number from 0 to 65535"),
        (["--max-sequences", "0"], "--max-sequences is 0"),
        (["--dtype", "float33", "--port", "0"], "dtype is 'float33'"),
        (["--device", "cuda", "--port", "0"], "no CUDA device"),
        (["--host", "256.1.1.1"], "256.1.1.1, port 8000, cannot be used"),
        (["--engine", "vllm", "--restarts", "-1"], "--restarts is -1; it must be at least 0"),
    ],
)
def test_what_is_wrong_is_said(folder, capsys, words, said):
    if "--device" in words and torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["serve", folder, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_and_a_model_that_is_none_are_status_2(folder, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", folder, "--port", str(port)]) == 2
        # before the model is looked for: a large one is loaded for minutes
        assert main(["serve", str(tmp_path / "nothing"), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.count(f"port {port}, cannot be used: Address already in use. --port 0 takes a free one.") == 2
    assert "cannot be loaded" not in said
    assert main(["serve", str(tmp_path / "nothing"), "--port", "0"]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
