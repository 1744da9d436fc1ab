"""Wrong, stale and foreign weights are found before a run learns from them; right ones raise no alarm."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from covey.errors import CoveyWarning, EngineError
from covey.sample.remote import canary
from covey.sample.remote.checks import Checks
from covey.sample.remote.weight_sync import WeightSync
from covey.sample.sampling import Sampling
from tests.families import tiny_of
from tests.ranks import alone
from tests.sample.native.families import family_model
from tests.sample.remote.wrong_server import WrongServer
from tests.tiny import tiny_model

BITS = (torch.float32, torch.bfloat16)
HALF = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
TWO: dict[str, dict[str, Any]] = {
    "Qwen2": HALF,
    "Llama": {"num_hidden_layers": 2},
    "Gemma2": HALF,
    "Gemma3": HALF,
    "Qwen3Moe": {"num_hidden_layers": 2, "mlp_only_layers": []},
    "GptOss": HALF,
    "Phi3": {"num_hidden_layers": 2},
    "Starcoder2": {"num_hidden_layers": 2},
}


def model(family: str = "Qwen2", **fields: Any) -> Any:
    return family_model(family, **{**TWO[family], "tie_word_embeddings": True, **fields})


@pytest.fixture
def start(tmp_path):
    """Runs the checks of a start; returns what they found wrong, and the checks."""
    made: list[WeightSync] = []

    def run(
        policy: Any, *servers: WrongServer, sampling: Sampling | None = None, **how: Any
    ) -> tuple[str, Checks]:
        sync = WeightSync("run", tmp_path, alone, folder=tmp_path, route=how.pop("route", "auto"))
        made.append(sync)
        checks = Checks(sync, sampling or Sampling(8, seed=3), **how)
        try:
            checks.start(policy, servers)
        except EngineError as error:
            return str(error), checks
        return "", checks

    yield run
    for sync in made:
        sync.close()


def lora(policy: Any, **config: Any) -> Any:
    torch.manual_seed(5)
    return get_peft_model(policy, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], **config))


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("family", ["fresh", *TWO])
def test_right_weights_raise_no_alarm_and_the_policy_is_put_back(start, family, dtype):
    policy = tiny_model("qwen2", tie_word_embeddings=True) if family == "fresh" else model(family)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    server = WrongServer(policy, dtype)
    wrong, checks = start(policy, server)
    assert not wrong
    assert checks.worst < (0.1 if dtype == torch.float32 else 0.7)
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for name, tensor in server.served.weights.items():
        assert torch.equal(tensor, before[name].to(dtype)), name


@pytest.mark.parametrize("dtype", BITS)
def test_every_single_stale_tensor_is_found_and_its_place_is_named(start, dtype):
    policy = model()
    for name in WrongServer(policy).served.weights:
        wrong, _ = start(policy, WrongServer(policy, dtype, stale=[name]))
        place = ".".join(name.split(".")[:3]) if ".layers." in name else name.rpartition(".")[0]
        place = "embed_tokens" if name == "lm_head.weight" else place
        leaf = ".".join(name.split(".")[-2:])
        assert "does not serve all weights" in wrong and place in wrong, (name, wrong)
        assert leaf in wrong or name == "lm_head.weight", (name, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("family", [f for f in TWO if f != "Qwen2"])
def test_every_single_stale_tensor_is_found_in_other_families(start, family, dtype):
    policy = model(family)
    missed = [
        name
        for name in WrongServer(policy).served.weights
        if not start(policy, WrongServer(policy, dtype, stale=[name]))[0]
    ]
    assert not missed


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "deepseek_v3", "falcon_h1", "gpt_neox", "mamba", "bloom"])
def test_layers_with_other_names_are_proven_too(start, family):
    policy = tiny_of(family)
    assert not start(policy, WrongServer(policy))[0]
    names = [n for n, p in policy.named_parameters() if p.ndim > 1]
    missed = [n for n in names if not start(policy, WrongServer(policy, stale=[n]))[0]]
    assert not missed


@pytest.mark.parametrize("dtype", BITS)
def test_a_tied_head_that_the_server_keeps_a_copy_of_is_found(start, dtype):
    policy = model("Llama")
    untied = model("Llama", tie_word_embeddings=False)
    untied.load_state_dict({**policy.state_dict(), "lm_head.weight": policy.lm_head.weight.detach().clone()})
    assert not start(policy, WrongServer(untied, dtype))[0]
    wrong, _ = start(policy, WrongServer(untied, dtype, stale=["lm_head.weight"]))
    assert "embed_tokens" in wrong and "the head shares the embedding's weight" in wrong


class ChaoticServer(WrongServer):
    """One whose rounding grows beyond its bounds where at least so many tensors are changed at once, as layers of SmolLM2 do."""

    chaos = 2

    def prompt_logprobs(self, ids, adapter=None):
        exact = super().prompt_logprobs(ids, adapter)
        changed = sum(
            not torch.equal(t, self.first[n]) for n, t in self.served.weights.items() if n != "lm_head.weight"
        )
        return [x + (1.0 if changed >= self.chaos else 0.0) * (-1) ** i for i, x in enumerate(exact)]


def test_where_many_changes_are_chaos_tensors_are_proven_one_by_one(start):
    policy = model("Llama")
    assert not start(policy, ChaoticServer(policy))[0]
    stale = "model.layers.1.mlp.up_proj.weight"
    wrong, _ = start(policy, ChaoticServer(policy, stale=[stale]))
    assert "does not serve all weights" in wrong and "(up_proj.weight): changing" in wrong


def test_chaos_of_a_single_tensor_is_no_proof(start):
    policy = model("Llama")
    server = ChaoticServer(policy)
    server.chaos = 1
    assert "does not serve all weights" in start(policy, server)[0]


def test_tensors_that_alone_show_no_more_than_rounding_prove_nothing(start, monkeypatch):
    monkeypatch.setattr(canary, "SHOWS", 1e9)
    policy = model("Llama")
    assert "does not serve all weights" in start(policy, ChaoticServer(policy))[0]


def swap_layers(weights: Any, before: Any) -> None:
    for name in list(weights):
        if ".layers.0." in name:
            first, second = weights[name].clone(), weights[name.replace(".0.", ".1.")]
            weights[name].copy_(second)
            second.copy_(first)


def drop_layer(weights: Any, before: Any) -> None:
    for name, tensor in weights.items():
        if ".layers.1." in name:
            tensor.copy_(before[name])


def damage_at_second_load(weights: Any, before: Any) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    if not torch.equal(weights[name], before[name]):
        weights[name][0] += 1


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("spoil", [swap_layers, drop_layer, damage_at_second_load])
def test_layers_that_are_dropped_swapped_or_damaged_by_a_second_load_are_found(start, spoil, dtype):
    policy = model("Llama")
    wrong, _ = start(policy, WrongServer(policy, dtype, spoil=spoil))
    assert "does not serve" in wrong or "does not come back" in wrong


@pytest.mark.parametrize("dtype", BITS)
def test_a_cache_of_old_keys_and_values_is_found(start, dtype):
    policy = model("Llama")
    wrong, _ = start(policy, WrongServer(policy, dtype, old_cache=True))
    assert "prefix cache is not emptied" in wrong


def test_a_server_that_was_given_other_weights_is_found_by_the_first_probe(start):
    policy = model("Llama")
    names = [n for n, _ in policy.named_parameters()]
    server = WrongServer(model("Llama", seed=1), stale=names)
    wrong, _ = start(policy, server, canary=False)
    assert "does not serve the policy's weights" in wrong and "weight_sync='files'" in wrong


def test_the_adapter_is_proven_layer_by_layer(start):
    policy = lora(model("Llama"))
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    server = WrongServer(model("Llama"))
    wrong, checks = start(policy, server)
    assert not wrong and checks.sync.route_taken == "adapter" and checks.worst < 0.1
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert len(server.served.adapters) <= 3 < len(server.adapters)


@pytest.mark.parametrize("leaf", ["q_proj", "v_proj", "down_proj"])
def test_a_layer_whose_adapter_is_left_out_is_found(start, leaf):
    class Deaf(WrongServer):
        def load_adapter(self, name, folder):
            super().load_adapter(name, folder)
            for path, module in self.served.adapted.named_modules():
                if f"layers.1.self_attn.{leaf}" in path or f"layers.1.mlp.{leaf}" in path:
                    for up in getattr(module, "lora_B", {}).values():
                        up.weight.data.zero_()

    wrong, _ = start(lora(model("Llama")), Deaf(model("Llama")))
    assert "the adapter of" in wrong and leaf in wrong


def test_an_adapter_under_an_old_name_is_found(start):
    class Sticky(WrongServer):
        def load_adapter(self, name, folder):
            self.kept = getattr(self, "kept", folder)
            super().load_adapter(name, self.kept if self.kept.exists() else folder)

    wrong, _ = start(lora(model("Llama")), Sticky(model("Llama")))
    assert "the adapter of" in wrong


@pytest.mark.parametrize("made", [model, lambda family: lora(model(family))], ids=["weights", "adapters"])
@pytest.mark.parametrize("seconds", [0.0, 4.0, 1e6])
def test_a_proof_that_takes_long_says_how_far_it_is(start, monkeypatch, seconds, made):
    """Its clock moves on by so many seconds each time that it is asked: one line before the first change, then each ten seconds."""
    asked, lines = [], []
    monkeypatch.setattr(
        canary, "time", SimpleNamespace(monotonic=lambda: asked.append(1) or len(asked) * seconds)
    )
    policy = made("Llama")
    assert not start(policy, WrongServer(model("Llama")), say=lines.append)[0]
    every = {0.0: len(asked), 4.0: 3, 1e6: 1}[seconds]
    assert len(lines) == math.ceil(len(asked) / every)
    what = "weights" if made is model else "adapters"
    assert (
        lines[0].startswith(f"Proving that {what} reach the servers: group 1 of ") and "layers.0" in lines[0]
    )
    count = int(lines[0].split(" of ")[1].split()[0])
    numbers = [int(line.split("group ")[1].split()[0]) for line in lines]
    assert numbers == sorted(numbers) and (seconds != 1e6 or set(numbers) == set(range(1, count + 1)))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("token", [10**6, -1])
def test_ids_that_the_policy_does_not_have_end_the_start_wherever_it_draws(start, number, token):
    """The text that is scored, the draws that are compared, and those behind the long prompt."""

    class Foreign(WrongServer):
        draws = 0

        def draw(self, request):
            drawn = super().draw(request)
            if self.draws == number:
                drawn[0] = replace(drawn[0], ids=(token, *drawn[0].ids[1:]))
            self.draws += 1
            return drawn

    policy = model("Llama")
    wrong, _ = start(policy, Foreign(policy))
    assert f"id {token} came" in wrong and "another model is served" in wrong


@pytest.mark.parametrize("options", [{"temperature": 0.6}, {"top_k": 5, "temperature": 0.8}, {"top_p": 0.5}])
def test_log_probabilities_before_the_temperature_are_told_by_what_is_drawn(start, options):
    policy = model("Llama")
    sampling = Sampling(8, seed=3, **options)
    assert not start(policy, WrongServer(policy), sampling=sampling, canary=False)[0]
    wrong, _ = start(policy, WrongServer(policy, raw=True), sampling=sampling, canary=False)
    assert "--logprobs-mode processed_logprobs" in wrong


def test_options_of_sampling_are_compared_exactly(start):
    policy = model("Llama")
    sampling = Sampling(
        8,
        seed=3,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.01,
        repetition_penalty=1.3,
        min_new_tokens=4,
        stop_ids=(2, 3),
        suppress_tokens=(9,),
    )
    assert not start(policy, WrongServer(policy), sampling=sampling, canary=False)[0]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"max_length": 40}, "--max-model-len 64"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"kind": "vllm", "chunks_prompts": True}, "--no-enable-chunked-prefill"),
        ({"drafts_tokens": True}, "speculative"),
    ],
)
def test_facts_that_do_not_fit_the_run_end_it(start, facts, said):
    policy = model("Llama")
    wrong, _ = start(policy, WrongServer(policy, **facts), sampling=Sampling(8, temperature=0.5), longest=64)
    assert said in wrong


def test_two_servers_are_proven_together_and_the_wrong_one_is_named(start):
    policy = model("Llama")
    right = WrongServer(policy, url="http://one")
    wrong, _ = start(policy, right, WrongServer(policy, url="http://two", stale=["model.norm.weight"]))
    assert "http://two" in wrong and "http://one" not in wrong


def test_a_probe_sends_once_more_and_then_ends_the_run_with_both_numbers(tmp_path):
    policy = model("Llama")
    sync = WeightSync("run", tmp_path, alone, folder=tmp_path)
    checks = Checks(sync, Sampling(8))
    server = WrongServer(policy)
    checks.start(policy, [server])
    sync.push(policy, "1", [server])
    checks.probe(policy, [server])
    server.served.weights["model.norm.weight"].data.mul_(2)  # lost once: the second sending mends it
    checks.probe(policy, [server])
    with torch.no_grad():
        policy.model.norm.weight.mul_(3)
    server.stale = ["model.norm.weight"]
    sync.push(policy, "2", [server])
    with pytest.raises(
        EngineError,
        match=r"nats a token from the trainer's .*before the weights were sent once more: [\d.]+.*weight_sync='files'",
    ):
        checks.probe(policy, [server])
    sync.close()


def to_eight_bits(weights: Any, before: Any) -> None:
    for name, tensor in weights.items():
        if tensor.ndim == 2 and "embed" not in name and "lm_head" not in name:
            scale = tensor.float().abs().amax(1, keepdim=True) / 127
            tensor.copy_((tensor.float() / scale).round() * scale)


def test_a_server_that_quantises_is_warned_of_and_stale_weights_are_found_there(start):
    """Report 29."""
    policy = model("Llama")
    how: Any = dict(dtype=torch.bfloat16, spoil=to_eight_bits, quantization="eight bits")
    with pytest.warns(CoveyWarning, match=r"quantises its weights \(eight bits\)"):
        wrong, checks = start(policy, WrongServer(policy, **how))
    assert not wrong and checks.gap > 0
    stale = ["model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"]
    for name in stale:
        with pytest.warns(CoveyWarning):
            wrong, _ = start(policy, WrongServer(policy, **how, stale=[name]))
        assert "does not serve all weights" in wrong and "quantises to eight bits" in wrong
