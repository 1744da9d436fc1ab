"""The sampler shows a policy the pictures of its prompts: what it draws follows the picture, and log-probabilities are the model's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from covey.errors import EngineError
from covey.models.fitness import unknown_ids
from covey.sample.chat import decode_text
from covey.sample.engine import in_order
from covey.sample.native import shown
from covey.sample.native.any_forward import AnyForward, Way
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.sample.turns import Answer
from covey.types import Completion, Group, Prompt
from tests.sample.native.books import checked_books as checked_books
from tests.tiny import EOS, PAD, tiny_model, tiny_tokenizer
from tests.vision.shown import ProcessorEyes
from tests.vision.tiny_eyes import EYES, FAST, drawn, tiny_eyes

SETTINGS = Sampling(max_new_tokens=6, stop_ids=(EOS,), seed=3)
TOKENIZER = tiny_tokenizer()


def decode(ids):
    return decode_text(TOKENIZER, ids, frozenset({PAD, EOS}))


@pytest.fixture(autouse=True, scope="module")
def books(checked_books):
    """The books of cache, scheduler and batch agree."""


class Seen:
    """A policy, its eyes, and an engine that has both."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind, self.options = kind, options
        self.model, self.processor = tiny_eyes(kind)
        self.eyes = ProcessorEyes(self.model, self.processor)
        self.engine = self.fresh()

    def fresh(self, **options: Any) -> NativeEngine:
        engine = NativeEngine(decode, eyes=self.eyes, **self.options, **options)
        engine.load(self.model)
        return engine

    def rows(self) -> list[Prompt]:
        """Prompts with one picture, none, two of other sizes, and one with the ids of the first and another picture."""
        ask, square = self.eyes.prompt, (32, 32)
        return [
            ask("What colour?", [drawn("red", square, 1)], 0),
            ask("none", [], 1),
            ask("Which of both is it?", [drawn("green", (84, 60), 2), drawn("gold", (56, 88), 3)], 2),
            ask("What colour?", [drawn("blue", square, 4)], 3),
        ]


GENERAL = {f"general {kind}": (kind, {"path": "general"}) for kind in EYES}
FASTER = {f"fast {kind}": (kind, {"path": "fast"}) for kind in FAST}
OTHERWISE = {
    "shared, in chunks": ("qwen3_vl", {"path": "fast", "shares_prompts": True, "prefill_tokens": 7}),
    "copied, own weights": ("qwen3_vl", {"path": "fast", "shares_prompts": False, "in_place": True}),
    "drafts": ("qwen2_5_vl", {"path": "fast", "prompt_lookup": True}),
}
"""The fast path in the other forms that it takes, by default or when asked."""
ALL = {**GENERAL, **FASTER, **OTHERWISE}
FEW = ("general qwen3_vl", "general paligemma", "fast qwen3_vl", "fast llava_next", "drafts")


@pytest.fixture(scope="module", params=ALL)
def seen(request):
    kind, options = ALL[request.param]
    return Seen(kind, **options)


@pytest.fixture(scope="module", params=FEW)
def one(request):
    kind, options = ALL[request.param]
    return Seen(kind, **options)


@torch.no_grad()
def own_logprobs(seen: Seen, prompt: Prompt, completion: Completion) -> list[float]:
    """Log-probabilities by one forward pass with pixels over prompt and completion; the model works out its own positions."""
    sight, n = seen.eyes.look(prompt.ids, prompt.pictures), len(completion.ids)
    types = {
        name: torch.cat([values, values.new_full((n,), sight.next_type)])[None]
        for name, values in sight.types.items()
    }
    ids = torch.tensor([[*prompt.ids, *completion.ids]])
    left = getattr(seen.model.model, "rope_deltas", None)
    logits = seen.model(input_ids=ids, attention_mask=torch.ones_like(ids), **sight.inputs, **types).logits
    if left is not None:
        seen.model.model.rope_deltas = left
    all_ = torch.log_softmax(logits[0, len(prompt.ids) - 1 : -1].float(), -1)
    return all_[torch.arange(n), torch.tensor(completion.ids)].tolist()


def sampled(engine, prompts, size=2, settings=SETTINGS, **more) -> list[Group]:
    return in_order(prompts, engine.generate(prompts, size, settings, **more))


def drawn_ids(groups):
    return [[completion.ids for completion in group.completions] for group in groups]


def assert_own(seen, groups):
    for group in groups:
        for completion in group.completions:
            assert completion.plain_logprobs == pytest.approx(
                own_logprobs(seen, group.prompt, completion), abs=2e-5
            )


def test_logprobs_are_those_of_a_full_forward_with_pixels(seen):
    groups = sampled(seen.engine, seen.rows())
    assert_own(seen, groups)
    assert all(c.policy_logprobs is not None for g in groups for c in g.completions), (
        "placeholders are not drawn"
    )


def test_equal_ids_and_other_pictures_are_two_prompts(seen):
    red, text, _, blue = seen.rows()
    assert red.ids == blue.ids and red.key != blue.key
    twin = replace(blue, seed_key=red.seed_key)  # the same random numbers: only the picture differs
    together = sampled(seen.engine, [red, twin])
    alone = [sampled(seen.engine, [prompt])[0] for prompt in (red, twin)]
    turned = sampled(seen.engine, [twin, text, red])
    assert drawn_ids(together) == drawn_ids(alone) == [drawn_ids(turned)[2], drawn_ids(turned)[0]]
    values = [[c.plain_logprobs for c in g.completions] for g in together]
    assert values[0] != values[1], "another picture, another policy"


@pytest.mark.parametrize("options", [{"max_sequences": 3}, {"memory": 1}], ids=str)
def test_waves_change_nothing(one, options):
    rows = one.rows()
    assert drawn_ids(sampled(one.fresh(**options), rows)) == drawn_ids(sampled(one.engine, rows))


@pytest.mark.parametrize("kind", FAST)
def test_both_paths_draw_the_same(kind):
    fast, general = (Seen(kind, path=path) for path in ("fast", "general"))
    assert drawn_ids(sampled(fast.engine, fast.rows())) == drawn_ids(sampled(general.engine, general.rows()))


@pytest.mark.parametrize("way", [Way(pads=False), Way(caches=False), Way(caches=False, pads=False)], ids=str)
@pytest.mark.parametrize("kind", ["qwen3_vl", "paligemma", "idefics3"])
def test_every_way_reads_the_same(kind, way):
    """Step by step, with rows repeated and put in order again."""
    seen = Seen(kind)
    rows = [p for p in seen.rows() if way.pads or (p.pictures and p.ids == seen.rows()[0].ids)]
    order = [*range(len(rows)), 0]
    sights = [seen.eyes.look(p.ids, p.pictures) for p in rows]
    found = []
    with torch.no_grad():
        for its_way in (Way(), way):
            forward = AnyForward(seen.model, its_way)
            logits = [forward.prefill([p.ids for p in rows], order, sights)]
            forward.select(torch.tensor(order[::-1]))
            for token in (50, 60):
                logits.append(forward.step(torch.full((len(order),), token)))
            found.append(torch.stack(logits))
    assert torch.allclose(*found, atol=2e-4)


class Tool:
    """Answers every turn with the same ids."""

    def opening(self, prompt, index):
        return (7, 8)

    def __init__(self, *said):
        self.said = said

    def ended(self, prompt, index, ids, reason, room):
        return Answer(
            self.said or (9, 10, 11), None if len(ids) < 9 and room > 8 and reason != "length" else "turns"
        )

    def closed(self, prompt, index, completion):
        return completion


def test_turns_read_the_picture_again(one):
    seen = one
    settings = replace(SETTINGS, max_new_tokens=16, max_turn_length=3, stop_ids=tuple(range(0, 400, 2)))
    groups = sampled(seen.engine, seen.rows(), settings=settings, turns=Tool())
    several = [c for g in groups for c in g.completions if len(c.turns) > 1]
    assert several
    for group in groups:
        for completion in group.completions:
            own = own_logprobs(seen, group.prompt, completion)
            expected = [p if wrote else 0.0 for p, wrote in zip(own, completion.loss_mask, strict=True)]
            assert completion.plain_logprobs == pytest.approx(expected, abs=2e-5)


def test_an_answer_that_names_a_picture_is_an_error(one):
    turns = Tool(9, one.model.config.image_token_id)
    settings = replace(SETTINGS, max_new_tokens=16, max_turn_length=3, stop_ids=tuple(range(0, 400, 2)))
    with pytest.raises(EngineError, match=r"Row 2: an answer .* stands for a part of a picture"):
        list(one.engine.generate(one.rows()[2:3], 4, settings, turns))


def favoured(model: nn.Module, ids: dict[int, float]) -> None:
    """Give some ids a head start, whatever comes before them."""
    head = model.get_output_embeddings()
    bias = torch.zeros(head.weight.shape[0])
    for token, value in ids.items():
        bias[token] = value
    head.bias = nn.Parameter(bias)


EVERY_PATH = [options for _, options in OTHERWISE.values()] + [{"path": "fast"}, {"path": "general"}]


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava", "gemma3"])
@pytest.mark.parametrize("options", EVERY_PATH, ids=str)
def test_placeholders_are_never_drawn(kind, options):
    """Of 200 completions none holds one, on every path."""
    if kind == "gemma3" and options["path"] == "fast":
        pytest.skip("it has no fast path")
    policy = Seen(kind, **options)
    config, bias = policy.model.config, {}
    for name, value in (("image_token_id", 50.0), ("video_token_id", 49.0)):
        if getattr(config, name, None) is not None:
            bias[getattr(config, name)] = value
    favoured(policy.model, bias)
    groups = sampled(policy.fresh(), policy.rows()[:2], 100)
    assert not bias.keys() & {i for g in groups for c in g.completions for i in c.ids}
    assert bias.keys() <= set(unknown_ids(policy.processor.tokenizer, policy.model, (EOS,))), (
        "nor by a server"
    )
    assert_own(policy, [replace(group, completions=group.completions[:3]) for group in groups])


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("path", ["fast", "general"])
def test_positions_that_a_model_remembers_are_neither_read_nor_left(kind, path):
    clean, stale = Seen(kind, path=path), Seen(kind, path=path)
    left = torch.tensor([[7]])
    stale.model.model.rope_deltas = left
    groups = [sampled(policy.engine, policy.rows()) for policy in (clean, stale)]
    assert drawn_ids(groups[0]) == drawn_ids(groups[1])
    assert clean.model.model.rope_deltas is None
    assert stale.model.model.rope_deltas is left


@pytest.mark.parametrize("path", ["fast", "general"])
def test_the_tower_runs_once_for_all_prompts_of_a_call(path):
    policy, calls = Seen("qwen2_5_vl", path=path), []
    rows = policy.rows()
    sampled(policy.engine, rows)  # whatever is compared the first time
    policy.model.model.visual.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["grid_thw"].shape[0]), with_kwargs=True
    )
    sampled(policy.engine, [*rows, replace(rows[0], seed_key=(9,))], 4)
    assert calls == [4], "four pictures of three prompts, whatever the number of completions"


def test_a_small_budget_of_tokens_lets_the_tower_read_in_slices():
    policy, calls = Seen("qwen2_5_vl", path="fast", prefill_tokens=5), []
    rows = policy.rows()
    policy.model.model.visual.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["grid_thw"].shape[0]), with_kwargs=True
    )
    groups = sampled(policy.engine, rows)
    assert calls[:3] == [1, 2, 1]
    assert_own(policy, groups)


@pytest.mark.parametrize("fault", ["shift", "factors", "deep"])
def test_the_first_picture_is_compared(fault, monkeypatch):
    """The text alone is right: only a picture shows what is wrong."""
    policy = Seen("qwen3_vl")
    wrong = {"shift": 0, "factors": None, "deep": ()}[fault]
    right = shown._shown
    monkeypatch.setattr(shown, "_shown", lambda *a: replace(right(*a), **{fault: wrong}))
    rows = policy.rows()
    sampled(policy.engine, rows[1:2])
    assert policy.engine.reason is None
    with pytest.warns(UserWarning, match="does not know this Qwen3VLForConditionalGeneration after all"):
        groups = sampled(policy.engine, rows)
    assert "differ from the model's own" in policy.engine.reason
    assert_own(policy, groups)


def test_another_number_of_features_is_an_error():
    policy = Seen("llava", path="fast")
    prompt = policy.rows()[0]
    sight = policy.eyes.sights[prompt.key]
    sight.places[int(sight.places.nonzero()[0])] = False
    with pytest.raises(EngineError, match=r"makes 16 features .* for 15 tokens .* belongs to the policy"):
        sampled(policy.engine, [prompt])


def test_a_picture_that_nobody_sees_is_an_error():
    seen = Seen("llava")
    prompt = seen.rows()[2]
    engine = NativeEngine(decode)
    engine.load(seen.model)
    with pytest.raises(EngineError, match=r"row 2 has 2 picture\(s\), and the engine has no eyes"):
        list(engine.generate([prompt], 1, SETTINGS))
    blind = NativeEngine(decode, eyes=seen.eyes)
    blind.load(tiny_model("llama"))
    with pytest.raises(EngineError, match=r"row 2 has 2 picture.*LlamaForCausalLM reads text alone"):
        list(blind.generate([prompt], 1, SETTINGS))


def test_a_policy_of_text_may_draw_everything():
    assert unknown_ids(TOKENIZER, tiny_model("llama"), ()) == ()
