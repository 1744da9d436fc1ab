"""Captured steps, with a capture that repeats the work on the CPU: what a CUDA graph does, on the same fixed tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from covey.kernels import linear as projections
from covey.sample.engine import in_order
from covey.sample.native import cuda_graphs
from covey.sample.native import engine as native
from covey.sample.native import weights as weights_module
from covey.sample.native.cuda_graphs import Graphs
from covey.sample.native.decode_loop import DecodeOptions, decode_loop
from covey.sample.native.engine import NativeEngine
from covey.sample.native.sequences import SequenceTable
from covey.sample.native.weights import refill, weights_of
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.sample.native.books import check_pool
from tests.tiny import EOS, PAD, tiny_model

SETTINGS = Sampling(max_new_tokens=70, stop_ids=(EOS, 17, 30), padding_id=PAD, seed=4)
PROMPTS = [Prompt("", tuple(range(10 + i, 16 + 3 * i)), {}, i, (i, 0)) for i in range(5)]


def text(ids):
    return ""


@pytest.fixture
def captures(monkeypatch):
    """Keys of what was captured."""
    made = []

    def capture(work, memory):
        result = work()
        made.append(tuple(result.shape))
        return (lambda: result.copy_(work())), result, None

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(native, "GRAPHED", ("cpu",))
    monkeypatch.setattr(projections, "can_pack", lambda weight: False)  # as on an accelerator
    return made


def engine_of(model, **options):
    engine = NativeEngine(text, path="fast", shares_prompts=False, **options)
    engine.load(model)
    return engine


def ids_of(engine, prompts=PROMPTS, size=4, settings=SETTINGS):
    return [
        [c.ids for c in g.completions] for g in in_order(prompts, engine.generate(prompts, size, settings))
    ]


@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"max_sequences": 6}], ids=str)
def test_captured_steps_say_the_same(captures, options):
    model = tiny_model("qwen2", scale=1.5)
    expected = ids_of(general(model))
    assert len({len(ids) for group in expected for ids in group}) > 5
    engine = engine_of(model, **options)
    assert ids_of(engine) == expected and captures
    number = len(captures)
    assert ids_of(engine) == expected
    assert len(captures) == number, "the second call replays the graphs of the first"


def general(model):
    engine = NativeEngine(text, path="general")
    engine.load(model)
    return engine


def adapted():
    """A policy whose adapter is not zero: its layers are merged into copies, and the rest is read in place."""
    policy = get_peft_model(
        tiny_model("qwen2", scale=1.5), LoraConfig(r=2, target_modules=["q_proj", "down_proj"])
    )
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    return policy


POLICIES = {
    "float32": lambda: tiny_model("qwen2", scale=1.5),
    "bfloat16": lambda: tiny_model("qwen3", scale=1.5).to(torch.bfloat16),
    "lora": adapted,
    "bfloat16 lora": lambda: adapted().to(torch.bfloat16),
}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", POLICIES)
def test_graphs_read_the_weights_of_now(captures, kind, in_place):
    model = POLICIES[kind]()
    engine = engine_of(model, in_place=in_place)
    before = ids_of(engine)
    kept = engine.graphs
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    changed = {name: value.clone() for name, value in model.state_dict().items()}
    engine.load(model)
    number = len(captures)
    after = ids_of(engine)
    assert engine.graphs is kept and len(captures) - number < number, "not captured again"
    assert after == ids_of(engine_of(model, in_place=in_place)) != before
    assert all(torch.equal(value, changed[name]) for name, value in model.state_dict().items())


def test_longer_texts_and_more_sequences_get_new_slots(captures):
    model = tiny_model("llama", scale=1.5)
    engine = engine_of(model)
    ids_of(engine, PROMPTS[:1], 1)
    small = engine.graphs
    longer = replace(SETTINGS, max_new_tokens=150)
    assert ids_of(engine, settings=longer) == ids_of(general(model), settings=longer)
    assert engine.graphs is not small
    big = engine.graphs
    ids_of(engine, PROMPTS[:2], 2)
    assert engine.graphs is big


def test_all_graphs_leave_their_logits_in_one_place(captures):
    model = tiny_model("llama", scale=1.5)
    engine = engine_of(model)
    ids_of(engine)
    kept = engine.graphs
    assert len(kept.captured) > 3
    assert {c.logits.untyped_storage().data_ptr() for c in kept.captured.values()} == {
        kept.results.data_ptr()
    }
    assert kept.bytes == kept.pool.bytes + kept.slots * model.config.vocab_size * 4


def test_slots_and_logits_keep_to_the_budget(captures):
    """The logits of a row take more than its slot, as with a large vocabulary and short texts."""
    model = tiny_model("llama", scale=1.5)
    model.resize_token_embeddings(1 << 14, mean_resizing=False)
    short = replace(SETTINGS, max_new_tokens=6)
    free = engine_of(model)
    expected = ids_of(free, settings=short)
    assert free.graphs.results.nbytes > free.graphs.pool.bytes
    for budget in (free.graphs.bytes // 2, free.graphs.bytes // 4):
        engine = engine_of(model, memory=budget)
        assert ids_of(engine, settings=short) == expected
        # The number of slots is rounded up to one that recurs.
        assert engine.graphs.bytes <= 1.25 * budget


def test_a_call_that_is_given_up_leaves_no_slots_behind(captures):
    model = tiny_model("llama", scale=1.5)
    engine = engine_of(model)
    expected = ids_of(engine)
    groups = engine.generate(PROMPTS, 4, SETTINGS)
    next(groups)
    groups.close()
    assert ids_of(engine) == expected


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("place", ["mlp.down_proj", "input_layernorm"])
def test_moved_weights_of_the_policy_are_not_written_to(place, in_place):
    """Weights that are read in place are rebuilt where the policy's tensors have moved, not copied to the old place."""
    model = tiny_model("llama")
    weights = weights_of(model, torch.float32, in_place, may_pack=False)
    assert refill(weights, model)
    module = model.model.layers[0].get_submodule(place)
    old = module.weight.data
    before = old.clone()
    module.weight.data = old + 1
    assert not refill(weights, model)
    assert torch.equal(old, before)


def test_weights_are_gathered_in_one_order(monkeypatch):
    """A process without graphs reads anew while others fill again; gathering a shard takes all of them at once."""
    model, read = tiny_model("qwen2"), []
    original = weights_module.merged_weights
    monkeypatch.setattr(
        weights_module, "merged_weights", lambda module: read.append(module) or original(module)
    )
    weights = weights_of(model, torch.float32, in_place=False, may_pack=False)
    anew = list(read)
    read.clear()
    assert refill(weights, model)
    assert read == anew and len(anew) > 10


def test_who_has_ended_may_be_looked_at_seldom():
    """Between two looks ended sequences are decoded on; what they say then is dropped."""
    model = tiny_model("qwen2", scale=1.5)
    expected = ids_of(general(model))
    with torch.no_grad():
        weights = weights_of(model, torch.float32, in_place=True)
    for interval in (3, 8, 50):
        table = SequenceTable(PROMPTS, 4, SETTINGS, text, weights.device)
        options = DecodeOptions(1 << 30, 7, shares_prompts=False, interval=interval)
        groups = in_order(PROMPTS, decode_loop(weights, table, options))
        assert [[c.ids for c in g.completions] for g in groups] == expected


def test_a_fixed_pool_stays_where_it_is():
    weights = weights_of(tiny_model("llama"), torch.float32, in_place=True)
    kept = Graphs(weights, 5, 64)
    places = [t.data_ptr() for t in (*kept.pool.keys, *kept.pool.values)]
    kept.pool.claim([1, 2, 3, 4, 5])
    for owner in (1, 2, 4):
        kept.pool.release(owner)
    kept.pool.compact()
    check_pool(kept.pool)
    assert [t.data_ptr() for t in (*kept.pool.keys, *kept.pool.values)] == places
    with pytest.raises(AssertionError):
        kept.pool.claim(range(10, 20))
