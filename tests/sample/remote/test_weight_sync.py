"""Weights reach every server under the label, in a folder of their own each time; what a server refuses is taken back."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from covey.errors import CoveyWarning, EngineError, ServerLost
from covey.sample.remote.server import UNLABELLED
from covey.sample.remote.weight_sync import WeightSync, is_here, shared_dtype
from tests.ranks import alone, on_ranks
from tests.sample.remote.wrong_server import WrongServer
from tests.tiny import tiny_model

pytestmark = pytest.mark.any_version


@pytest.fixture
def sync(tmp_path):
    one = WeightSync("run", tmp_path, alone, folder=tmp_path / "weights")
    yield one
    one.close()
    assert not list((tmp_path / "weights").iterdir()) if (tmp_path / "weights").exists() else True


def lora(seed: int = 0, **config: Any) -> Any:
    torch.manual_seed(seed)
    return get_peft_model(
        tiny_model("llama"),
        LoraConfig(
            **{"r": 4, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False, **config}
        ),
    )


def holds(server: WrongServer, policy: Any) -> bool:
    state = policy.state_dict()
    return all(torch.equal(tensor, state[name]) for name, tensor in server.served.weights.items())


def test_every_push_has_a_new_folder_and_two_are_kept_at_most(sync):
    policy, server = tiny_model("llama", seed=1), WrongServer(tiny_model("llama"))
    for version in range(4):
        with torch.no_grad():
            policy.lm_head.weight.add_(1)
        sync.push(policy, f"run:{version}", [server])
        assert server.label() == sync.label == f"run:{version}" and holds(server, policy)
        assert sum(folder.exists() for folder in server.folders) <= 2
    assert len(set(server.folders)) == 4 and all(folder.is_absolute() for folder in server.folders)
    assert sync.seconds.keys() == {"gather", "write", "load"} and min(sync.seconds.values()) >= 0


def test_a_refused_folder_is_taken_back_at_once(sync):
    policy = tiny_model("llama", seed=1)
    server, other = (
        WrongServer(tiny_model("llama"), refuses=[2]),
        WrongServer(tiny_model("llama"), url="http://two"),
    )
    sync.push(policy, "run:0", [server, other])
    changed = tiny_model("llama", seed=2)
    with pytest.raises(
        EngineError, match=r"refused the weights.*500: not these.*It has the weights before them again .run:0"
    ):
        sync.push(changed, "run:1", [server, other])
    assert server.label() == "run:0" and holds(server, policy) and server.folders[-1] == server.folders[0]
    sync.push(changed, "run:1", [server, other])
    assert holds(server, changed) and holds(other, changed)


def test_a_server_that_takes_nothing_back_is_said_to_be_without_weights(sync):
    server = WrongServer(tiny_model("llama"), refuses=[2, 3])
    sync.push(tiny_model("llama", seed=1), "run:0", [server])
    with pytest.raises(EngineError, match="did not take the weights before them either"):
        sync.push(tiny_model("llama", seed=2), "run:1", [server])


class Gone(WrongServer):
    def update(self, folder, label):
        raise ServerLost("connection refused")


def test_a_lost_server_is_left_out_and_all_lost_is_an_error(sync):
    policy, server = tiny_model("llama", seed=1), WrongServer(tiny_model("llama"))
    gone = Gone(tiny_model("llama"), url="http://gone")
    sync.push(policy, "run:0", [server, gone])
    assert sync.lost == ("http://gone",) and holds(server, policy)
    with pytest.raises(ServerLost, match="No server is left: http://gone: connection refused"):
        sync.push(policy, "run:1", [gone])


def test_a_restarted_server_gets_the_last_push_again_without_the_others(sync):
    policy, server = tiny_model("llama", seed=1), WrongServer(tiny_model("llama"))
    sync.push(policy, "run:0", [server])
    again = WrongServer(tiny_model("llama"))
    assert again.label() == UNLABELLED
    sync.give_again(again, "run:0+x")
    assert again.label() == "run:0+x" and holds(again, policy)


def test_who_does_not_see_the_weights_leaves_a_restarted_server_to_who_does(tmp_path):
    policy, servers = tiny_model("llama", seed=1), [WrongServer(tiny_model("llama"))]

    def on(rank, gather):
        sync = WeightSync("run", tmp_path, gather, rank=rank, folder=tmp_path / "weights")
        sync.push(policy, "run:0", servers)
        again = WrongServer(tiny_model("llama"))
        if rank:  # its machine has no such folder
            sync._good = tmp_path / "elsewhere", "run:0"
            with pytest.raises(
                ServerLost, match=r"on the machine of the run's first process.*weights_folder"
            ):
                sync.give_again(again, "run:0+x")
            assert again.label() == UNLABELLED
        gather(None)
        sync.close()

    on_ranks(2, on)


def test_adapters_travel_alone_under_new_names_and_old_ones_are_forgotten(sync):
    policy, server = lora(), WrongServer(tiny_model("llama", seed=9))
    names = []
    ids = list(range(6, 30))
    for version in range(5):
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if "lora_B" in name:
                    parameter.add_(0.1)
        sync.push(policy, f"run:{version}", [server])
        names.append(sync.adapter)
        with torch.no_grad():
            logits = policy(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        own = logits.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        torch.testing.assert_close(
            torch.tensor(server.prompt_logprobs(ids, sync.adapter)), own, atol=1e-5, rtol=0
        )
    assert len(set(names)) == 5 and all(name.startswith("run-") for name in names)
    assert list(server.served.adapters) == names[-3:] and server.updates == 1
    assert server.label() == sync.label == "run:0", "the weights beneath are sent once"
    restarted = WrongServer(tiny_model("llama", seed=8), url="http://two")
    sync.push(policy, "run:5", [server, restarted])
    assert restarted.updates == 1 and restarted.label() == "run:0"
    other = WrongServer(tiny_model("llama", seed=8))
    sync.give_again(other, "run:0+y")
    assert sync.adapter in other.served.adapters


def test_an_adapter_is_pushed_with_one_question_for_the_label_to_each_server(sync):
    asked: list[str] = []

    class Listed(WrongServer):
        def label(self) -> str:
            asked.append(self.url)
            return super().label()

    policy, urls = lora(), ["http://one", "http://two", "http://three"]
    servers = [Listed(tiny_model("llama"), url=url) for url in urls]
    sync.push(policy, "run:0", servers)
    asked.clear()
    sync.push(policy, "run:1", servers)
    assert sorted(asked) == sorted(urls)


def test_an_adapter_that_servers_do_not_take_is_merged_and_said_once(sync):
    policy, server = lora(), WrongServer(tiny_model("llama"), max_adapter_rank=2)
    with pytest.warns(CoveyWarning, match="its rank is 4, and a server takes 2 at most"):
        sync.push(policy, "run:0", [server])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoveyWarning)
        sync.push(policy, "run:1", [server])
    assert sync.adapter is None and sync.route_taken == "files"
    assert holds(server, policy.merge_and_unload())


def test_a_route_that_cannot_be_taken_is_refused(tmp_path):
    for policy, why in (
        (tiny_model("llama"), "the policy has none"),
        (lora(use_dora=True), "variant of LoRA"),
    ):
        sync = WeightSync("run", tmp_path, alone, route="adapter", folder=tmp_path)
        with pytest.raises(EngineError, match=f"weight_sync='adapter'.*{why}"):
            sync.push(policy, "run:0", [WrongServer(tiny_model("llama"))])


def test_all_processes_raise_and_only_the_first_one_talks(tmp_path):
    server = WrongServer(tiny_model("llama"), refuses=[2])
    policies = [tiny_model("llama", seed=1) for _ in range(3)]

    def on(rank: int, gather: Any) -> str:
        sync = WeightSync("run", tmp_path, gather, rank=rank, folder=tmp_path / "weights")
        sync.push(policies[rank], "run:0", [server])
        assert sync.label == "run:0" and server.updates == 1
        try:
            sync.push(policies[rank], "run:1", [server])
        except EngineError as error:
            return str(error)
        return ""

    texts = on_ranks(3, on)
    assert texts[0] and texts[0] == texts[1] == texts[2]


def test_a_full_disk_is_an_error_on_all_processes_before_a_server_sees_anything(tmp_path):
    server = WrongServer(tiny_model("llama"))
    (tmp_path / "file").write_text("")
    policies = [tiny_model("llama") for _ in range(2)]

    def on(rank: int, gather: Any) -> str:
        sync = WeightSync("run", tmp_path, gather, rank=rank, folder=tmp_path / "file")
        with pytest.raises(EngineError, match=r"There is no place for the weights.*weights_folder") as caught:
            sync.push(policies[rank], "run:0", [server])
        return str(caught.value)

    texts = on_ranks(2, on)
    assert texts[0] == texts[1] and server.updates == 0


def test_servers_of_different_dtypes_are_refused():
    one, two = (WrongServer(tiny_model("llama"), dtype).facts() for dtype in (torch.float32, torch.bfloat16))
    assert shared_dtype([two, two]) == torch.bfloat16
    with pytest.raises(EngineError, match="bfloat16 and float32"):
        shared_dtype([one, two])


def test_addresses_of_this_machine_are_told():
    assert (
        is_here("http://127.0.0.1:8000")
        and is_here("http://localhost:1")
        and not is_here("http://10.0.0.7:8000")
    )
