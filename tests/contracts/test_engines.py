"""The contract of `covey.sample.engine.Engine`, for every engine: what a completion is, and what it does not depend on.

Everything is in float32 on models of a few thousand weights, so that equal means equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from covey.errors import EngineError
from covey.sample.chat import decode_text
from covey.sample.engine import in_order
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.types import Completion, Group, Prompt
from tests.sample.native.books import checked_books as checked_books
from tests.sample.remote.serving import ServedEngine
from tests.sample.remote.serving import ended as ended
from tests.tiny import EOS, KINDS, PAD, STOP, VOCABULARY, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def decode(ids: Sequence[int]) -> str:
    return decode_text(TOKENIZER, ids, frozenset({PAD, EOS, STOP}))


ENGINES: dict[str, Callable[..., Any]] = {
    "general": lambda **options: NativeEngine(decode, path="general", **options),
    "fast": lambda **options: NativeEngine(decode, **options),
    "fast, prompts copied, policy's own weights": lambda **options: NativeEngine(
        decode, shares_prompts=False, in_place=True, **options
    ),
    "served": lambda **options: ServedEngine(decode, TOKENIZER, **options),
    "served by two": lambda **options: ServedEngine(decode, TOKENIZER, 2, **options),
}
"""The fast path in the two forms that it takes by default: on a CPU, and on an accelerator."""

SETTINGS = Sampling(max_new_tokens=12, stop_ids=(EOS,), padding_id=PAD, seed=3)


@pytest.fixture(params=ENGINES)
def make(request):
    return ENGINES[request.param]


def prompt(text: str, number: int = 0) -> Prompt:
    return Prompt(text, tuple(TOKENIZER(text)["input_ids"]), {}, number, (number, 0))


PROMPTS = [prompt("2 + 3 =", 0), prompt("hello", 1), prompt("a much longer prompt than the others, is it", 2)]


def sampled(engine, prompts, size=3, settings=SETTINGS) -> list[Group]:
    return in_order(prompts, engine.generate(prompts, size, settings))


def ids_of(groups: Sequence[Group]) -> list[list[tuple[int, ...]]]:
    return [[c.ids for c in group.completions] for group in groups]


def fresh(make, model, **options) -> NativeEngine:
    engine = make(**options)
    engine.load(model)
    return engine


def model_of(kind="qwen2", scale=3.0, **config):
    """A model whose distribution is far from uniform, so that a wrong position or mask is seen."""
    return tiny_model(kind, scale=scale, **config)


@torch.no_grad()
def full_logprobs(model, prompt: Prompt, completion: Completion, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities over the vocabulary at each completion token, by one forward pass without a cache."""
    ids = torch.tensor([[*prompt.ids, *completion.ids]])
    logits = model(input_ids=ids).logits[0, len(prompt.ids) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1)


def assert_plain_logprobs(model, groups, temperature=1.0):
    for group in groups:
        for completion in group.completions:
            full = full_logprobs(model, group.prompt, completion, temperature)
            own = full[torch.arange(len(completion.ids)), torch.tensor(completion.ids)]
            assert completion.plain_logprobs == pytest.approx(own.tolist(), abs=1e-4)


# --- log-probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_full_forward_at_the_temperature(make, kind, temperature):
    model = model_of(kind)
    settings = replace(SETTINGS, temperature=temperature, padding_id=None)
    groups = sampled(fresh(make, model), PROMPTS, settings=settings)
    assert_plain_logprobs(model, groups, temperature)
    assert all(c.policy_logprobs is None for g in groups for c in g.completions)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"suppress_tokens": (10, 20, 30)},
        {"min_new_tokens": 4},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": ((9,), (10, 11))},
        {"top_k": 8, "suppress_tokens": (12,), "temperature": 1.3},
    ],
    ids=str,
)
def test_both_logprobs_are_given_where_options_change_the_distribution(make, options):
    model = model_of()
    settings = replace(SETTINGS, **options)
    groups = sampled(fresh(make, model), PROMPTS, settings=settings)
    assert_plain_logprobs(model, groups, settings.temperature)
    for completion in (c for g in groups for c in g.completions):
        assert completion.policy_logprobs is not None
        assert len(completion.policy_logprobs) == len(completion.logprobs) == len(completion.ids)
        assert all(-1e4 < p <= 1e-6 for p in completion.logprobs)


def test_truncated_logprobs_are_those_of_the_kept_tokens(make):
    """Under top-k the k kept probabilities are divided by their sum; worked out from the full forward."""
    model, settings = model_of(), replace(SETTINGS, top_k=4, padding_id=None)
    for group in sampled(fresh(make, model), PROMPTS, settings=settings):
        for completion in group.completions:
            for step, full in enumerate(full_logprobs(model, group.prompt, completion)):
                kept = full.topk(4)
                assert completion.ids[step] in kept.indices.tolist()
                expected = full[completion.ids[step]] - kept.values.logsumexp(0)
                assert completion.logprobs[step] == pytest.approx(expected.item(), abs=1e-4)


def test_padding_is_never_drawn_and_its_probability_is_given_to_the_others(make):
    model = model_of()
    with torch.no_grad():
        model.lm_head.weight[PAD] = 3 * model.lm_head.weight[40]
    for group in sampled(fresh(make, model), PROMPTS, 8):
        for completion in group.completions:
            assert PAD not in completion.ids
            full = full_logprobs(model, group.prompt, completion)
            for step, token in enumerate(completion.ids):
                expected = full[step, token] - torch.log1p(-full[step, PAD].exp())
                assert completion.logprobs[step] == pytest.approx(expected.item(), abs=1e-4)


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_ids", [(EOS,), (EOS, STOP), tuple(range(20, 60))])
def test_a_completion_ends_with_its_first_end_token_or_at_the_limit(make, stop_ids):
    settings = replace(SETTINGS, max_new_tokens=20, stop_ids=stop_ids)
    groups = sampled(fresh(make, model_of(scale=1.0)), PROMPTS, 16, settings)
    finishes = set()
    for completion in (c for g in groups for c in g.completions):
        finishes.add(completion.finish)
        assert not set(completion.ids[:-1]) & set(stop_ids)
        if completion.finish == "stop":
            assert completion.ids[-1] in stop_ids
        else:
            assert completion.finish == "length" and len(completion.ids) == 20
            assert completion.ids[-1] not in stop_ids
    assert "stop" in finishes


def test_an_end_token_that_is_also_the_padding_token_ends_and_is_kept(make):
    settings = replace(SETTINGS, padding_id=None, max_new_tokens=64)
    groups = sampled(fresh(make, model_of(scale=1.0, pad_token_id=EOS)), PROMPTS, 8, settings)
    ended = [c for g in groups for c in g.completions if c.finish == "stop"]
    assert ended and all(c.ids[-1] == EOS and c.ids.count(EOS) == 1 for c in ended)


def test_one_token_is_the_shortest_completion(make):
    for group in sampled(fresh(make, model_of()), PROMPTS, settings=replace(SETTINGS, max_new_tokens=1)):
        assert all(len(c.ids) == 1 and c.finish in ("length", "stop") for c in group.completions)
    everything = tuple(range(VOCABULARY))
    groups = sampled(fresh(make, model_of()), PROMPTS, settings=replace(SETTINGS, stop_ids=everything))
    assert all(len(c.ids) == 1 and c.finish == "stop" for g in groups for c in g.completions)


def test_a_stop_string_ends_a_completion_with_the_token_that_completes_it(make):
    engine = fresh(make, model_of())
    free = replace(SETTINGS, max_new_tokens=40, stop_ids=())
    for group in sampled(engine, PROMPTS, 2, free):
        text = group.completions[0].text
        stop = text[9:11]
        stopped = sampled(engine, [group.prompt], 2, replace(free, stop_strings=(stop, "never said \n")))
        for before, after in zip(group.completions, stopped[0].completions, strict=True):
            if stop not in before.text:
                assert (after.ids, after.finish) == (before.ids, "length")
                continue
            end = before.text.index(stop) + len(stop)
            assert after.text == before.text[:end] and after.finish == "stop_string"
            assert after.ids == before.ids[: len(after.ids)]
            assert len(after.logprobs) == len(after.ids)


@pytest.mark.parametrize("longest", [1, 2])
def test_a_stop_string_that_the_first_token_completes_ends_the_completion(make, longest):
    settings = replace(SETTINGS, max_new_tokens=longest, stop_ids=())
    free = sampled(fresh(make, model_of()), PROMPTS, 4, settings)
    first = free[0].completions[0].text[0]
    stopped = sampled(fresh(make, model_of()), PROMPTS, 4, replace(settings, stop_strings=(first,)))
    for before, after in zip(free, stopped, strict=True):
        for whole, cut in zip(before.completions, after.completions, strict=True):
            at = whole.text.find(first)
            assert cut.text == (whole.text if at < 0 else whole.text[: at + 1])
            assert cut.finish == ("length" if at < 0 else "stop_string")


# --- what a completion does not depend on -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_completions_do_not_depend_on_the_other_prompts_of_the_call(make, kind):
    engine = fresh(make, model_of(kind))
    together = ids_of(sampled(engine, PROMPTS))
    assert ids_of(sampled(engine, PROMPTS[::-1]))[::-1] == together
    for alone, expected in zip(PROMPTS, together, strict=True):
        assert ids_of(sampled(engine, [alone])) == [expected]


def test_completions_do_not_depend_on_the_size_of_the_group(make):
    engine = fresh(make, model_of())
    few, many = ids_of(sampled(engine, PROMPTS, 2)), ids_of(sampled(engine, PROMPTS, 11))
    assert [group[:2] for group in many] == few
    assert ids_of(sampled(engine, PROMPTS, 1)) == [group[:1] for group in few]


def test_a_group_that_is_sampled_in_parts_is_the_same_group(make):
    """Also where each of its later completions is asked for by itself: completion n is completion n."""
    engine = fresh(make, model_of())
    whole = ids_of(sampled(engine, PROMPTS, 5))
    later = [replace(p, first=2) for p in PROMPTS]
    assert ids_of(sampled(engine, later, 3)) == [group[2:] for group in whole]
    singly = [replace(p, first=n) for p in PROMPTS for n in (4, 2, 3)]
    assert ids_of(sampled(engine, singly, 1)) == [[group[n]] for group in whole for n in (4, 2, 3)]


@pytest.mark.parametrize(
    "limits", [{"memory": 1}, {"memory": 40_000}, {"max_sequences": 1}, {"max_sequences": 5}]
)
def test_completions_do_not_depend_on_memory(make, limits):
    prompts = [prompt(text * 3, i) for i, text in enumerate(["one", "2", "three, ", "4 + 4"])]
    settings = replace(SETTINGS, max_new_tokens=90, stop_ids=tuple(range(30, 34)))
    expected = sampled(fresh(make, model_of(scale=1.5)), prompts, 4, settings)
    lengths = {len(c.ids) for g in expected for c in g.completions}
    assert len(lengths) > 5, "ends at different times"
    assert ids_of(sampled(fresh(make, model_of(scale=1.5), **limits), prompts, 4, settings)) == ids_of(
        expected
    )


def test_the_same_call_gives_the_same_bits(make):
    engine = fresh(make, model_of())
    first, second = sampled(engine, PROMPTS), sampled(engine, PROMPTS)
    assert [c for g in first for c in g.completions] == [c for g in second for c in g.completions]


def test_sleep_changes_nothing(make):
    engine = fresh(make, model_of())
    first = ids_of(sampled(engine, PROMPTS))
    engine.sleep()
    assert ids_of(sampled(engine, PROMPTS)) == first


def test_seed_step_prompt_and_index_are_what_completions_depend_on(make):
    engine = fresh(make, model_of(scale=1.0))
    base = ids_of(sampled(engine, PROMPTS[:1], 2))[0]
    assert base[0] != base[1]
    assert ids_of(sampled(engine, PROMPTS[:1], 2, replace(SETTINGS, seed=4)))[0] != base
    assert ids_of(sampled(engine, PROMPTS[:1], 2, replace(SETTINGS, step=(7,))))[0] != base
    assert ids_of(sampled(engine, [replace(PROMPTS[0], seed_key=(5, 0))], 2))[0] != base


def test_equal_prompts_with_different_keys_are_sampled_apart(make):
    engine = fresh(make, model_of(scale=1.0))
    twice = [PROMPTS[0], replace(PROMPTS[0], seed_key=(9, 1))]
    first, second = ids_of(sampled(engine, twice))
    assert first != second
    assert [ids_of(sampled(engine, [p]))[0] for p in twice] == [first, second]


def test_no_global_generator_is_read_or_moved(make):
    engine = fresh(make, model_of())
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = ids_of(sampled(engine, PROMPTS))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1] and random.getstate() == before[2]
    torch.manual_seed(2)
    assert ids_of(sampled(engine, PROMPTS)) == first


def test_a_prompt_at_the_end_of_the_context_is_continued_to_its_last_position(make):
    for kind in KINDS:
        sizes = {"n_positions": 64} if kind == "gpt2" else {"max_position_embeddings": 64}
        model = model_of(kind, **sizes)
        prompts = [prompt("x" * 52, 0), prompt("ab", 1)]
        groups = sampled(fresh(make, model), prompts, 2, replace(SETTINGS, stop_ids=()))
        assert all(len(c.ids) == 12 for g in groups for c in g.completions)
        assert_plain_logprobs(model, groups)


# --- the policy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_the_policy_is_left_as_it_was_found(make, kind):
    model = model_of(kind).train()
    model.gradient_checkpointing_enable()
    list(model.modules())[5].eval()
    first = next(model.parameters())
    first.requires_grad_(False)
    first.grad = None
    other = list(model.parameters())[3]
    other.grad = torch.ones_like(other)
    flags = _flags(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    engine = fresh(make, model)
    for group in engine.generate(PROMPTS, 3, SETTINGS):
        assert group.completions and _flags(model) == flags, "also while a consumer holds a group"
    assert _flags(model) == flags
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(other.grad, torch.ones_like(other)) and first.grad is None
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def _flags(model):
    return (
        [m.training for m in model.modules()],
        [getattr(m, "gradient_checkpointing", None) for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [p.data_ptr() for p in model.parameters()],
        model.config.to_dict(),
    )


def test_dropout_and_checkpointing_do_not_change_what_is_sampled(make):
    plain = ids_of(sampled(fresh(make, model_of(attention_dropout=0.0)), PROMPTS))
    model = model_of(attention_dropout=0.5).train()
    model.gradient_checkpointing_enable()
    assert ids_of(sampled(fresh(make, model), PROMPTS)) == plain


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_load_takes_the_weights_as_they_are_now(make, kind):
    model = model_of(kind)
    engine = fresh(make, model)
    sampled(engine, PROMPTS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    engine.load(model)
    groups = sampled(engine, PROMPTS)
    assert_plain_logprobs(model, groups)
    assert ids_of(groups) == ids_of(sampled(fresh(make, model), PROMPTS))


def test_another_policy_can_be_loaded(make):
    engine = fresh(make, model_of("qwen2"))
    sampled(engine, PROMPTS)
    other = model_of("llama", num_hidden_layers=3)
    if isinstance(engine, ServedEngine):  # a server has the architecture that it was started with
        with pytest.raises(
            EngineError, match=r"refused.*has weights that the policy has not: model\.layers\.2\."
        ):
            engine.load(other)
        return
    engine.load(other)
    assert_plain_logprobs(other, sampled(engine, PROMPTS))


# --- calls ------------------------------------------------------------------------------------------------------------


def test_every_prompt_gets_one_group_with_completions_in_order(make):
    engine = fresh(make, model_of(scale=1.0), max_sequences=4)
    groups = list(engine.generate(PROMPTS, 3, replace(SETTINGS, max_new_tokens=30)))
    assert sorted(id(g.prompt) for g in groups) == sorted(id(p) for p in PROMPTS)
    assert all(len(g.completions) == 3 for g in groups)
    assert all(c.text == decode(c.ids) for g in groups for c in g.completions)


def test_no_prompts_give_no_groups(make):
    assert list(fresh(make, model_of()).generate([], 3, SETTINGS)) == []


def test_sampling_without_a_policy_is_an_error(make):
    with pytest.raises(EngineError, match="load"):
        list(make().generate(PROMPTS, 2, SETTINGS))


def test_a_call_that_is_given_up_leaves_the_engine_usable(make):
    model = model_of().train()
    engine = fresh(make, model, max_sequences=4)
    expected = ids_of(sampled(engine, PROMPTS))
    groups = engine.generate(PROMPTS, 3, SETTINGS)
    next(groups)
    groups.close()
    assert model.training and torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert ids_of(sampled(engine, PROMPTS)) == expected


# --- agreement with transformers --------------------------------------------------------------------------------------

GREEDY_OPTIONS = [
    {},
    {"repetition_penalty": 1.4},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3},
    {"min_new_tokens": 10},
    {"suppress_tokens": (7, 8, 9, 50)},
    {"begin_suppress_tokens": (20, 21, 22, 23, 24, 25)},
    {"bad_words_ids": ((40,), (41, 42), (43, 44, 45))},
    {"min_new_tokens": 6, "no_repeat_ngram_size": 2, "suppress_tokens": (11,), "repetition_penalty": 0.8},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", GREEDY_OPTIONS, ids=str)
def test_greedy_equals_transformers_generate(make, kind, options):
    """With an argmax the options must do exactly what transformers' logits processors do."""
    if make is ENGINES["served by two"] and kind != "qwen2":
        pytest.skip("one server has shown it")
    model = model_of(kind, scale=2.0)
    stop_ids = (EOS, 30, 31, 32)
    settings = Sampling(max_new_tokens=24, stop_ids=stop_ids, greedy=True, **options)
    lists = {k: [list(w) for w in v] if k == "bad_words_ids" else v for k, v in options.items()}
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in lists.items()}
    config = GenerationConfig(
        max_new_tokens=24, do_sample=False, eos_token_id=list(stop_ids), pad_token_id=PAD, **lists
    )
    for group in sampled(fresh(make, model), PROMPTS, 1, settings):
        ids = torch.tensor([group.prompt.ids])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        assert list(group.completions[0].ids) == out[0, ids.shape[1] :].tolist()


def test_restrictions_hold_in_what_is_sampled(make):
    words = ((40, 41), (50,))
    settings = Sampling(
        max_new_tokens=60,
        stop_ids=tuple(range(6, 16)),
        min_new_tokens=20,
        suppress_tokens=(60, 61, 62),
        begin_suppress_tokens=tuple(range(63, 90)),
        bad_words_ids=words,
        no_repeat_ngram_size=3,
    )
    for group in sampled(fresh(make, model_of(scale=1.2)), PROMPTS, 6, settings):
        for completion in group.completions:
            said = [*group.prompt.ids, *completion.ids]
            assert len(completion.ids) >= 21 or completion.finish == "length"
            assert not {60, 61, 62, 50} & set(completion.ids)
            assert completion.ids[0] not in range(63, 90)
            assert (40, 41) not in list(pairwise(said))[len(group.prompt.ids) - 1 :]
            grams = list(zip(said, said[1:], said[2:], strict=False))
            new = grams[len(group.prompt.ids) - 2 :]
            assert all(grams.index(gram) >= len(grams) - len(new) + i for i, gram in enumerate(new))


# --- improbable numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_possible(make, number, monkeypatch):
    monkeypatch.setattr("covey.sample.native.sequences.uniforms", lambda key, count: np.full(count, number))
    model = model_of()
    with torch.no_grad():
        model.lm_head.weight[[0, 1, 50, VOCABULARY - 2, VOCABULARY - 1]] = 0
    never = (0, 1, VOCABULARY - 2, VOCABULARY - 1)
    for options in ({}, {"top_k": 3}, {"top_p": 0.5}):
        settings = replace(SETTINGS, stop_ids=(), padding_id=None, suppress_tokens=never, **options)
        for group in sampled(fresh(make, model), PROMPTS, 2, settings):
            assert_plain_logprobs(model, [group])
            for completion in group.completions:
                assert not set(completion.ids) & set(never)
                assert all(np.isfinite(completion.logprobs))
