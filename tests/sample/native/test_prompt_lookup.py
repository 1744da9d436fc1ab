"""Drafts change how fast a sequence is sampled, never its tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from covey.sample.engine import in_order
from covey.sample.native.engine import NativeEngine
from covey.sample.native.llama import Llama
from covey.sample.native.prompt_lookup import (
    MATCHED,
    PAUSE,
    REMEMBERED,
    ROWS,
    AcceptanceRate,
    CompletionIndex,
    NgramIndex,
)
from covey.sample.sampling import Sampling
from covey.types import Completion, Group, Prompt
from tests.tiny import EOS, PAD, tiny_model

pytestmark = pytest.mark.any_version

SETTINGS = Sampling(max_new_tokens=40, stop_ids=(EOS, 30), padding_id=PAD, seed=4)
PROMPTS = [Prompt("", tuple(range(10 + i, 16 + 2 * i)), {}, i, (i, 0)) for i in range(3)]


def text(ids):
    return "".join(chr(64 + i) for i in ids)


def engine_of(model, prompt_lookup, **options):
    engine = NativeEngine(text, path="fast", prompt_lookup=prompt_lookup, **options)
    engine.load(model)
    return engine


def sampled(engine, size=2, settings=SETTINGS, prompts=PROMPTS):
    return in_order(prompts, engine.generate(prompts, size, settings))


@pytest.fixture
def widths(monkeypatch):
    """Tokens per sequence of each step that is computed."""
    seen = []
    step = Llama.step

    def counted(self, tokens, *args):
        seen.append(tokens.shape[1])
        return step(self, tokens, *args)

    monkeypatch.setattr(Llama, "step", counted)
    return seen


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"greedy": True},
        {"top_k": 3, "temperature": 0.7},
        {"min_new_tokens": 20},
        {"stop_strings": (text((40, 41)), text((50,)))},
        {"max_new_tokens": 7},
    ],
    ids=str,
)
def test_the_tokens_are_those_of_plain_sampling(kind, shares, options, widths):
    model, settings = tiny_model(kind, scale=2.5), replace(SETTINGS, **options)
    expected = sampled(engine_of(model, False, shares_prompts=shares), settings=settings)
    assert set(widths) <= {1}
    engine = engine_of(model, True, shares_prompts=shares)
    for _ in range(3):  # the second and third call have the completions of the first
        got = sampled(engine, settings=settings)
        assert [[c.ids for c in g.completions] for g in got] == [
            [c.ids for c in g.completions] for g in expected
        ]
        for a, b in zip(got, expected, strict=True):
            for c, d in zip(a.completions, b.completions, strict=True):
                assert c.finish == d.finish
                assert c.logprobs == pytest.approx(d.logprobs, abs=1e-5)
                assert c.plain_logprobs == pytest.approx(d.plain_logprobs, abs=1e-5)
    assert max(widths) > 1, "drafts were made"


def test_a_completion_that_is_known_takes_a_fraction_of_the_steps(widths):
    engine = engine_of(tiny_model(scale=3.0), True)
    settings = replace(SETTINGS, greedy=True, stop_ids=())
    sampled(engine, 1, settings, PROMPTS[:1])
    first = len(widths)
    widths.clear()
    sampled(engine, 1, settings, PROMPTS[:1])
    assert first >= 25 and len(widths) <= first / 2


def test_options_that_look_at_the_text_are_sampled_without_drafts(widths):
    model, settings = tiny_model(scale=2.5), replace(SETTINGS, no_repeat_ngram_size=3)
    expected = sampled(engine_of(model, False), settings=settings)
    engine = engine_of(model, True)
    for _ in range(2):
        assert [g.completions for g in sampled(engine, settings=settings)] == [
            g.completions for g in expected
        ]
    assert set(widths) == {1}


def test_frequencies_under_wrong_and_right_drafts_are_the_probabilities(widths):
    """Chi-square of the second and third token against the exact probabilities; the index proposes all the time."""
    model = tiny_model(scale=1.5)
    prompt = PROMPTS[0]
    settings = Sampling(max_new_tokens=3, top_k=3)
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for said, probability in expected.items():
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt.ids, *said]])).logits[0, -1]
            top = logits.topk(3)
            for token, share in zip(top.indices.tolist(), top.values.softmax(0).tolist(), strict=True):
                longer[(*said, token)] = probability * share
        expected = longer
    engine = engine_of(model, True)
    favourite = max(expected, key=expected.__getitem__)
    fake = Completion(favourite, (0.0,) * 3, "", "length")
    counts: Counter[tuple[int, ...]] = Counter()
    calls = 150
    prompts = [replace(prompt, seed_key=(n, 7)) for n in range(2)]
    for seed in range(calls):
        engine.completions.add(Group(prompt, (fake,)))
        for group in sampled(engine, 3, replace(settings, seed=seed), prompts):
            counts.update(c.ids for c in group.completions)
    total = sum(counts.values())
    assert set(counts) <= set(expected) and max(widths) > 1
    square = sum((counts[k] - total * p) ** 2 / (total * p) for k, p in expected.items())
    # 26 degrees of freedom: mean 26, standard deviation 7.2; the 0.999 quantile is 54.1.
    assert square < 54.1


def test_an_index_gives_what_followed_the_same_tokens():
    index = NgramIndex([9, 8, 7, 6, 5], [[1, 2, 3, 4]])
    index.extend(0, torch.tensor([], dtype=torch.long))
    assert index.propose(0, 10) == [1, 2, 3, 4]
    index.extend(0, torch.tensor([1]))
    assert index.propose(0, 2) == [2, 3]
    index.extend(0, torch.tensor([1, 5]))
    assert index.propose(0, 2) == []
    index.extend(1, torch.tensor([7, 1, 5, 2, 2]))
    assert index.propose(0, 9) == [] and index.texts[0] == [7, 6, 5, 1, 5]
    index.extend(0, torch.tensor([1, 5, 7, 1, 5]))
    assert index.propose(0, 9) == [2, 2]


@pytest.mark.parametrize("length", [0, 1, MATCHED, 12])
def test_a_prompt_of_any_length_has_an_index(length):
    index = NgramIndex(range(length), [[1, 2, 3, 4, 5, 6]])
    index.extend(3, torch.tensor([1, 2, 3, 4]))
    assert index.propose(3, 2) == [5, 6]


def test_bad_drafts_pause_for_a_while():
    rate = AcceptanceRate()
    assert rate.tokens(1) > 1 and rate.tokens(ROWS) == 1 and rate.tokens(0) > 1
    while rate.tokens(2) > 1:
        rate.update(6, 0)
    assert all(rate.tokens(2) == 1 for _ in range(PAUSE - 1))
    for _ in range(50):
        rate.update(6, 3)
        assert rate.tokens(2) > 1


def test_the_newest_completions_are_kept_and_no_more_than_so_many():
    index = CompletionIndex()
    completion = Completion((1, 2), (0.0, 0.0), "", "length")
    for number in range(REMEMBERED // 4 + 10):
        index.add(Group(Prompt("", (number,)), (completion,) * 4))
    assert ((0,), ()) not in index.by_prompt and index.by_prompt[((REMEMBERED // 4 + 9,), ())] == [(1, 2)] * 4
    newer = Completion((3,), (0.0,), "", "length")
    index.add(Group(Prompt("", (REMEMBERED // 4,)), (newer,)))
    assert index.by_prompt[((REMEMBERED // 4,), ())] == [(3,)]


def test_many_active_sequences_are_sampled_without_drafts(widths):
    engine = engine_of(tiny_model(scale=2.5), True)
    settings = replace(SETTINGS, stop_ids=(), max_new_tokens=12)
    sampled(engine, ROWS, settings)
    assert set(widths) == {1}
