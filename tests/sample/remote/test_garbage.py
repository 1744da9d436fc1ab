"""Whatever stands in a server's answer, a run reads it or ends with an EngineError: no other exception, and no garbage that is believed."""

import copy
import json
import socket
from pathlib import Path

import pytest
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError
from covey.sample.remote.checks import refuse_facts
from covey.sample.remote.drawn_check import check_drawn
from covey.sample.remote.labels import described, read_label
from covey.sample.remote.server import Drawn, DrawRequest
from covey.sample.remote.sglang import SglangServer
from covey.sample.remote.vllm import VllmServer
from covey.sample.remote.weight_sync import shared_dtype
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.sample.remote.fake_sglang import FakeSglang
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.serving import serving
from tests.tiny import EOS, PAD, VOCABULARY, tiny_policy

pytestmark = pytest.mark.any_version

REQUEST = DrawRequest(
    Prompt("", tuple(range(20, 26)), seed_key=(3,)),
    Sampling(4, stop_ids=(EOS,), padding_id=PAD, top_p=0.9),
    count=2,
)
GARBAGE = (None, True, -1, 0, 7, 2.5, 1e308, "x", "\x1b[2J", [], [[]], {}, {"x": 1})
"""In place of any part of an answer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Path(tiny_policy(tmp_path_factory.mktemp("policy")))


@pytest.fixture(scope="module", params=["vllm", "sglang", "covey"])
def server(request, folder):
    if request.param == "covey":
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        with serving(model, tokenizer) as (server, _):
            yield server
        return
    fake = FakeVllm(folder) if request.param == "vllm" else FakeSglang(folder)
    yield (VllmServer if request.param == "vllm" else SglangServer)(fake.url, 300.0)
    fake.close()


@pytest.fixture(scope="module")
def weights(folder, tmp_path_factory):
    to = tmp_path_factory.mktemp("weights")
    tensors = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    tensors.pop("lm_head.weight", None)
    save_file(
        {n: t.contiguous() for n, t in tensors.items()}, to / "model.safetensors", metadata={"format": "pt"}
    )
    return to


def drawn(server):
    found = server.draw(REQUEST)
    check_drawn(server.url, REQUEST, found, VOCABULARY)
    assert all(type(i) is int for one in found for i in one.ids)
    assert all(type(p) is float and p <= 0 for one in found for p in one.logprobs)


def scored(server):
    said = server.prompt_logprobs(range(20, 26))
    assert len(said) == 5 and all(type(p) is float for p in said)


def asked(server):
    facts = server.facts()
    refuse_facts(server.url, facts, REQUEST.settings, 64)
    shared_dtype([facts])


CALLS = {
    "facts": lambda server, weights: asked(server),
    "draw": lambda server, weights: drawn(server),
    "score": lambda server, weights: scored(server),
    "label": lambda server, weights: server.label(),
    "progress": lambda server, weights: server.progress(),
    "update": lambda server, weights: server.update(weights, "run:1:host/1/1.aa"),
}


def spoilt(value):
    """Yield an answer with each of its parts, and itself, replaced by garbage."""
    yield from GARBAGE
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, part in list(inside)[:12]:
        for other in spoilt(part):
            whole = copy.copy(value)
            whole[place] = other
            yield whole
        if isinstance(value, dict):
            yield {name: kept for name, kept in value.items() if name != place}


@pytest.mark.parametrize("call", CALLS)
def test_any_part_of_any_answer_may_be_garbage(server, weights, monkeypatch, call):
    monkeypatch.setattr("covey.sample.remote.vllm.CACHE_SECONDS", 0.0)
    monkeypatch.setattr("covey.sample.remote.client.BACK_OFF", 0.0)
    plain, answers = server.client.text, []

    def recorded(method, route, body=None, **how):
        answers.append((method, route, plain(method, route, body, **how)))
        return answers[-1][2]

    monkeypatch.setattr(server.client, "text", recorded)
    server.facts()
    before = len(answers)
    CALLS[call](server, weights)
    own = answers[before:]
    faults = set()
    for number, (_, route, text) in enumerate(own):
        try:
            spoils = [json.dumps(one) for one in spoilt(json.loads(text))] if text.strip() else []
        except ValueError:  # a page of counters
            spoils = [
                text.replace(" ", " x"),
                text.replace(" ", ""),
                text.replace("} ", "} nan "),
                "\n \n",
                text + "x",
            ]
        for spoil in [*spoils, "", "<html>"]:
            left = iter([*(t for _, _, t in own[:number]), spoil, *(t for _, _, t in own[number + 1 :])])

            def said(method, asked, body=None, left=left, last=spoil, **how):
                return next(left, last)

            monkeypatch.setattr(server.client, "text", said)
            try:
                CALLS[call](server, weights)
            except EngineError:
                pass
            except Exception as error:
                faults.add(f"{route}: {spoil[:160]} → {error!r}")
    assert not faults, "\n".join(sorted(faults)[:40])


def test_a_probability_of_one_may_be_rounded_up_and_no_further():
    request = DrawRequest(Prompt("", (1,)), Sampling(2))
    check_drawn("u", request, [Drawn((5, 6), (1.2e-7, -0.5), "length")], VOCABULARY)
    with pytest.raises(EngineError, match=r"token 0 is 0\.0001\. The logits are garbage"):
        check_drawn("u", request, [Drawn((5, 6), (1e-4, -0.5), "length")], VOCABULARY)


@pytest.mark.parametrize("ids", [(PAD,), (PAD, EOS), (5, PAD), (EOS, PAD)])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_id_that_is_never_drawn_is_named_wherever_it_stands(ids, reason):
    with pytest.raises(EngineError, match=f"id {PAD} is there, which is never to be drawn"):
        check_drawn("u", REQUEST, [Drawn(ids, (-0.5,) * len(ids), reason)] * 2, VOCABULARY)


@pytest.mark.parametrize("process", ["0", "-1", str(1 << 31), "9" * 40, "x", ""])
def test_a_label_of_no_process_is_no_label_of_a_run(process):
    text = f"run:3:{socket.gethostname()}/{process}/5.ab"
    assert read_label(text) is None and "no run of Covey has given" in described(text)
    assert read_label(text.replace(f"/{process}/", "/1/")).is_of_dead in (True, False)
