"""Worked cases from end to end: answers follow the picture that was learned, one picture is one policy however it is given, a policy
that would draw placeholders trains."""

import os
import resource

import numpy as np
import pytest
import torch

from covey.sample.native.engine import NativeEngine
from covey.sample.prompts import PromptReader
from covey.sample.sampling import Sampling
from covey.update.forward import Forward, packed_logprobs, plain_logprobs
from covey.update.packed_attention import packed
from covey.update.view import Viewer
from covey.vision.eyes import ProcessorEyes
from covey.vision.pictures import PictureLimits, reopened
from tests.tiny import EOS
from tests.trainer.harness import make
from tests.vision.test_sampling_sees import decode, drawn_ids, favoured, sampled
from tests.vision.test_update import micro_batch_of
from tests.vision.tiny_eyes import asked, drawn, encoded, six_ways, tiny_eyes

GREEDY = Sampling(greedy=True, max_new_tokens=3, stop_ids=(EOS,))
ANSWERS = {"red": (10, 11), "blue": (20, 21)}
"""Tokens to say of each picture."""


def reader_of(kind, root=None):
    model, processor = tiny_eyes(kind, scale=1.0)
    eyes = ProcessorEyes(processor, model, PictureLimits(root=root))
    return model, PromptReader(processor.tokenizer, eyes=eyes, blind="")


def read(reader, source, row=0):
    return reader.read({"prompt": asked(), "image": source}, row, (row, 0))


# --- B: two pictures, one question ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["qwen2_5_vl", "llava"])
def learned(request):
    """A policy that has learned to tell red from blue, by 100 supervised steps; and two prompts of equal ids."""
    model, reader = reader_of(request.param)
    prompts = [read(reader, drawn(colour), row) for row, colour in enumerate(ANSWERS)]
    assert prompts[0].ids == prompts[1].ids and prompts[0].key != prompts[1].key
    Forward(model)
    batch = micro_batch_of(
        [(prompt, [(*answer, EOS)]) for prompt, answer in zip(prompts, ANSWERS.values(), strict=True)]
    )
    viewer, optimizer = Viewer(model, reader.eyes), torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        with packed(model):
            logprobs, _, _ = packed_logprobs(model, batch, 1.0, False, viewer)
            (-logprobs.mean()).backward()
        optimizer.step()
    assert logprobs.exp().min() > 0.9
    return model, reader, prompts


@pytest.mark.parametrize("path", ["fast", "general"])
def test_what_is_answered_follows_the_picture_alone_and_together_in_either_order(learned, path):
    model, reader, (red, blue) = learned
    engine = NativeEngine(decode, eyes=reader.eyes, path=path)
    engine.load(model)
    together = sampled(engine, [red, blue], 2, GREEDY)
    assert drawn_ids(together) == [[(*answer, EOS)] * 2 for answer in ANSWERS.values()]
    alone = [sampled(engine, [prompt], 2, GREEDY)[0] for prompt in (red, blue)]
    turned = sampled(engine, [blue, red], 2, GREEDY)[::-1]
    values = [
        [x for g in way for c in g.completions for x in c.plain_logprobs] for way in (together, alone, turned)
    ]
    assert drawn_ids(together) == drawn_ids(alone) == drawn_ids(turned)
    assert values[0] == values[2]
    assert values[0] == pytest.approx(values[1], abs=1e-6)


# --- E: one picture, six ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "idefics3", "gemma3"])
def test_one_picture_in_six_ways_has_the_same_log_probabilities(kind, tmp_path):
    model, reader = reader_of(kind, tmp_path)
    Forward(model)
    found, ways = [], six_ways(tmp_path)
    for way in ways:
        batch = micro_batch_of([(read(reader, way), [(9, 12, 30), (40,)])])
        fresh = ProcessorEyes(
            reader.eyes.processor, model, reader.eyes.limits
        )  # looks again: nothing is in its memory
        for compute in (plain_logprobs, packed_logprobs):
            found.append(compute(model, batch, 1.0, False, Viewer(model, fresh))[0].detach())
    assert all(torch.equal(found[0], other) for other in found[::2])
    assert all(torch.equal(found[1], other) for other in found[1::2])
    lossy = encoded(ways[4], "JPEG", quality=40)
    other = micro_batch_of([(read(reader, lossy), [(9, 12, 30), (40,)])])
    assert not torch.equal(plain_logprobs(model, other, 1.0, False, Viewer(model, reader.eyes))[0], found[0])


# --- D: placeholders, in training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava"])
def test_a_policy_that_favours_placeholders_trains_and_draws_none(kind, tmp_path):
    """With the tied or untied head that it has, over three steps, whose log-probabilities are finite."""
    model, processor = tiny_eyes(kind)
    banned = ProcessorEyes(processor, model).placeholders
    favoured(model, dict.fromkeys(banned, 50.0))
    said = []

    def reward(completion_ids, **_):
        said.extend(completion_ids)
        return [float(sum(ids) % 7) for ids in completion_ids]

    rows = [{"prompt": asked(f"{i}?"), "images": [drawn("red", seed=i)] * (i % 3)} for i in range(6)]
    more = dict(
        per_device_train_batch_size=24,
        num_generations=8,
        max_completion_length=6,
        max_steps=3,
        learning_rate=1e-3,
    )
    trainer = make(model, tmp_path, reward, rows, processing_class=processor, **more)
    trainer.train()
    assert len(said) == 72 and not banned & {i for ids in said for i in ids}
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert all(np.isfinite([row["loss"], row["grad_norm"], row["entropy"]]).all() for row in logs)
    assert logs[0]["sampling/logp_gap/max"] < 1e-4


# --- many files -----------------------------------------------------------------------------------------------------------------


def test_five_hundred_files_are_read_where_few_may_be_open(tmp_path):
    """Rows, rewards' pictures and what is looked at again, with room for eight more files than the process has open."""
    _, reader = reader_of("qwen2_5_vl", tmp_path)
    for number in range(500):
        drawn("red", (8, 8)).save(tmp_path / f"{number}.bmp")
    drawn("blue", (8, 8)).save(tmp_path / "first.png")
    read(reader, "first.png")  # what is imported late is imported
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 8, before[1]))
    try:
        prompts = [read(reader, f"{number}.bmp", number) for number in range(500)]
        reader.eyes.kept.clear()
        for prompt in prompts[::50]:
            reader.eyes.look(prompt.ids, prompt.pictures)
            assert reopened(prompt.pictures[0]).size == (8, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
