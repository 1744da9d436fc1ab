"""A server of SGLang over its native routes, and a run on it."""

import copy
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from covey.errors import EngineError, ServerLost
from covey.sample.remote.server import UNLABELLED, DrawRequest
from covey.sample.remote.sglang import SglangServer
from covey.sample.remote.vllm import VllmServer
from covey.sample.sampling import Sampling
from tests.sample.remote.fake_sglang import FakeSglang
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.moved import LORA, PROMPT, moved
from tests.tiny import EOS, PAD

pytestmark = pytest.mark.any_version

SETTINGS = Sampling(12, 0.8, 0.95, 30, 0.01, 1.1, stop_ids=(EOS, 40, 41, 42), padding_id=PAD, seed=1)


@pytest.fixture
def serve(folder):
    fakes = []

    def made(**faults):
        fakes.append(FakeSglang(folder, faults))
        return fakes[-1], SglangServer(fakes[-1].url, 300.0)

    yield made
    for fake in fakes:
        fake.close()


def test_it_draws_what_vllm_draws_from_the_same_weights_and_seeds(serve, folder):
    """The two fakes have one sampler: so the two adapters ask for the same thing."""
    _, server = serve()
    with FakeVllm(folder) as other:
        expected = VllmServer(other.url, 300.0).draw(DrawRequest(PROMPT, SETTINGS, first=1, count=3))
        read = VllmServer(other.url, 300.0).prompt_logprobs(PROMPT.ids)
    assert server.draw(DrawRequest(PROMPT, SETTINGS, first=1, count=3)) == expected
    assert server.draw(DrawRequest(PROMPT, SETTINGS, first=2)) == expected[1:2]
    assert server.prompt_logprobs(PROMPT.ids) == read


@pytest.mark.parametrize("faults", [{}, {"old_routes": True}], ids=str)
def test_facts_and_labels_under_both_names_of_the_routes(serve, faults, folder):
    _, server = serve(**faults)
    facts = server.facts()
    assert (facts.kind, facts.release, facts.dtype, facts.max_length) == ("sglang", "0.5.23", "float32", 512)
    assert (facts.model, facts.max_adapter_rank, facts.drafts_tokens) == (folder, 16, False)
    assert server.label() == UNLABELLED and server.is_alive() and server.progress() == 0


def test_an_update_is_one_call_that_labels_and_empties_the_cache(serve, folder, tmp_path):
    fake, server = serve()
    before = server.draw(DrawRequest(PROMPT, SETTINGS))
    new = moved(folder, tmp_path / "new")
    server.update(new, "run:1:a")
    [call] = [body for route, body in fake.asked if route == "/update_weights_from_disk"]
    assert call == {
        "model_path": str(new),
        "weight_version": "run:1:a",
        "flush_cache": True,
        "abort_all_requests": False,
    }
    assert server.label() == "run:1:a" and server.draw(DrawRequest(PROMPT, SETTINGS)) != before


def test_refused_weights_leave_those_of_before(serve, folder, tmp_path):
    _, server = serve()
    server.facts()
    server.update(moved(folder, tmp_path / "good"), "run:1:a")
    before = server.prompt_logprobs(PROMPT.ids)
    server_faults = server.client
    assert server_faults
    bad = tmp_path / "bad"
    with pytest.raises(EngineError, match="weights of before again"):
        server.update(bad, "run:2:b")
    assert server.prompt_logprobs(PROMPT.ids) == before and server.label() == "run:1:a"


def test_an_answer_that_says_no_with_status_200_is_no(serve, folder, tmp_path):
    _, server = serve(rejects=1)
    server.facts()
    with pytest.raises(EngineError, match=r"shapes differ.*weights of before again"):
        server.update(moved(folder, tmp_path / "good"), "run:1:a")


@pytest.mark.parametrize(
    ("faults", "text"),
    [({"aborts": 1}, "aborted there"), ({"relabels": 1}, "drew with the weights 'another:1:x'")],
)
def test_what_was_cut_off_or_drawn_with_other_weights_is_lost(serve, faults, text):
    _, server = serve(**faults)
    server.facts()
    with pytest.raises(ServerLost, match=text):
        server.draw(DrawRequest(PROMPT, SETTINGS))


def test_adapters_and_memory(serve, folder, tmp_path):
    fake, server = serve()
    torch.manual_seed(0)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), copy.deepcopy(LORA))
    model.save_pretrained(tmp_path / "a")
    base = server.prompt_logprobs(PROMPT.ids)
    server.load_adapter("run-v1", tmp_path / "a")
    assert server.prompt_logprobs(PROMPT.ids, "run-v1") != base == server.prompt_logprobs(PROMPT.ids)
    assert server.draw(DrawRequest(PROMPT, SETTINGS, adapter="run-v1")) != server.draw(
        DrawRequest(PROMPT, SETTINGS)
    )
    server.unload_adapter("run-v1")
    server.unload_adapter("run-v1")
    server.sleep(keeps_weights=False)
    server.wake()
    server.update(Path(folder), "run:1:a")
    tags = [body["tags"] for route, body in fake.asked if route.endswith("memory_occupation")]
    assert tags == [["kv_cache", "weights"], ["weights"], ["kv_cache"]]


def test_a_stranger_is_answered_with_the_command(folder):
    with (
        FakeVllm(folder) as other,
        pytest.raises(
            EngineError, match=r"server of vLLM, not of SGLang.*engine='vllm'.*sglang.launch_server"
        ),
    ):
        SglangServer(other.url, 300.0).facts()
