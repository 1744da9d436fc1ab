"""What people report of servers of vLLM, each as a fault of the fake: the run samples the same, or one clear error ends it.

Numbers in brackets are reports: trl#..., vllm#... in the tables that the faults were taken from.
"""

import copy
import time

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError
from covey.sample.engine import in_order
from covey.sample.remote import vllm
from covey.sample.remote.engine import RemoteEngine
from covey.sample.remote.vllm import VllmServer
from covey.sample.remote.weight_sync import WeightSync
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.ranks import alone
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.moved import LORA
from tests.sample.remote.serving import NoChecks
from tests.tiny import EOS, PAD, tiny_policy

pytestmark = pytest.mark.any_version

PROMPTS = [Prompt("", tuple(range(10 + i, 30 + i)), row=i, seed_key=(i,)) for i in range(4)]
SETTINGS = Sampling(8, stop_ids=(EOS, 40, 41), padding_id=PAD, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=3.0, tie_word_embeddings=True)


class Run:
    """A run's engine over fakes, and a policy whose weights move."""

    def __init__(self, folder, to, faults, count=1, timeout=300.0, lora=False, run="run"):
        # How late this machine lets a server draw is no fault of its.
        self.fakes = [FakeVllm(folder, {"busy": True, **(faults if n == 0 else {})}) for n in range(count)]
        self.folder, self.timeout = folder, timeout
        torch.manual_seed(0)
        self.policy = AutoModelForCausalLM.from_pretrained(folder).eval()
        if lora:
            self.policy = get_peft_model(self.policy, copy.deepcopy(LORA))
        self.engine = self.made(to, run)

    def made(self, to, run):
        servers = [VllmServer(fake.url, self.timeout) for fake in self.fakes]
        for server in servers:
            server.client.timeout = 300.0  # of what draws nothing
        decode = AutoTokenizer.from_pretrained(self.folder).decode
        sync = WeightSync(run, to, alone)
        return RemoteEngine(servers, sync, NoChecks(), decode, run=run, timeout=self.timeout, gather=alone)

    def rounds(self, number=2):
        """Ids of each round; the weights move in between."""
        said = []
        for version in range(number):
            self.engine.load(self.policy, version)
            groups = in_order(PROMPTS, self.engine.generate(PROMPTS, 3, SETTINGS))
            said.append([[(c.ids, c.finish) for c in g.completions] for g in groups])
            with torch.no_grad():
                for p in self.policy.parameters():
                    if p.requires_grad:
                        p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(version)))
        return said

    def close(self):
        self.engine.close()
        for fake in self.fakes:
            fake.close()


@pytest.fixture
def run(folder, tmp_path):
    runs = []

    def made(faults=None, **given):
        runs.append(Run(folder, tmp_path / str(len(runs)), faults or {}, **given))
        return runs[-1]

    yield made
    for one in runs:
        one.close()


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """What a run says whose server has no fault, with full weights and with an adapter."""
    said = {}
    for lora in (False, True):
        one = Run(folder, tmp_path_factory.mktemp("undisturbed"), {}, lora=lora)
        said[lora] = one.rounds()
        one.close()
    assert said[False][0] != said[False][1]
    return said


SAME = {
    "connections are dropped [trl#3622]": {"drops": 3},
    "requests are aborted with status 200": {"aborts": 3},
    "the server answers 500 now and then": {"errors": 4},
    "it is restarted in the first round": {"restarts": 3},
    "it is restarted in the second round": {"restarts": 7},
    "it is slow": {"slow": 0.05},
    "resets of the cache fail twice [vllm#9744]": {"no_reset": 2},
    "old keys and values stay [NeMo-RL#4018]": {"stale_kv": True},
    "it keeps no labels": {"no_labels": True},
    "it takes no adapters": {"no_adapters": True},
}


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", SAME)
def test_the_run_is_the_one_without_the_fault(run, undisturbed, name, lora):
    one = run(SAME[name], lora=lora)
    assert one.rounds() == undisturbed[lora]
    assert one.fakes[0].happened >= set(SAME[name]) & {"drops", "aborts", "errors", "restarts"}


@pytest.mark.parametrize("name", [n for n, f in SAME.items() if "labels" not in n])
def test_nor_does_a_second_server_beside_it_change_anything(run, undisturbed, name):
    assert run(SAME[name], count=2).rounds() == undisturbed[False]


@pytest.mark.parametrize("faults", [{"lost": 3}, {"silent": 3}], ids=str)
def test_a_server_that_is_gone_for_good_leaves_its_prompts_to_the_other_one(run, undisturbed, faults):
    assert run(faults, count=2, timeout=0.5).rounds() == undisturbed[False]


ERRORS = {
    "it never answers [trl#6797]": ({"silent": 2}, "No server has|no answer for"),
    "it is gone [trl#3347]": ({"lost": 3}, "No server has"),
    "log-probabilities are missing [trl#6166]": ({"nan": True}, "logits are garbage"),
    "a completion is short": ({"short": True}, "log-probabilities came with"),
    "a completion is missing [vllm#52399]": ({"count": True}, "2 completions of 3"),
    "ids of another vocabulary": ({"wrong_ids": True}, "id 1000000 came"),
    "another run's weights come in between": ({"foreign": 2}, "another-run:3:beef"),
    "the cache is never emptied": ({"no_reset": 10**6}, "success=false"),
    "it has no development mode": ({"no_dev_mode": True}, "VLLM_SERVER_DEV_MODE=1 vllm serve"),
    "it is a server of TRL before 1.11": ({"old": True}, "server of TRL before 1.11"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_one_error_says_what_is_wrong_within_the_deadline(run, name, monkeypatch):
    faults, text = ERRORS[name]
    monkeypatch.setattr(vllm, "CACHE_SECONDS", 0.5)
    one = run(faults, timeout=0.5)
    began = time.monotonic()
    with pytest.raises(EngineError, match=text):
        one.rounds()
    assert time.monotonic() - began < 60
    assert not one.fakes[0].is_paused


def test_two_servers_draw_no_completion_twice(run):
    """[vllm#11953] Every request has seeds of its own, whichever server gets it."""
    one = run(count=2)
    first, second = one.fakes
    completed = first.completed

    def busy(body, number):  # the first server is asked first
        end = time.monotonic() + 60
        while not second.requests and time.monotonic() < end:
            time.sleep(0.01)
        return completed(body, number)

    first.completed = busy
    [said] = one.rounds(1)
    assert all(post.tokens for post in one.engine.posts)
    ids = [ids for group in said for ids, _ in group]
    assert len(set(ids)) == len(ids)


def test_each_version_has_a_folder_and_each_adapter_a_name_and_a_path_of_its_own(run):
    """[vllm#29341, #32718, #42125] What is read again from one path, or under one name, may be the old one."""
    one = run({"same_adapter": True}, lora=True)
    one.rounds(3)
    loads = [body for route, body in one.fakes[0].asked if route == "/v1/load_lora_adapter"]
    assert len(loads) == len({b["lora_name"] for b in loads}) == len({b["lora_path"] for b in loads}) == 3
    two = run()
    two.rounds(3)
    paths = [
        body["kwargs"]["weights_path"] for route, body in two.fakes[0].asked if route == "/collective_rpc"
    ]
    assert len(paths) == len(set(paths)) == 3


def test_a_run_that_is_resumed_sends_its_weights_before_it_samples(run, undisturbed, folder, tmp_path):
    """[trl#3252] Not what the server happened to serve; a server that a dead run left paused is taken over."""
    one = run()
    one.rounds()
    one.fakes[0].is_paused = True
    one.policy = AutoModelForCausalLM.from_pretrained(folder).eval()
    one.engine.close()
    one.engine = one.made(tmp_path / "again", "run")
    assert one.rounds() == undisturbed[False]


def test_a_request_that_vllm_refuses_ends_the_round_at_once(run):
    """[trl#3180] A limit of the server is no reason to send again."""
    one = run()
    one.engine.load(one.policy, 0)
    with pytest.raises(EngineError, match="maximum context length"):
        list(one.engine.generate(PROMPTS, 2, Sampling(510, stop_ids=(EOS,))))
    assert one.fakes[0].requests <= len(PROMPTS)
