"""`covey engines check`: figures and an exit code for right servers, the fault and where for wrong ones."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM

from covey.cli import main
from covey.sample.remote.labels import new_label
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=3.0, tie_word_embeddings=True)


def test_a_right_server_is_described_proven_and_left_with_its_weights(folder, tmp_path, capsys):
    policy = AutoModelForCausalLM.from_pretrained(folder)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    with serving(policy, tiny_tokenizer()) as (server, _):
        words = [
            "engines",
            "check",
            server.url,
            "--model",
            folder,
            "--adapter",
            "--weights-folder",
            str(tmp_path),
        ]
        assert main(words) == 0
        said = capsys.readouterr().out
        for word in (
            "covey",
            "float32",
            "round trip",
            "MB written in",
            "nats a token",
            "Proving that weights reach the servers: group 1 of ",
            "Proving that adapters reach the servers: group 1 of ",
            "every tensor",
            "can be trained with",
        ):
            assert word in said
        assert all((tensor == before[name]).all() for name, tensor in policy.state_dict().items())
    assert not list(tmp_path.iterdir())


def test_vllm_is_told_by_its_routes_and_a_stale_tensor_is_found(folder, capsys):
    stale = {"stale_layer": "layers.1.self_attn.k_proj.bias"}
    with FakeVllm(folder, {"stale_head": True}) as right, FakeVllm(folder, stale) as wrong:
        assert main(["engines", "check", f"{right.url}/,{wrong.url}", "--model", folder]) == 1
    out, err = capsys.readouterr()
    assert out.count("can be trained with") == 1 and out.count("vllm") >= 2
    assert wrong.url in err and "layers.1" in err and "k_proj.bias" in err


def test_a_server_of_a_living_run_is_left_alone(folder, capsys):
    with serving(AutoModelForCausalLM.from_pretrained(folder), tiny_tokenizer()) as (server, http):
        http.queue.policy.label = str(new_label("somebody", 3))
        assert main(["engines", "check", server.url, "--model", folder]) == 1
    assert "the run 'somebody'" in capsys.readouterr().err


def test_nothing_at_an_address_is_status_3(folder, capsys):
    assert main(["engines", "check", "http://127.0.0.1:9", "--model", folder, "--timeout", "1"]) == 3
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_an_address_that_is_none_is_status_2(folder, capsys):
    assert main(["engines", "check", "http://n2:x", "--model", folder]) == 2
    assert "no address of a server" in capsys.readouterr().err
