"""The general path is exact for every family: with the model's cache where its rows can be chosen, and else without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from covey.errors import EngineError
from covey.sample.engine import in_order
from covey.sample.native.any_cache import bytes_of, select_rows
from covey.sample.native.any_forward import Way
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.families import tiny_of
from tests.tiny import EOS, PAD, VOCABULARY, tiny_model

PROMPTS = [Prompt("", tuple(range(10 + i, 14 + 3 * (i % 2) + i)), {}, i, (i, 0)) for i in range(4)]
"""Of two lengths."""
SETTINGS = Sampling(max_new_tokens=8, stop_ids=(EOS, *range(30, 50)), padding_id=PAD, seed=3)

CACHED, ALIKE, ALONE = Way(), Way(pads=False), Way(caches=False, pads=False)
WAYS = {
    "gpt2": CACHED, "gemma3_text": CACHED, "deepseek_v3": CACHED, "gpt_oss": CACHED, "gemma4_text": CACHED, "mpt": CACHED,
    "lfm2": ALIKE, "mamba": ALIKE, "mamba2": ALIKE, "jamba": ALIKE, "falcon_h1": ALIKE, "qwen3_next": ALIKE, "minimax": ALIKE,
    "rwkv": None, "recurrent_gemma": None, "xlstm": ALONE,
}  # fmt: skip
"""The way that families take; None: any, exact."""


def groups_of(model, settings=SETTINGS, prompts=PROMPTS, **options):
    engine = NativeEngine(str, path="general", **options)
    engine.load(model)
    return engine, in_order(prompts, engine.generate(prompts, 3, settings))


@torch.no_grad()
def own_logprobs(model, prompt, ids):
    row = torch.tensor([[*prompt, *ids]])
    mask = {"attention_mask": torch.ones_like(row)}
    logits = model(input_ids=row, use_cache=False, **mask).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


@pytest.mark.parametrize("family", WAYS)
def test_what_is_reported_is_what_the_model_says_of_each_text_alone(family):
    """Prompts of two lengths, sequences that end early, in waves that do not hold all of them."""
    model = tiny_of(family)
    engine, groups = groups_of(model, max_sequences=5)
    lengths = {len(c.ids) for g in groups for c in g.completions}
    assert len(lengths) > 1, "all ended at once"
    for group in groups:
        for c in group.completions:
            reported = torch.tensor(c.policy_logprobs or c.logprobs)
            assert torch.allclose(reported, own_logprobs(model, group.prompt.ids, c.ids), atol=2e-5)
    assert WAYS[family] in (None, engine.decoding[1].way)


class OddCache:
    """Keeps rows where nobody looks for them."""

    def __init__(self, cache):
        self.hold = lambda: cache


def test_a_cache_that_cannot_be_taken_apart_is_not_used():
    model = tiny_model("gpt2", scale=3.0)
    inner = type(model).forward

    class Odd(type(model)):
        def forward(
            self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None
        ):
            held = None if past_key_values is None else past_key_values.hold()
            out = inner(self, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                        past_key_values=held, use_cache=use_cache)  # fmt: skip
            if use_cache:
                out.past_key_values = OddCache(out.past_key_values)
            return out

    want = groups_of(tiny_model("gpt2", scale=3.0))[1]
    model.__class__ = Odd
    engine, got = groups_of(model)
    assert engine.decoding[1].way == ALONE
    assert [[c.ids for c in g.completions] for g in got] == [[c.ids for c in g.completions] for g in want]


def test_a_model_whose_rows_depend_on_one_another_is_refused():
    model = tiny_model("gpt2", scale=3.0)
    model.transformer.h[0].mlp = Mean(model.transformer.h[0].mlp)
    with pytest.raises(EngineError, match=r"cannot be sampled from.*alone and in a batch"):
        groups_of(model)


class Mean(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + x.mean(0, keepdim=True)


@pytest.mark.parametrize("flag", ["output_router_logits", "output_hidden_states", "output_attentions"])
def test_a_config_that_asks_for_more_than_logits_changes_nothing(flag):
    model = tiny_of("qwen3_moe", attn_implementation="eager")
    want = groups_of(model)[1]
    setattr(model.config, flag, True)
    assert groups_of(model)[1] == want and getattr(model.config, flag) is True


def test_rows_are_chosen_in_caches_of_any_make():
    rows = torch.arange(6.0).reshape(3, 2)

    class Own:
        def __init__(self):
            self.states, self.count = {0: (rows, [rows + 10])}, 3

    index = torch.tensor([2, 0, 0])
    for cache in (select_rows(Own(), index), select_rows([rows, (rows,)], index)):
        found = cache.states[0][0] if isinstance(cache, Own) else cache[1][0]
        assert torch.equal(found, rows[index])
    assert bytes_of(Own()) == 2 * rows.numel() * 4


@pytest.mark.parametrize("path", ["fast", "general"])
def test_ids_that_the_tokenizer_does_not_know_are_never_drawn(path):
    """The rest is renormalised, and what the policy itself gives a token is kept beside it, as for padding."""
    model = tiny_model("qwen2", vocab_size=VOCABULARY + 64)
    settings = Sampling(max_new_tokens=12, unknown_ids=tuple(range(VOCABULARY, VOCABULARY + 64)))
    engine = NativeEngine(str, path=path)
    engine.load(model)
    for group in engine.generate(PROMPTS, 4, settings):
        for c in group.completions:
            assert max(c.ids) < VOCABULARY
            own = own_logprobs(model, group.prompt.ids, c.ids)
            assert torch.allclose(torch.tensor(c.policy_logprobs), own, atol=1e-4)
            assert all(drawn > under for drawn, under in zip(c.logprobs, c.policy_logprobs, strict=True))


def test_a_compiled_policy_takes_the_path_of_the_model_inside():
    model = tiny_model("qwen2")
    engine = NativeEngine(str)
    engine.load(torch.compile(model))
    assert list(engine.generate(PROMPTS, 2, SETTINGS)) and engine.reason is None
