"""Memory by phase: the arithmetic against tensors that are really kept, and how it moves with settings."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from covey.forecast import memory
from covey.forecast.memory import Demand, Sizes, layer_bytes, offloaded, peak, phases, totals
from covey.kernels import head_logprobs as head
from covey.types import Completion, Prompt
from covey.update.forward import Forward
from covey.update.micro_batch import micro_batch
from covey.update.oom_retry import TokenBudget, tokens_read
from covey.update.samples import Sample
from tests.tiny import tiny_model

SIZES = Sizes(
    weights=1000,
    trained=1000,
    quantised=0,
    layers=4,
    hidden=8,
    intermediate=16,
    queries=8,
    keys=4,
    vocabulary=50,
)
DEMAND = Demand(completions=8, group=4, sampled=16, prompt_tokens=10, completion_tokens=20)


def batch(prompt_tokens=20, completion_tokens=40, group=4):
    prompt = Prompt("x", tuple(10 + i % 80 for i in range(prompt_tokens)), {}, row=0)
    ids = [tuple(10 + (7 * i + j) % 80 for j in range(completion_tokens)) for i in range(group)]
    completions = [Completion(i, (-1.0,) * completion_tokens, "t", "stop") for i in ids]
    return micro_batch([Sample(prompt, c, 1.0, 0) for c in completions], range(group), [1.0] * group)


def bytes_kept_by(model, work, lowered):
    """What work on a model keeps for the backward pass, without the weights and their casts."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {p.shape for p in model.parameters()} | {p.t().shape for p in model.parameters() if p.ndim == 2}
    kept = {}

    def pack(tensor):
        is_cast = tensor.dtype == torch.bfloat16 and tensor.shape in shapes
        if tensor.untyped_storage().data_ptr() not in weights and not is_cast:
            kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    precision = torch.autocast("cpu", dtype=torch.bfloat16) if lowered else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), precision:
        work()
    return sum(size for size, _ in kept.values())


def kept_bytes(layers, is_checkpointed=False, lowered=False, **sizes):
    """What the forward pass of an update keeps for the backward pass."""
    model = tiny_model("qwen2", num_hidden_layers=layers, **sizes).train()
    if is_checkpointed:
        switch = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        switch()
    forward = Forward(model)
    forward.is_due = False
    return bytes_kept_by(model, lambda: forward(model, batch()), lowered)


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize(
    ("hidden", "intermediate", "heads", "width"),
    [(128, 512, 4, 32), (256, 512, 4, 32), (128, 1024, 4, 32), (128, 512, 8, 32)],
)
def test_what_a_layer_keeps_is_what_was_counted(hidden, intermediate, heads, width, lowered):
    given = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": width,
    }
    counted = kept_bytes(3, lowered=lowered, **given) - kept_bytes(2, lowered=lowered, **given)
    tokens = 20 + 4 * 39
    sizes = replace(SIZES, hidden=hidden, intermediate=intermediate, queries=heads * width, keys=2 * width)
    assert counted == pytest.approx(tokens * layer_bytes(sizes, 2 if lowered else 4), rel=0.02)


def test_with_checkpointing_a_layer_keeps_its_input_alone():
    counted = kept_bytes(3, is_checkpointed=True) - kept_bytes(2, is_checkpointed=True)
    assert counted == (20 + 4 * 39) * 32 * 4  # tokens, hidden units, float32


def test_worked_numbers():
    # By hand: 1000 weights of 4 bytes; Adam 8; no reference. A micro-batch has 2 × 10 + 8 × 20 = 180 tokens; a layer keeps
    # 24 × 8 + 2 × 4 × (8 + 4) + 4 × 4 × 16 = 544 bytes of each, its input 8 × 4; keys and values 2 × 4 × 4 × 4 = 128 per token.
    found = phases(SIZES, replace(DEMAND, is_cpu=True))
    assert found["always"]["weights"] == 4000 and found["always"]["optimizer"] == 8000
    assert "reference" not in found["always"]
    assert found["update"]["gradients"] == 4000
    assert found["update"]["activations"] == 180 * (4 * 32 + 2 * 544)
    assert found["sample"]["keys and values"] == 128 * (4 * 10 + 16 * 20)
    plain = phases(SIZES, replace(DEMAND, is_checkpointed=False))
    assert plain["update"]["activations"] == 180 * 544 * 4
    assert totals(found)["update"] == sum(found["always"].values()) + sum(found["update"].values())


@pytest.mark.parametrize(
    "more",
    [
        {"completions": 16},
        {"completion_tokens": 40},
        {"prompt_tokens": 20},
        {"is_checkpointed": False},
        {"has_reference": True},
        {"optimizer_bytes": 12},
    ],
)
def test_more_of_anything_takes_more(more):
    assert peak(SIZES, replace(DEMAND, **more)) > peak(SIZES, DEMAND)


def test_an_adapter_and_four_bits_take_less():
    adapter = replace(SIZES, weights=1100, trained=100)
    assert peak(adapter, DEMAND) < peak(SIZES, DEMAND)
    quantised = replace(adapter, quantised=900)
    assert peak(quantised, replace(DEMAND, quantised_bytes=0.5)) < peak(adapter, DEMAND)


def test_keys_and_values_stay_within_the_budget():
    found = phases(SIZES, replace(DEMAND, is_cpu=True, budget=1000))
    assert found["sample"]["keys and values"] == 1000


def test_a_limit_of_tokens_bounds_a_forward_pass():
    # A micro-batch has 180 tokens, one completion with its prompt 30.
    tokens = [replace(DEMAND, max_tokens=limit).packed_tokens for limit in (None, 1000, 100, 5)]
    assert tokens == [180, 180, 100, 30]
    assert replace(DEMAND, max_tokens=100).scored_tokens == 90 and DEMAND.scored_tokens == 160
    limited = phases(SIZES, replace(DEMAND, max_tokens=90))
    assert limited["update"]["activations"] == phases(SIZES, DEMAND)["update"]["activations"] / 2
    assert limited["update"]["vocabulary"] < phases(SIZES, DEMAND)["update"]["vocabulary"]


@pytest.mark.parametrize("limit", [20, 31, 50, 77, 130, 400])
@pytest.mark.parametrize("lengths", [(20, 40), (3, 11), (30, 5)])
def test_no_part_of_a_micro_batch_reads_more_than_was_reckoned(limit, lengths):
    whole = batch(*lengths, group=6)
    demand = Demand(6, 6, 6, *lengths, max_tokens=limit)
    parts = TokenBudget(limit).cut(whole)
    assert max(tokens_read(p, range(p.num_rows)) for p in parts) <= demand.packed_tokens
    assert max(len(p.targets) for p in parts) <= demand.scored_tokens


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_what_is_offloaded_leaves_the_device_and_is_held_by_the_host(is_checkpointed):
    large = replace(DEMAND, completion_tokens=8000, is_checkpointed=is_checkpointed)
    away = replace(large, is_offloaded=True)
    held = [phases(SIZES, d)["update"]["activations"] for d in (large, away)]
    tokens, layer = large.packed_tokens, layer_bytes(SIZES, 4)
    assert held[1] == tokens * 2 * layer < held[0]
    assert offloaded(SIZES, away) == tokens * 4 * (4 * 8 if is_checkpointed else layer) and not offloaded(
        SIZES, large
    )
    # Tensors below 1 MiB stay, and on a CPU there is nowhere to go.
    small = replace(DEMAND, is_offloaded=True)
    assert peak(SIZES, small) == peak(SIZES, DEMAND) and not offloaded(SIZES, small)
    assert peak(SIZES, replace(away, is_cpu=True)) == peak(SIZES, replace(large, is_cpu=True))


def test_the_head_is_reckoned_with_its_own_limits():
    """The forecast has them written down, because it is read without torch."""
    assert (memory.LOGITS, memory.KEPT) == (head.CHUNK_BYTES, head.KEPT_BYTES)
