"""The contract of an engine with turns: what stands behind an answer is drawn as if the text so far were the prompt.

One oracle for every path: an episode, turn by turn, each turn a call of its own without turns, with the random numbers that
its tokens have in the whole completion.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from covey.errors import EngineError
from covey.sample.chat import decode_text
from covey.sample.engine import in_order
from covey.sample.native import cuda_graphs, draw, sequences
from covey.sample.native import engine as native
from covey.sample.native.decode_loop import DecodeOptions, decode_loop
from covey.sample.native.engine import NativeEngine
from covey.sample.native.episode_rows import EpisodeRows
from covey.sample.native.llama import Llama
from covey.sample.native.sequences import SequenceTable
from covey.sample.native.weights import weights_of
from covey.sample.sampling import Sampling
from covey.sample.turns import Answer
from covey.types import Completion, Group, Prompt, Turn
from tests.sample.native.books import checked_books as checked_books
from tests.sample.remote.serving import ServedEngine
from tests.sample.remote.serving import ended as ended
from tests.tiny import EOS, PAD, STOP, VOCABULARY, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
ENDS = (EOS, *range(20, 32))
SETTINGS = Sampling(max_new_tokens=60, stop_ids=ENDS, padding_id=PAD, seed=3)
PROMPTS = [
    Prompt(text, tuple(TOKENIZER(text)["input_ids"]), {}, n, (n, 0))
    for n, text in enumerate(["2 + 3 =", "hello", "a longer prompt than the others"])
]
SIZE = 3
NUMBERS = (3, 20, 1, 30, 0)
"""Ids of answers: given one a step, read in chunks, or none at all."""


def decode(ids: Sequence[int]) -> str:
    return decode_text(TOKENIZER, ids, frozenset({PAD, EOS, STOP}))


def drawn(*key: int) -> random.Random:
    return random.Random(repr(key))


def answered(prompt: Prompt, index: int, turn: int, reason: str, room: int) -> Answer:
    """An answer that hangs on who asks, and on nothing else; ids that would end a turn are among them."""
    number = NUMBERS[(prompt.seed_key[0] + index + turn) % len(NUMBERS)]
    if reason == "length" or number >= room:
        return Answer(finish="length")
    if turn >= (prompt.seed_key[0] + 2 * index) % 4:
        return Answer((7, 8) if index == 1 and room > 2 else (), finish="turns")
    choose = drawn(prompt.seed_key[0], index, turn)
    return Answer(tuple(choose.choice([EOS, 20, *range(6, VOCABULARY)]) for _ in range(number)))


class Pending:
    """An answer that takes a while."""

    def __init__(self, answer: Answer, seconds: float) -> None:
        self.answer, self.at, self.waits = answer, time.monotonic() + seconds, 0

    def ready(self) -> bool:
        return time.monotonic() >= self.at

    def wait(self) -> Answer:
        self.waits += 1
        assert self.waits == 1
        time.sleep(max(0.0, self.at - time.monotonic()))
        return self.answer


class Script:
    """Turns with made-up answers: at once, or late by a random time."""

    def __init__(self, answer=answered, seconds=None, openings=None):
        self.answer, self.seconds, self.openings = answer, seconds, openings or {}
        self.asked: list[tuple[int, int, tuple[int, ...], str, int]] = []
        self.turns: dict[tuple[int, int], int] = {}

    def opening(self, prompt, index):
        return self.openings.get((prompt.seed_key[0], index), ())

    def ended(self, prompt, index, ids, reason, room):
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled(), "somebody else's code"
        who = prompt.seed_key[0], index
        turn = self.turns[who] = self.turns.get(who, -1) + 1
        self.asked.append((*who, ids, reason, room))
        answer = self.answer(prompt, index, turn, reason, room)
        return answer if self.seconds is None else Pending(answer, self.seconds())

    def closed(self, prompt, index, completion):
        return replace(completion, messages=({"role": "assistant", "content": f"{prompt.row} {index}"},))


def late() -> float:
    return random.random() * 0.05


def soon() -> float:
    return 0.0


# --- paths ------------------------------------------------------------------------------------------------------------

PATHS = {
    "general": {"path": "general"},
    "fast, prompts shared": {"shares_prompts": True},
    "fast, prompts copied": {"shares_prompts": False},
    "drafts": {"prompt_lookup": True},
    "graphs": {"shares_prompts": False, "prompt_lookup": False},
    "served": {},
    "served by two": {},
}
SERVED = {"served": 1, "served by two": 2}
"""Paths that lie beyond the process, by their numbers of servers."""


@pytest.fixture(params=PATHS)
def make(request, monkeypatch):
    """Engines of one path; captured steps repeat the work on the CPU."""

    def capture(work, memory):
        result = work()
        return (lambda: result.copy_(work())), result, None

    if request.param == "graphs":
        monkeypatch.setattr(cuda_graphs, "capture", capture)
        monkeypatch.setattr(native, "GRAPHED", ("cpu",))
    if request.param in SERVED:

        def served(model, **options):
            engine = ServedEngine(decode, TOKENIZER, SERVED[request.param], **options)
            engine.load(model)
            return engine

        return served
    return lambda model=None, **options: loaded(model, **{**PATHS[request.param], **options})


@pytest.fixture(scope="module")
def policy():
    return tiny_model("qwen2", scale=2.0)


def loaded(model, **options) -> NativeEngine:
    engine = NativeEngine(decode, **options)
    engine.load(model)
    return engine


def sampled(engine, turns, prompts=PROMPTS, size=SIZE, settings=SETTINGS) -> list[Group]:
    return in_order(prompts, engine.generate(prompts, size, settings, turns))


def completions_of(groups: Sequence[Group]) -> list[Completion]:
    return [c for g in groups for c in g.completions]


def ids_of(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    return [c.ids for c in completions_of(groups)]


# --- the oracle -------------------------------------------------------------------------------------------------------


def episode(model, prompt, index, answer=answered, opening=(), settings=SETTINGS):
    """Ids, log-probabilities, mask and finish of one completion, a call for each turn."""
    engine, patch = loaded(model, path="general"), pytest.MonkeyPatch()
    ids, logprobs, mask, turn = list(opening), [0.0] * len(opening), [False] * len(opening), 0
    while True:
        shift, key = len(ids) - len(opening), (settings.seed, *settings.step, *prompt.seed_key, index)
        with patch.context() as patched:
            patched.setattr(
                sequences,
                "uniforms",
                lambda _, n, key=key, shift=shift: draw.uniforms(key, shift + n)[shift:],
            )
            left = settings.max_new_tokens - shift
            so_far, one_turn = (
                replace(prompt, ids=(*prompt.ids, *ids)),
                replace(settings, max_new_tokens=left),
            )
            ((one,),) = (g.completions for g in engine.generate([so_far], 1, one_turn))
        ids, logprobs = [*ids, *one.ids], [*logprobs, *one.logprobs]
        mask += [True] * len(one.ids)
        reply = answer(prompt, index, turn, one.finish, settings.max_new_tokens + len(opening) - len(ids))
        ids, logprobs = [*ids, *reply.ids], [*logprobs, *[0.0] * len(reply.ids)]
        mask += [False] * len(reply.ids)
        turn += 1
        if reply.finish:
            return tuple(ids), logprobs, tuple(mask), reply.finish


@pytest.fixture(scope="module")
def expected(policy):
    return [episode(policy, prompt, index) for prompt in PROMPTS for index in range(SIZE)]


def assert_as_expected(groups, expected):
    for completion, (ids, logprobs, mask, finish) in zip(completions_of(groups), expected, strict=True):
        assert completion.ids == ids
        assert completion.loss_mask == mask and completion.finish == finish
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert [p for p, m in zip(completion.logprobs, mask, strict=True) if not m] == [0.0] * mask.count(
            False
        )
        written = [i for turn in completion.turns for i in range(turn.start, turn.stop)]
        assert written == [i for i, is_written in enumerate(mask) if is_written]
        spans = [(t.start, t.end) for t in completion.turns]
        assert [end for _, end in spans] == [start for start, _ in spans[1:]] + [len(ids)]


def test_an_episode_is_what_a_call_for_each_turn_gives(make, policy, expected):
    """W4, W13, row 48: ids, random numbers by place, log-probabilities, masks, ends; other numbers of turns side by side."""
    assert {sum(not m for m in mask) for *_, mask, _ in expected} >= {0, 3, 20, 30}, (
        "the script says too little"
    )
    script = Script()
    groups = sampled(make(policy), script)
    assert_as_expected(groups, expected)
    said = [c.messages[0]["content"] for c in completions_of(groups)]
    assert said == [f"{p.row} {index}" for p in PROMPTS for index in range(SIZE)]
    for row, index, ids, reason, room in script.asked:
        whole = groups[row].completions[index].ids
        assert whole[: len(ids)] == ids and room == SETTINGS.max_new_tokens - len(ids)
        assert reason == ("stop" if ids[-1] in ENDS else "length")


@pytest.mark.parametrize("schedule", ["fixed", "eager"])
def test_rows_that_wait_go_on_as_if_they_had_not(make, policy, expected, schedule):
    for limits in ({}, {"max_sequences": 2}, {"memory": 40_000}):
        groups = sampled(make(policy, schedule=schedule, **limits), Script(seconds=soon))
        assert_as_expected(groups, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_long_answers_take_is_in_no_bit(policy, dtype):
    """Row 45: the schedule is counted in steps."""
    engine = loaded(policy, dtype=dtype)
    at_once = completions_of(sampled(engine, Script(seconds=soon)))
    for _ in range(3):
        assert completions_of(sampled(engine, Script(seconds=late))) == at_once


def test_a_member_is_sampled_as_if_it_were_alone(make, policy, expected):
    """Row 33, 48: not the others of the group, not the others of the call."""
    engine = make(policy)
    assert ids_of(sampled(engine, Script(), PROMPTS[2:], 1)) == [expected[2 * SIZE][0]]
    many = sampled(engine, Script(seconds=soon), PROMPTS[:1], 8)
    assert ids_of(many)[:SIZE] == [ids for ids, *_ in expected[:SIZE]]


def test_openings_belong_to_the_prompt(make, policy):
    """W7: no limit, no turn and no random number counts them; long ones are read at once."""
    openings = {
        (0, 0): (7, 8),
        (0, 2): tuple(40 + n % 20 for n in range(30)),
        (1, 1): (EOS,),
        (2, 0): (20,) * 17,
    }
    groups = sampled(make(policy), Script(openings=openings))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for index, completion in enumerate(group.completions):
            opening = openings.get((prompt.seed_key[0], index), ())
            own = replace(prompt, ids=(*prompt.ids, *opening))
            ids, _, mask, finish = episode(policy, own, index)
            assert completion.ids == (*opening, *ids) and completion.finish == finish
            assert completion.loss_mask == (False,) * len(opening) + mask
            assert completion.opening == len(opening) == completion.turns[0].start


# --- limits and restrictions, by turns --------------------------------------------------------------------------------


def goes_on(prompt, index, turn, reason, room):
    return (
        Answer(finish="length") if reason == "length" or room < 4 or turn == 2 else Answer((EOS, 33, 34)[:3])
    )


def test_a_turn_has_a_limit_of_its_own_and_ends_the_completion(make, policy):
    settings = replace(SETTINGS, max_turn_length=5)
    groups = completions_of(sampled(make(policy), Script(goes_on), settings=settings))
    cut = [c for c in groups if c.turns[-1].stop - c.turns[-1].start == 5 and c.ids[-1] not in ENDS]
    assert cut and all(c.finish == "length" for c in cut)
    assert all(turn.stop - turn.start <= 5 for c in groups for turn in c.turns)
    assert max(len(c.turns) for c in groups) == 3
    with_two = [c for c in groups if len(c.turns) == 2]
    assert all(c.num_written == len(c.ids) - 3 for c in with_two)


def test_minimum_and_first_token_rules_begin_anew_with_each_turn(make, policy):
    first = tuple(range(40, 80))
    settings = replace(SETTINGS, min_new_tokens=3, begin_suppress_tokens=first)
    for completion in completions_of(sampled(make(policy), Script(goes_on), settings=settings)):
        for turn in completion.turns:
            said = completion.ids[turn.start : turn.stop]
            assert not set(said[:3]) & set(ENDS) and said[0] not in first
        assert completion.policy_logprobs is not None
        gaps = [i for i, is_written in enumerate(completion.loss_mask) if not is_written]
        assert [completion.policy_logprobs[i] for i in gaps] == [0.0] * len(gaps)


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}], ids=str)
def test_what_was_said_behind_a_turn_is_forgotten(make, policy, options):
    """A stop string is looked for every few tokens: what was drawn meanwhile is in no history."""
    settings = replace(
        SETTINGS, stop_ids=(), stop_strings=tuple("abcdefgh"), max_new_tokens=40, padding_id=None, **options
    )

    def answer(prompt, index, turn, reason, room):
        return (
            Answer((33, 34)) if reason == "stop_string" and room > 2 and turn < 2 else Answer(finish="length")
        )

    groups = sampled(make(policy), Script(answer), PROMPTS[:2], 2, settings)
    for prompt, group in zip(PROMPTS, groups, strict=False):
        for index, completion in enumerate(group.completions):
            ids, _, mask, _ = episode(policy, prompt, index, answer, settings=settings)
            assert (completion.ids, completion.loss_mask) == (ids, mask)


def test_stop_strings_are_looked_for_in_what_was_drawn(make, policy):
    """Row 44: an answer that holds the string, or completes it, ends nothing."""
    said = TOKENIZER("</s>", add_special_tokens=False)["input_ids"]
    settings = replace(SETTINGS, stop_ids=(), stop_strings=("s>", "e", "a"), max_new_tokens=40)

    def answer(prompt, index, turn, reason, room):
        if reason == "length" or room <= len(said) or turn == 3:
            return Answer(finish="length")
        return Answer(tuple(said))

    groups = completions_of(sampled(make(policy), Script(answer), settings=settings))
    assert any(len(c.turns) > 2 for c in groups)
    for completion in groups:
        for turn in completion.turns:
            text = decode(completion.ids[turn.start : turn.stop])
            is_last = turn is completion.turns[-1]
            assert is_last or any(text.endswith(stop) for stop in settings.stop_strings)
            assert not any(stop in text[:-1] for stop in ("e", "a"))


def test_an_answer_leaves_room_for_one_token_more(make, policy):
    """W3: what fills the room exactly cannot go on."""
    settings = replace(SETTINGS, max_new_tokens=8)
    for spare, is_right in ((1, True), (0, False), (-1, False)):

        def answer(prompt, index, turn, reason, room, spare=spare):
            return Answer(finish="turns") if turn or reason == "length" else Answer((9,) * (room - spare))

        def run(answer=answer):
            return completions_of(sampled(make(policy), Script(answer), settings=settings))

        if is_right:
            assert any(len(c.ids) == 8 and len(c.turns) == 2 for c in run())
            continue
        with pytest.raises(EngineError, match=r"turn 1 of completion .* has \d+ ids; .* fewer than"):
            run()


def test_a_turn_that_a_limit_ended_is_the_last(make, policy):
    with pytest.raises(EngineError, match="a limit of tokens"):
        sampled(
            make(policy),
            Script(lambda *_: Answer(())),
            settings=replace(SETTINGS, stop_ids=(), max_turn_length=3),
        )


def test_a_completion_ends_at_the_end_of_the_context(make):
    model = tiny_model("qwen2", scale=2.0, max_position_embeddings=48)
    script = Script(lambda *_: Answer(finish="length"), openings={(0, 0): (7,) * 20})
    settings = replace(SETTINGS, stop_ids=())
    groups = sampled(make(model), script, PROMPTS[:1], 1, settings)
    assert len(PROMPTS[0].ids) + len(groups[0].completions[0].ids) == 48
    with pytest.raises(EngineError, match="context is 48"):
        sampled(make(model), Script(openings={(0, 0): (7,) * 48}), PROMPTS[:1], 1, settings)


# --- what turns cost --------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch):
    """Tokens of every row in every pass of the fast path behind the prompts."""
    found, original = [], Llama.step
    monkeypatch.setattr(
        Llama,
        "step",
        lambda self, tokens, step: found.append(tuple(tokens.shape)) or original(self, tokens, step),
    )
    return found


def test_turns_that_answer_nothing_cost_no_step(policy, passes):
    """Row 49, from both sides: the same ids by the same passes."""
    engine = loaded(policy)
    list(engine.generate(PROMPTS[:1], 1, SETTINGS))  # the first call checks the policy
    passes.clear()
    plain = ids_of(in_order(PROMPTS, engine.generate(PROMPTS, SIZE, SETTINGS)))
    without = list(passes)
    passes.clear()

    def ends(prompt, index, turn, reason, room):
        return Answer(finish=reason)

    assert ids_of(sampled(engine, Script(ends))) == plain
    assert passes == without


def test_a_long_answer_takes_a_pass_and_not_a_step_for_each_of_its_ids(policy, passes):
    def answer(prompt, index, turn, reason, room):
        return Answer(finish="length") if turn or reason == "length" else Answer(tuple(range(6, 70)))

    settings = replace(SETTINGS, max_new_tokens=150)
    engine = loaded(policy, shares_prompts=True)
    groups = completions_of(sampled(engine, Script(answer), PROMPTS[:1], 4, settings))
    long = [shape for shape in passes if shape[1] > 1]
    assert all(shape[1] == 64 for shape in long) and 1 <= len(long) <= 4
    assert len(passes) - len(long) <= sum(c.num_written for c in groups)


def test_others_go_on_while_a_row_waits(policy):
    """Row 18: an answer that comes once another completion has gone on by a turn is no deadlock."""
    arrived = threading.Event()

    class Waits:
        def ready(self):
            return arrived.is_set()

        def wait(self):
            assert arrived.wait(20), "the others stood still"
            return Answer(finish="turns")

    class OneWaits(Script):
        def ended(self, prompt, index, ids, reason, room):
            if index == 0:
                return Waits()
            arrived.set()
            return Answer(finish="turns")

    # The first completion ends at once; the second only by its limit of 12 tokens.
    prompt, settings = PROMPTS[0], replace(SETTINGS, max_new_tokens=12, stop_ids=(), stop_strings=())
    first = ids_of(in_order([prompt], loaded(policy).generate([prompt], 2, settings)))
    ends = replace(settings, stop_ids=(first[0][0],))
    assert first[0][0] not in first[1], "choose another seed"
    for schedule in ("fixed", "eager"):
        arrived.clear()
        groups = sampled(loaded(policy, schedule=schedule), OneWaits(), [prompt], 2, ends)
        assert [len(c.ids) for c in groups[0].completions] == [1, 12]


@pytest.mark.parametrize("interval", [3, 8])
def test_ends_of_turns_may_be_looked_at_seldom(policy, expected, interval):
    """As on an accelerator: what is decoded behind an end is dropped, and what it overwrote is repaired."""
    with torch.no_grad():
        weights = weights_of(policy, torch.float32, in_place=True)
    for seconds in (None, soon):
        rows = EpisodeRows(PROMPTS, SIZE, SETTINGS, Script(seconds=seconds), weights.device, None)
        table = SequenceTable(PROMPTS, SIZE, SETTINGS, decode, weights.device, rows)
        options = DecodeOptions(1 << 30, 7, shares_prompts=False, interval=interval)
        assert_as_expected(in_order(PROMPTS, decode_loop(weights, table, options)), expected)


# --- the update -------------------------------------------------------------------------------------------------------


def test_the_trainer_gives_the_sampled_tokens_the_probabilities_that_the_sampler_gave(policy, expected):
    """W13: a wrong position, a missing end id or a cache that was overwritten shows here."""
    groups = sampled(loaded(policy, shares_prompts=False), Script(seconds=soon))
    gap = []
    for group in groups:
        for completion in group.completions:
            ids = torch.tensor([[*group.prompt.ids, *completion.ids]])
            with torch.no_grad():
                logits = policy(input_ids=ids).logits[0, len(group.prompt.ids) - 1 : -1].float()
            own = torch.log_softmax(logits, -1).gather(-1, ids[0, len(group.prompt.ids) :, None])[:, 0]
            mask = np.asarray(completion.loss_mask)
            gap.append(np.abs(np.asarray(completion.plain_logprobs) - own.numpy())[mask].max())
    assert max(gap) < 1e-5


def test_places_of_turns_are_plain_values(policy):
    """Two calls give equal completions, which travel between processes."""
    first, second = (completions_of(sampled(loaded(policy), Script())) for _ in range(2))
    assert first == second and isinstance(first[0].turns[0], Turn)
