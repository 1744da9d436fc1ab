"""Every family that the fast path knows is decoded as its own forward pass computes it, and the check sees what is not."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from covey.errors import CoveyWarning
from covey.kernels.head_logprobs import LogitForm
from covey.sample.engine import in_order
from covey.sample.native import architectures, selfcheck
from covey.sample.native import weights as weights_module
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.sample.native.families import FAMILIES, WINDOW, family_model
from tests.tiny import EOS, PAD, tiny_model

SETTINGS = Sampling(max_new_tokens=14, stop_ids=(EOS, *range(40, 52)), padding_id=PAD, seed=3)
PROMPTS = [Prompt("", tuple(range(10 + i, 13 + 5 * i)), {}, i, (i, 0)) for i in range(4)]
FORMS = {
    "shared": {"shares_prompts": True},
    "copied, own tensors": {"shares_prompts": False, "in_place": True},
    "drafts, in chunks": {"shares_prompts": True, "prompt_lookup": True, "prefill_tokens": 7},
}


def engine_of(model, **options):
    engine = NativeEngine(lambda ids: "", **options)
    engine.load(model)
    return engine


def groups_of(engine, prompts=PROMPTS, size=3, settings=SETTINGS):
    return in_order(prompts, engine.generate(prompts, size, settings))


def ids_of(engine, prompts=PROMPTS, size=3, settings=SETTINGS):
    return [[c.ids for c in group.completions] for group in groups_of(engine, prompts, size, settings)]


@torch.no_grad()
def largest_gap(model, groups):
    """Between the log-probabilities of sampling and those of one forward pass without a cache."""
    gaps = []
    for group in groups:
        for completion in group.completions:
            ids = torch.tensor([[*group.prompt.ids, *completion.ids]])
            own = torch.log_softmax(
                model(input_ids=ids).logits[0, len(group.prompt.ids) - 1 : -1].float(), -1
            )
            said = own[torch.arange(len(completion.ids)), torch.tensor(completion.ids)]
            gaps.append((said - torch.tensor(completion.plain_logprobs)).abs().max())
    return max(gaps)


def test_every_known_family_has_a_model_here():
    assert {f"{name}ForCausalLM" for name in FAMILIES} == set(architectures.FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_are_those_of_the_model_in_every_form(name):
    """Prompts of 3 to 15 tokens, completions of up to 14: shorter and longer than the windows."""
    model = family_model(name)
    said = []
    for options in FORMS.values():
        engine = engine_of(model, path="fast", **options)
        groups = groups_of(engine)
        assert engine.reason is None and largest_gap(model, groups) < 1e-4, options
        said.append([[c.ids for c in group.completions] for group in groups])
    assert said[0] == said[1] == said[2] and len({len(ids) for group in said[0] for ids in group}) > 1


@pytest.mark.parametrize("name", ["Gemma3", "Qwen3Moe", "GptOss", "Cohere2"])
def test_samples_do_not_depend_on_the_batch_its_order_or_memory(name):
    model = family_model(name)
    expected = ids_of(engine_of(model))
    assert ids_of(engine_of(model), PROMPTS[::-1])[::-1] == expected
    assert [ids_of(engine_of(model), [prompt])[0] for prompt in PROMPTS] == expected
    assert ids_of(engine_of(model, max_sequences=4, shares_prompts=True)) == expected
    assert [group[:2] for group in ids_of(engine_of(model), size=2)] == [group[:2] for group in expected]


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("Gemma3", ["q_proj", "v_proj", "down_proj", "embed_tokens"]),
        ("Phi3", ["qkv_proj", "gate_up_proj"]),
        ("Qwen3Moe", ["q_proj", "o_proj"]),
        ("Starcoder2", ["c_fc", "c_proj"]),
    ],
)
def test_adapters_are_merged(name, targets):
    model = family_model(name)
    plain = ids_of(engine_of(model, path="fast"))
    policy = get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).eval()
    for options in FORMS.values():
        groups = groups_of(engine_of(policy, path="fast", **options))
        assert largest_gap(policy, groups) < 1e-4
    assert [[c.ids for c in group.completions] for group in groups] != plain


def test_experts_with_an_adapter_take_the_general_path():
    model = family_model("Qwen3Moe")
    config = LoraConfig(r=2, target_parameters=["mlp.experts.gate_up_proj"], init_lora_weights=False)
    engine = engine_of(get_peft_model(model, config).eval())
    ids_of(engine, PROMPTS[:1])
    assert "experts" in engine.reason


MISTAKES = {
    "Gemma2, scores without a cap": ("Gemma2", {"score_cap": None}),
    "Gemma2, logits without a cap": ("Gemma2", {"logit_form": LogitForm()}),
    "Gemma3, embeddings without a scale": ("Gemma3", {"embedding_scale": 1.0}),
    "Gemma3, another scale of scores": ("Gemma3", {"score_scale": 8**-0.5}),
    "Granite, a residual without its factor": ("Granite", {"residual_scale": 1.0}),
    "Glm4, all of a head rotated": ("Glm4", {"turned": 8}),
    "Phi3, all of a head rotated": ("Phi3", {"turned": 8}),
    "Gemma, norms without the one": ("Gemma", {"family": architectures.Family()}),
    "Cohere, pairs half of a head apart": ("Cohere", {"family": architectures.Family()}),
}
FORM_MISTAKES = {
    "Gemma3, no window": ("Gemma3", {"window": None}),
    "Mistral, a window that is one longer": ("Mistral", {"window": WINDOW + 1}),
    "Gemma3, positions of the other kind": ("Gemma3", {"rotary": "full_attention"}),
    "SmolLM3, positions in every layer": ("SmolLM3", {"rotary": ""}),
}


@pytest.mark.parametrize("what", [*MISTAKES, *FORM_MISTAKES])
def test_the_check_sees_every_mistake_in_a_formula(what, monkeypatch):
    """One warning, and samples are those of the general path."""
    name, wrong = {**MISTAKES, **FORM_MISTAKES}[what]
    model, right = family_model(name), architectures.architecture_of

    def mistaken(policy):
        shape = right(policy)
        if what in MISTAKES:
            return replace(shape, **wrong)
        return replace(shape, forms=tuple(replace(form, **wrong) for form in shape.forms))

    monkeypatch.setattr(weights_module, "architecture_of", mistaken)
    engine = engine_of(model)
    with pytest.warns(CoveyWarning, match="general path"):
        said = ids_of(engine, PROMPTS[:1])
    assert said == ids_of(engine_of(model, path="general"), PROMPTS[:1])


@pytest.mark.parametrize(
    "part", ["sinks", "adds_up_to_one", "shared", "is_parallel", "query_norm", "after_mlp"]
)
def test_the_check_sees_a_part_that_is_left_out(part, monkeypatch):
    name = {
        "sinks": "GptOss",
        "adds_up_to_one": "Qwen3Moe",
        "shared": "Qwen2Moe",
        "is_parallel": "Cohere2",
        "query_norm": "Olmo2",
        "after_mlp": "Glm4",
    }[part]
    right = weights_module._WeightReader.layer

    def mistaken(self, layer):
        made = right(self, layer)
        if part == "sinks":
            return replace(made, score_form=replace(made.score_form, sinks=None))
        if part in ("adds_up_to_one", "shared"):
            is_mixture = hasattr(made.mlp, part)
            return replace(made, mlp=replace(made.mlp, **{part: None})) if is_mixture else made
        return replace(made, **{part: None})

    monkeypatch.setattr(weights_module._WeightReader, "layer", mistaken)
    engine = engine_of(family_model(name))
    with pytest.warns(CoveyWarning, match="general path"):
        ids_of(engine, PROMPTS[:1])


# --- positions that depend on the length ------------------------------------------------------------------------------

LONG = {
    "original_max_position_embeddings": 24,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 24,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [4.0, 3.0, 2.0, 2.0],
    },
}


def test_positions_for_long_texts_take_the_general_path_and_short_calls_are_fast_again():
    model = family_model("Phi3", **LONG)
    engine, short = engine_of(model), replace(SETTINGS, max_new_tokens=9)
    with pytest.warns(CoveyWarning, match="from 24 on.*slower") as caught:
        for settings in (SETTINGS, short, SETTINGS):
            groups = groups_of(engine, PROMPTS[3:], settings=settings)
            assert (engine.reason is not None) == (settings is SETTINGS)
            assert settings is SETTINGS or largest_gap(model, groups) < 1e-4
    assert len([w for w in caught if w.category is CoveyWarning]) == 1


# --- the check as weights move ----------------------------------------------------------------------------------------


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)


def test_the_check_is_repeated_at_growing_distances_on_what_was_sampled(monkeypatch):
    texts, gap = [], selfcheck.gap
    monkeypatch.setattr(selfcheck, "gap", lambda *a: texts.append(tuple(a[4])) or gap(*a))
    model = tiny_model("qwen2", scale=3.0)
    engine, checked_after, said = NativeEngine(lambda ids: ""), [], set()
    for update in range(10):
        before = len(texts)
        engine.load(model)
        groups = groups_of(engine, PROMPTS[:2])
        if len(texts) > before:
            checked_after.append(update)
            assert update == 0 or texts[-1] in said
        said = {(*g.prompt.ids, *g.completions[0].ids) for g in groups}
        engine.sleep()
        moved(model)
    assert checked_after == [0, 1, 2, 4, 8]


def test_a_fast_path_that_drifts_away_is_given_up_with_one_warning(monkeypatch):
    """A stand-in for what the first check cannot see: weights that are read once and never again."""
    model = tiny_model("qwen2", scale=3.0)
    engine = engine_of(model)
    ids_of(engine, PROMPTS[:1])
    first = engine.weights
    monkeypatch.setattr(engine, "_read", lambda policy: first)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CoveyWarning)
        for _ in range(5):
            with torch.no_grad():
                model.model.layers[0].mlp.gate_proj.weight.mul_(-1.5)
            engine.policy, engine._watch.is_stale = model, True
            said = ids_of(engine, PROMPTS[:1])
            assert said == ids_of(engine_of(model, path="general"), PROMPTS[:1])
    texts = [str(w.message) for w in caught if w.category is CoveyWarning]
    assert len(texts) == 1 and "after 1 updates" in texts[0] and engine.weights is None
