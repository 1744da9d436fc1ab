"""Weights as modules compute with them: adapters added, in the engine's copy and never in the policy."""

from __future__ import annotations

import copy
import sys
import types

import pytest
import torch
from peft import LoHaConfig, LoraConfig, PrefixTuningConfig, TaskType, get_peft_model
from torch import nn

from covey.sample.native.architectures import unsupported_reason
from covey.sample.native.merged_weights import merged_weights
from tests.tiny import tiny_model

TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]


def adapted(config=None, **kwargs):
    """A policy in an adapter whose weights are not zero, so that forgetting it is seen."""
    model = tiny_model("qwen2", scale=2.0)
    policy = get_peft_model(model, config or LoraConfig(r=4, lora_alpha=12, target_modules=TARGETS, **kwargs))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad and "magnitude" not in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return policy.eval()


ADAPTERS = {
    "lora": lambda: adapted(),
    "rslora": lambda: adapted(use_rslora=True),
    "dora": lambda: adapted(use_dora=True),
    "lora with bias": lambda: adapted(lora_bias=True),
    "lora on embeddings": lambda: adapted(LoraConfig(r=4, target_modules=["embed_tokens", "k_proj"])),
    "lora with a trained head": lambda: adapted(modules_to_save=["lm_head", "norm"]),
    "loha": lambda: adapted(LoHaConfig(r=2, alpha=4, target_modules=TARGETS)),
}


def linear_inputs(policy):
    """Every linear layer of the policy, with an input for it."""
    for name, module in policy.named_modules():
        is_inner = (
            ".base_layer" in name or ".lora_" in name or ".modules_to_save" in name or "original" in name
        )
        weight = getattr(module, "weight", None)
        if not is_inner and isinstance(weight, torch.Tensor) and weight.ndim == 2 and "embed" not in name:
            yield name, module, torch.randn(3, weight.shape[1])


@pytest.mark.parametrize("kind", ADAPTERS)
def test_effective_weights_compute_what_the_module_computes(kind):
    policy = ADAPTERS[kind]()
    checked = 0
    with torch.no_grad():
        for name, module, rows in linear_inputs(policy):
            weight, bias = merged_weights(module)
            torch.testing.assert_close(
                nn.functional.linear(rows, weight, bias), module(rows), atol=1e-5, rtol=1e-5, msg=name
            )
            checked += 1
        embedding = policy.get_base_model().model.embed_tokens
        ids = torch.arange(20)
        torch.testing.assert_close(merged_weights(embedding)[0][ids], embedding(ids))
    assert checked >= 14


@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_policy_is_not_touched(kind):
    policy = ADAPTERS[kind]()
    before = {name: (value.data_ptr(), value.clone()) for name, value in policy.state_dict().items()}
    modules = [type(m) for m in policy.modules()]
    with torch.no_grad():
        for _, module, _ in linear_inputs(policy):
            merged_weights(module)
        merged_weights(policy.get_base_model().model.embed_tokens)
    assert [type(m) for m in policy.modules()] == modules
    for name, value in policy.state_dict().items():
        assert value.data_ptr() == before[name][0] and torch.equal(value, before[name][1]), name
    assert not any(getattr(m, "merged", False) for m in policy.modules())


def test_plain_weights_are_not_copied():
    model = tiny_model()
    linear = model.model.layers[0].self_attn.q_proj
    weight, bias = merged_weights(linear)
    assert weight.data_ptr() == linear.weight.data_ptr() and bias.data_ptr() == linear.bias.data_ptr()


def test_switched_off_and_merged_adapters_are_not_added_again():
    policy = adapted()
    module = policy.get_base_model().model.layers[0].self_attn.q_proj
    base, with_adapter = module.base_layer.weight.detach().clone(), merged_weights(module)[0].detach().clone()
    assert not torch.allclose(base, with_adapter, atol=1e-3)
    with policy.disable_adapter():
        assert torch.equal(merged_weights(module)[0], base)
    policy.merge_adapter()
    torch.testing.assert_close(merged_weights(module)[0], with_adapter)
    policy.unmerge_adapter()
    torch.testing.assert_close(merged_weights(module)[0], with_adapter)


def test_two_active_adapters_are_both_added():
    policy = adapted()
    policy.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    policy.base_model.set_adapter(["default", "second"])
    module = policy.get_base_model().model.layers[1].self_attn.q_proj
    rows = torch.randn(2, 32)
    with torch.no_grad():
        torch.testing.assert_close(nn.functional.linear(rows, *merged_weights(module)), module(rows))


def test_virtual_tokens_take_the_general_path():
    config = PrefixTuningConfig(num_virtual_tokens=3, task_type=TaskType.CAUSAL_LM)
    assert "virtual tokens" in unsupported_reason(get_peft_model(tiny_model(), config))


def test_shards_are_gathered(monkeypatch):
    """Stand-ins for DTensor (FSDP2) and for DeepSpeed's sharded parameters: what is read is the whole."""
    whole = torch.randn(4, 3)

    class Shard(nn.Parameter):
        def full_tensor(self):
            return whole

    linear = nn.Linear(3, 4, bias=False)
    linear.weight = Shard(whole[:2].clone())
    assert torch.equal(merged_weights(linear)[0], whole)

    opened = []

    class Gathered:
        def __init__(self, parameters):
            self.parameters = list(parameters)

        def __enter__(self):
            opened.append(len(self.parameters))
            for parameter in self.parameters:
                parameter.data = whole

        def __exit__(self, *_):
            for parameter in self.parameters:
                parameter.data = torch.empty(0)

    zero = types.SimpleNamespace(GatheredParameters=Gathered)
    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(zero=zero))
    linear = nn.Linear(3, 4, bias=False)
    linear.weight.data = torch.empty(0)
    linear.weight.ds_id = 7
    weight = merged_weights(linear)[0]
    assert torch.equal(weight, whole) and opened == [1] and linear.weight.numel() == 0


def test_a_subclass_that_computes_something_else_is_not_taken_for_the_family():
    model = tiny_model("llama")
    assert unsupported_reason(model) is None

    class Other(type(model)):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    class Wrapped(type(model)):
        """What FSDP2 makes of a model: a class of its own with the same forward pass."""

    other, wrapped = copy.deepcopy(model), copy.deepcopy(model)
    other.__class__, wrapped.__class__ = Other, Wrapped
    assert unsupported_reason(other) is not None and unsupported_reason(wrapped) is None


def test_four_bit_weights_are_dequantised():
    bnb = pytest.importorskip("bitsandbytes")
    plain = nn.Linear(64, 32)
    layer = bnb.nn.Linear4bit(64, 32, quant_type="nf4", compute_dtype=torch.float32)
    layer.load_state_dict(plain.state_dict())
    layer = layer.to("cpu")
    rows = torch.randn(3, 64)
    weight, bias = merged_weights(layer)
    torch.testing.assert_close(nn.functional.linear(rows, weight.float(), bias), layer(rows))
