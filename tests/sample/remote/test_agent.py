"""The agent beside vLLM: it passes on, takes weights that are sent, keeps labels and starts vLLM again."""

from __future__ import annotations

import copy
import hashlib
import http.client
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli import main
from covey.errors import EngineError, ServerLost
from covey.sample.remote import agent as agents
from covey.sample.remote.agent import Agent
from covey.sample.remote.client import Client, Refused
from covey.sample.remote.listener import MOST_CONNECTIONS
from covey.sample.remote.many_sockets import allow_many
from covey.sample.remote.server import UNLABELLED, DrawRequest
from covey.sample.remote.vllm import VllmServer
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.moved import LORA, moved
from tests.sample.remote.serving import serving
from tests.tiny import EOS, PAD

pytestmark = pytest.mark.any_version

IDS = list(range(20, 36))
REQUEST = DrawRequest(Prompt("", tuple(IDS)), Sampling(4, stop_ids=(EOS,), padding_id=PAD), count=2)


class FakeVllmChild:
    """A vLLM in threads, as an agent has it."""

    def __init__(self, folder, faults):
        self.make, self.starts, self.fake, self.is_running, self.url = (
            lambda: FakeVllm(folder, faults), 0, None, False, "http://127.0.0.1:1",
        )  # fmt: skip

    def start(self):
        self.fake = self.make()
        self.url, self.is_running = self.fake.url, True
        self.starts += 1  # last: tests wait for it

    def stop(self):
        if self.is_running:
            self.fake.close()
        self.is_running = False

    def tail(self, lines=40):
        return "CUDA error: an illegal memory access"

    def failure(self, what):
        return EngineError(f"it {what}: {self.tail()}")


@pytest.fixture
def serve(folder):
    """Make an agent that keeps a fake vLLM, and a server that speaks to it."""
    ends = []

    def made(restarts=3, token=None, **faults):
        child = FakeVllmChild(folder, faults)
        agent, ended, errors = Agent(child, restarts, "127.0.0.1", 0, token), threading.Event(), []

        def keep():
            try:
                agent.keep(ended)
            except EngineError as error:
                errors.append(error)

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        ends.append((ended, thread, agent))
        wait_for(lambda: child.starts)
        return SimpleNamespace(
            agent=agent, child=child, server=VllmServer(agent.url, 60.0), thread=thread, errors=errors
        )

    yield made
    for ended, thread, agent in ends:
        ended.set()
        thread.join(60)
        assert not thread.is_alive() and not agent.uploads.folder.exists()


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.02)


def blind(monkeypatch):
    """Have agents see no folder."""

    def seen_folder(path, sizes):
        raise agents.Status(404, "This folder is not here.")

    monkeypatch.setattr(agents, "seen_folder", seen_folder)


@pytest.mark.parametrize("sees", [True, False])
def test_weights_come_by_the_folder_where_it_is_seen_and_else_as_they_are_sent(
    serve, folder, tmp_path, monkeypatch, sees
):
    if not sees:
        blind(monkeypatch)
    one = serve()
    before = one.server.prompt_logprobs(IDS)
    new = moved(folder, tmp_path / "new")
    one.server.update(new, "run:1:a")
    assert one.server.label() == "run:1:a"
    there = one.child.fake.asked
    path = next(body["kwargs"]["weights_path"] for route, body in there if route == "/collective_rpc")
    assert (path == str(new)) == sees and (sees or path.startswith(str(one.agent.uploads.folder)))
    after = one.server.prompt_logprobs(IDS)
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.1
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()
        logits = model(input_ids=torch.tensor([IDS])).logits[0].log_softmax(-1)
    expected = [float(logits[k - 1, IDS[k]]) for k in range(1, len(IDS))]
    assert after == pytest.approx(expected, abs=1e-3)
    assert list(one.agent.uploads.folder.iterdir()) == [] and not one.agent.uploads.folders


def test_an_adapter_that_was_sent_stays_until_it_is_forgotten(serve, folder, tmp_path, monkeypatch):
    blind(monkeypatch)
    one = serve()
    config = copy.deepcopy(LORA)
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).save_pretrained(tmp_path / "a")
    one.server.load_adapter("run-v1", tmp_path / "a")
    assert one.server.prompt_logprobs(IDS, "run-v1") != one.server.prompt_logprobs(IDS)
    assert len(list(one.agent.uploads.folder.iterdir())) == 1
    one.server.unload_adapter("run-v1")
    assert list(one.agent.uploads.folder.iterdir()) == []


def put(agent, path, data, digest=None, length=None, headers=()):
    connection = http.client.HTTPConnection(*agent.server_address[:2], timeout=60)
    digest = hashlib.sha256(data).hexdigest() if digest is None else digest
    given = {"Content-Length": str(len(data) if length is None else length), **dict(headers)}
    connection.request("PUT", f"{path}?sha256={digest}", data, given)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_files_that_are_not_whole_or_lead_elsewhere_are_not_taken(serve):
    agent = serve().agent
    place = put(agent, "/covey/uploads/a/x.safetensors", b"1234")
    assert place[0] == 200 and Path(place[1]["folder"], "x.safetensors").read_bytes() == b"1234"
    status, said = put(agent, "/covey/uploads/a/y.safetensors", b"1234", digest="00")
    assert status == 400 and "came with the digest 03ac674216" in said["error"]
    for path in ("a/../x.json", "../x.json", "a/b/x.json", "a/x.py", "a/.json", "a%2f..%2f/x.json"):
        assert put(agent, f"/covey/uploads/{path}", b"1")[0] == 400, path
    assert put(agent, "/covey/uploads/a/z.json", b"", length=1 << 50)[0] == 413
    assert sorted(p.name for p in agent.uploads.folder.rglob("*")) == ["a", "x.safetensors"]
    for n in range(agents.KEPT_UPLOADS):
        put(agent, f"/covey/uploads/n{n}/x.json", b"1")
    assert (
        len(list(agent.uploads.folder.iterdir())) == agents.KEPT_UPLOADS
        and not (agent.uploads.folder / "a").exists()
    )


def test_only_who_has_the_token_is_answered_and_no_web_page(serve):
    agent = serve(token="secret").agent
    assert put(agent, "/covey/uploads/a/x.json", b"1")[0] == 401
    assert (
        put(agent, "/covey/uploads/a/x.json", b"1", headers={"Authorization": "Bearer secret"}.items())[0]
        == 200
    )
    assert Client(agent.url, 60.0, "secret").ask("GET", "/covey/agent")["starts"] == 1
    web = {"Authorization": "Bearer secret", "Origin": "http://evil"}
    assert put(agent, "/covey/uploads/a/x.json", b"1", headers=web.items())[0] == 403
    with pytest.raises(Refused, match="401"):
        Client(agent.url, 60.0, "other").ask("GET", "/health")


@pytest.mark.parametrize("faults", [{}, {"no_labels": True}])
def test_a_vllm_that_dies_is_started_again_and_has_no_label_then(serve, folder, tmp_path, faults):
    one = serve(restarts=1, **faults)
    one.server.update(moved(folder, tmp_path / "new"), "run:1:a")
    assert one.server.label() == "run:1:a"
    one.child.stop()
    wait_for(lambda: one.child.starts == 2)
    assert one.server.label() == UNLABELLED
    one.child.stop()
    one.thread.join(60)
    assert "died, after it was started 2 times" in str(one.errors[0])


def test_while_vllm_is_gone_its_server_is_lost_with_the_end_of_the_log(serve):
    one = serve()
    one.child.start, one.child.is_running = lambda: time.sleep(0.1), False
    one.child.fake.close()
    with pytest.raises(ServerLost, match=r"is starting, start 1 of 4. Its log ends with:.*CUDA error"):
        one.server.client.ask("GET", "/version", repeats=False)
    one.child.is_running = True


def open_connections(agent):
    return MOST_CONNECTIONS - agent.connections._value


def test_a_request_whose_client_goes_is_let_go(serve):
    one = serve(slow=300.0)
    one.server.facts()
    wait_for(lambda: not open_connections(one.agent))
    connection = http.client.HTTPConnection(*one.agent.server_address[:2], timeout=60)
    connection.request(
        "POST", "/v1/completions", json.dumps({"model": "smol", "prompt": [5], "max_tokens": 1})
    )
    wait_for(lambda: one.child.fake.running)
    assert open_connections(one.agent) == 1
    connection.close()
    wait_for(lambda: not open_connections(one.agent))


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["m", "--engine", "vllm", "--device", "cpu"],
            "--device belongs to --engine native. vLLM's own options stand",
        ),
        (["m", "--restarts", "1"], "--restarts belongs to --engine vllm"),
        (["m", "--", "--max-num-seqs", "4"], "what stands behind -- belongs to --engine vllm"),
        (["m", "--engine", "vllm", "--", "--port", "4"], "'port' cannot be chosen for a child server"),
    ],
)
def test_options_of_the_other_engine_are_refused(folder, capsys, words, said):
    words = [str(folder) if word == "m" else word for word in words]
    assert main(["serve", *words]) == 2 and said in capsys.readouterr().err


def test_a_process_with_many_open_files_is_served_too(serve, folder):
    """`select` takes no file above 1,023: eight trainers with 128 requests each have more."""
    allow_many()
    one = serve()
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert len(one.server.draw(REQUEST)) == 2
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        with serving(model, tokenizer) as (server, _):
            assert len(server.draw(REQUEST)) == 2
    finally:
        for file in held:
            os.close(file)
