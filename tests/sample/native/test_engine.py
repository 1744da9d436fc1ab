"""Which path a policy takes, what it computes in, and what it may take of the machine."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model

from covey.errors import CoveyWarning, EngineError
from covey.sample.engine import in_order
from covey.sample.native import decode_loop
from covey.sample.native import engine as native
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.tiny import EOS, PAD, tiny_model

SETTINGS = Sampling(max_new_tokens=10, stop_ids=(EOS,), padding_id=PAD, seed=2)
PROMPTS = [Prompt("", tuple(range(10 + i, 14 + 3 * i)), {}, i, (i, 0)) for i in range(4)]


def text(ids):
    return " ".join(map(str, ids))


def ids_of(engine, prompts=PROMPTS, size=3, settings=SETTINGS):
    groups = in_order(prompts, engine.generate(prompts, size, settings))
    return [[c.ids for c in group.completions] for group in groups]


def engine_of(model, **options):
    engine = NativeEngine(text, **options)
    engine.load(model)
    return engine


# --- which path -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_the_family_takes_the_fast_path(kind):
    engine = engine_of(tiny_model(kind), path="fast")
    ids_of(engine)
    assert engine.reason is None and engine.weights is not None


def test_other_models_take_the_general_path_without_a_word():
    engine = engine_of(tiny_model("gpt2"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoveyWarning)
        ids_of(engine)
    assert "GPT2" in engine.reason and engine.weights is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "positions"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "positions"),
    ],
)
def test_what_the_fast_path_does_not_know_is_an_error_where_it_is_asked_for(config, reason):
    with pytest.raises(EngineError, match=reason):
        ids_of(engine_of(tiny_model("llama", **config), path="fast"))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 5e4,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4},
    ],
    ids=lambda r: r["rope_type"],
)
def test_scaled_positions_are_those_of_the_model(rope):
    model = tiny_model("llama", scale=3.0, rope_parameters=rope)
    assert ids_of(engine_of(model, path="fast")) == ids_of(engine_of(model, path="general"))


def test_biases_ties_and_head_sizes_are_read_from_the_model():
    for config in (
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"head_dim": 12},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    ):
        model = tiny_model("llama", scale=2.0, **config)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        assert ids_of(engine_of(model, path="fast")) == ids_of(engine_of(model, path="general")), config


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prefill_tokens": 7}, ["prefill_tokens=7"]),
        ({"shares_prompts": True, "prompt_lookup": True}, ["shares_prompts=True", "prompt_lookup=True"]),
        ({"dtype": torch.bfloat16, "in_place": False}, ["dtype=torch.bfloat16", "in_place=False"]),
        ({"dtype": torch.float32, "shares_prompts": False, "prompt_lookup": False, "in_place": True}, []),
        ({"memory": 10**6, "max_sequences": 2}, []),
    ],
    ids=str,
)
def test_options_without_effect_on_the_general_path_are_named_once(options, named):
    """Not those that ask for what that path does anyway."""
    for model, path in ((tiny_model("gpt2"), "auto"), (tiny_model("qwen2"), "general")):
        engine = engine_of(model, path=path, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CoveyWarning)
            for _ in range(2):
                ids_of(engine, PROMPTS[:1])
        texts = [str(w.message) for w in caught if w.category is CoveyWarning]
        assert len(texts) == bool(named) and all(name in texts[0] for name in named)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoveyWarning)
        ids_of(engine_of(tiny_model("qwen2"), path="fast", **options))


@pytest.fixture
def processes(monkeypatch):
    """Tells that there are two of them."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)


def sharded(model):
    """As FSDP2 makes it: parameters know how to gather themselves."""
    for parameter in model.parameters():
        parameter.full_tensor = lambda whole=parameter: whole.data
    return model


@pytest.mark.parametrize("prompts", [PROMPTS, []], ids=["with prompts", "without"])
def test_sharded_weights_are_refused_where_processes_would_wait_for_each_other(processes, prompts):
    """On every process alike, whatever its prompts are."""
    for model, options in ((tiny_model("gpt2"), {}), (tiny_model("qwen2"), {"path": "general"})):
        assert not prompts or ids_of(engine_of(model, **options))
        with pytest.raises(EngineError, match=r"FSDP2 or ZeRO-3.*covey serve MODEL.*engine_urls=.*use DDP"):
            ids_of(engine_of(sharded(model), **options), prompts)
    model = tiny_model("gpt2")
    next(model.parameters()).ds_id = 1
    with pytest.raises(EngineError, match=r"GPT2.*is not of a family"):
        ids_of(engine_of(model), prompts)


def test_sharded_weights_take_the_fast_path(processes):
    model = tiny_model("mistral", scale=3.0, sliding_window=12)
    expected = ids_of(engine_of(model, path="fast"))
    assert ids_of(engine_of(sharded(model))) == expected


def test_a_fast_path_that_computes_something_else_is_not_used(monkeypatch):
    """The check sees a wrong scale of the scores; one warning, and samples are those of the general path."""
    model = tiny_model("qwen2", scale=3.0)
    expected = ids_of(engine_of(model, path="general"))

    def wrong(*args, **kwargs):
        weights = native_weights_of(*args, **kwargs)
        return replace(weights, embedding=1.3 * weights.embedding)

    native_weights_of = native.weights_of
    monkeypatch.setattr(native, "weights_of", wrong)
    engine = NativeEngine(text)
    with pytest.warns(CoveyWarning, match="general path") as caught:
        for _ in range(3):
            engine.load(model)
            assert ids_of(engine) == expected
    assert len([w for w in caught if w.category is CoveyWarning]) == 1
    with pytest.raises(EngineError, match="nats"):
        ids_of(engine_of(model, path="fast"))


def test_the_check_is_made_once_where_weights_stay(monkeypatch):
    calls = []
    gap = native.selfcheck.gap
    monkeypatch.setattr(native.selfcheck, "gap", lambda *a: calls.append(1) or gap(*a))
    engine, model = NativeEngine(text), tiny_model()
    engine.load(model)
    for _ in range(3):
        ids_of(engine)
    assert len(calls) == 1
    engine.load(tiny_model("llama"))
    ids_of(engine)
    assert len(calls) == 2


# --- precision --------------------------------------------------------------------------------------------------------


def test_the_dtype_is_that_of_autocast_or_of_the_weights():
    bf16 = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    for model, autocast, expected in (
        (tiny_model(), nullcontext, torch.float32),
        (tiny_model(), bf16, torch.bfloat16),
        (tiny_model().to(torch.bfloat16), nullcontext, torch.bfloat16),
    ):
        engine = engine_of(model, autocast=autocast, path="fast")
        ids_of(engine)
        assert engine.weights.dtype == expected
    engine = engine_of(tiny_model().to(torch.bfloat16), dtype=torch.float32, path="fast")
    ids_of(engine)
    assert engine.weights.dtype == torch.float32


@pytest.mark.parametrize("options", [{}, {"shares_prompts": False, "in_place": True}], ids=str)
def test_bfloat16_logprobs_are_near_those_of_float32(options):
    """Rounding to 8 bits moves log-probabilities of this model by less than 0.1; a mistake moves them by nats."""
    model = tiny_model("qwen2", scale=2.0)
    groups = list(
        engine_of(model, dtype=torch.bfloat16, path="fast", **options).generate(PROMPTS, 8, SETTINGS)
    )
    gaps = []
    with torch.no_grad():
        for group in groups:
            for completion in group.completions:
                ids = torch.tensor([[*group.prompt.ids, *completion.ids]])
                full = torch.log_softmax(model(ids).logits[0, len(group.prompt.ids) - 1 : -1], -1)
                own = full[torch.arange(len(completion.ids)), torch.tensor(completion.ids)]
                gaps.append((own - torch.tensor(completion.plain_logprobs)).abs())
    assert torch.cat(gaps).mean() < 0.05


def test_an_adapted_policy_is_sampled_with_its_adapter():
    policy = get_peft_model(tiny_model("qwen2", scale=2.0), LoraConfig(r=4, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3, generator=generator)
    plain = ids_of(engine_of(tiny_model("qwen2", scale=2.0), path="fast"))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    adapted = ids_of(engine_of(policy, path="fast"))
    assert adapted == ids_of(engine_of(policy, path="general")) and adapted != plain
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


@pytest.mark.parametrize("give_back", ["release", "sleep"])
def test_the_copy_is_given_back_and_sampling_makes_it_again(give_back):
    engine = engine_of(tiny_model(), path="fast")
    first = ids_of(engine)
    assert engine.weights is not None
    getattr(engine, give_back)()
    assert engine.weights is None
    assert ids_of(engine) == first


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("tokens", [3, 7, 64])
def test_prompts_that_are_read_in_parts_are_read_right(shares, tokens):
    prompts = [
        Prompt("", tuple(10 + (7 * i + n) % 80 for n in range(length)), {}, i, (i, 0))
        for i, length in enumerate([1, 40, 40, 23, 8, 8, 8, 61])
    ]
    model = tiny_model("qwen2", scale=3.0)
    expected = ids_of(engine_of(model, path="general"), prompts)
    engine = engine_of(model, path="fast", prefill_tokens=tokens, shares_prompts=shares)
    assert ids_of(engine, prompts) == expected


@pytest.mark.parametrize("shares", [True, False])
def test_long_completions_move_from_pool_to_pool(shares):
    """Sequences of one call end anywhere between 1 and 300 tokens, while others wait for a slot."""
    settings = replace(SETTINGS, max_new_tokens=300, stop_ids=(EOS, 17))
    model = tiny_model("llama", scale=1.5)
    expected = ids_of(engine_of(model, path="general"), size=6, settings=settings)
    engine = engine_of(model, path="fast", shares_prompts=shares, max_sequences=9)
    assert ids_of(engine, size=6, settings=settings) == expected
    lengths = [len(ids) for group in expected for ids in group]
    assert min(lengths) < 40 and max(lengths) > 130


@pytest.mark.parametrize("shares", [True, False])
def test_the_cache_keeps_to_its_budget(monkeypatch, shares):
    caches = []

    class Watched(decode_loop.KvCache):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            caches.append(self)

    monkeypatch.setattr(decode_loop, "KvCache", Watched)
    settings = replace(SETTINGS, max_new_tokens=120, stop_ids=(EOS, 17, 30))
    model = tiny_model("llama", scale=1.5)
    everything = ids_of(engine_of(model, path="fast", shares_prompts=shares), size=8, settings=settings)
    unbounded = caches.pop().peak
    for budget in (unbounded // 2, unbounded // 4):
        engine = engine_of(model, path="fast", memory=budget, shares_prompts=shares)
        assert ids_of(engine, size=8, settings=settings) == everything
        # What moves from one pool to the next is held twice for a moment.
        assert caches.pop().peak <= 1.2 * budget


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("part", "size", "shares"), [(0.9, 4, False), (1.1, 4, True), (1.1, 1, False)])
def test_a_prompt_is_stored_once_where_that_pays(monkeypatch, dtype, part, size, shares):
    """`part` of the bytes from which it does, over two prompts."""
    caches = []

    class Watched(decode_loop.KvCache):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            caches.append(self)

    monkeypatch.setattr(decode_loop, "KvCache", Watched)
    model = tiny_model("llama", max_position_embeddings=16384)
    config = model.config
    per_token = 2 * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    tokens = int(part * native.SHARED_FROM / (2 * size * per_token * dtype.itemsize))
    prompts = [Prompt("", tuple(10 + (n + i) % 80 for n in range(tokens))) for i in range(2)]
    ids_of(engine_of(model, path="fast", dtype=dtype), prompts, size, replace(SETTINGS, max_new_tokens=2))
    assert caches.pop().shares_prompts == shares
