"""The update of policies that see: each picture once through the tower, one gradient for every cut, and it matters what is shown."""

import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from covey.errors import CheckpointError
from covey.types import Completion, Prompt
from covey.update.forward import Forward, packed_logprobs, plain_logprobs
from covey.update.micro_batch import MicroBatch, micro_batch
from covey.update.packed_attention import packed
from covey.update.rollout_buffer import RolloutBuffer
from covey.update.samples import Sample
from covey.update.view import Viewer
from covey.vision.eyes import ProcessorEyes
from covey.vision.features import freeze, sees_with
from covey.vision.pictures import PictureLimits, read_picture
from tests.clocks import PATIENCE
from tests.trainer.harness import make
from tests.vision.tiny_eyes import EYES, PACKED, drawn, picture_rows, tiny_eyes, tiny_eyes_policy

SIZES = [(32, 32), (56, 30), (28, 84), (40, 40), (60, 44)]


def wide(kind):
    """A policy and its processor; windows of attention are longer than any row."""
    model, processor = tiny_eyes(kind)
    for part in model.modules():
        if getattr(part, "sliding_window", None):
            part.sliding_window = 512
    text = model.config.get_text_config()
    if getattr(text, "sliding_window", None):
        text.sliding_window = 512
    return model, processor


def policy(kind="qwen2_5_vl"):
    """A policy whose forward pass encodes what it is shown, and its eyes; all weights are trained."""
    model, processor = wide(kind)
    Forward(model)
    eyes = ProcessorEyes(processor, model)
    return model, eyes


def batch_of(eyes, groups, seed=0):
    """A micro-batch of groups given as (number of pictures, lengths of completions)."""
    rng, samples, drawings = random.Random(seed), [], 0
    for number, (pictures, lengths) in enumerate(groups):
        pairs = []
        for _ in range(pictures):
            colour = ("red", "green", "blue", "gold")[drawings % 4]
            pairs.append(read_picture(drawn(colour, SIZES[drawings % 5], drawings)))
            drawings += 1
        words = "".join(chr(rng.randrange(97, 110)) for _ in range(3 + number))
        text = words + (eyes.image_token + words[:2]) * pictures + "?"
        ids = eyes.read(text, pairs) if pairs else tuple(eyes.processor.tokenizer(text)["input_ids"])
        prompt = Prompt(words, ids, pictures=tuple(p for p, _ in pairs))
        for n in lengths:
            answer = tuple(rng.randrange(5, 30) for _ in range(n))
            samples.append(
                Sample(prompt, Completion(answer, (0.0,) * n, "", "stop"), rng.uniform(-1, 1), number)
            )
    return micro_batch(samples, list(range(len(samples))), [1.0] * len(samples))


def micro_batch_of(rows):
    """A micro-batch of completions of prompts."""
    samples = [
        Sample(prompt, Completion(answer, (0.0,) * len(answer), "", "stop"), 1.0, number)
        for number, (prompt, answers) in enumerate(rows)
        for answer in answers
    ]
    return micro_batch(samples, list(range(len(samples))), [1.0] * len(samples))


MIXED = [(1, (5, 3)), (0, (4,)), (2, (2, 6, 1)), (3, (3, 2))]


def gradient(model, batch, rows=None, way=plain_logprobs, viewer=None):
    """Log-probabilities of a batch in parts of these rows, and the gradient of a loss that adds up."""
    model.zero_grad()
    logprobs = []
    for part in rows or [range(batch.num_rows)]:
        cut = batch.select(list(part))
        with packed(model) if way is packed_logprobs else nullcontext():
            got, entropy, _ = way(model, cut, 0.9, False, viewer)
            (got * cut.advantage_of_token).sum().add(0.1 * entropy.sum()).backward()
        logprobs.append(got.detach())
    return torch.cat(logprobs), {n: p.grad for n, p in model.named_parameters()}


def assert_same(one, other, tolerance=2e-5):
    assert (one[0] - other[0]).abs().max() < tolerance
    scale = max(float(g.abs().max()) for g in other[1].values() if g is not None)
    for name, value in other[1].items():
        assert (one[1][name] is None) == (value is None), name
        if value is not None:
            assert (one[1][name] - value).abs().max() < tolerance * max(scale, 1.0), name


def by_hand(model, eyes, batch):
    """Log-probabilities of each row by itself, as the processor's inputs and the model's own positions give them."""
    found = []
    for ids, answer, pictures in zip(batch.prompts, batch.completions, batch.pictures, strict=True):
        sight = eyes.look(ids, pictures)
        types = {
            n: torch.cat([v, v.new_full((len(answer),), sight.next_type)])[None]
            for n, v in sight.types.items()
        }
        logits = model(
            input_ids=torch.tensor([[*ids, *answer]]), use_cache=False, **sight.inputs, **types
        ).logits[0]
        picked = torch.log_softmax(logits[len(ids) - 1 : -1] / 0.9, -1)
        found.append(picked.gather(-1, torch.tensor(answer)[:, None])[:, 0])
    return torch.cat(found).detach()


@pytest.mark.parametrize("kind", PACKED)
def test_packed_is_what_each_row_gives(kind):
    model, eyes = policy(kind)
    batch, viewer = batch_of(eyes, MIXED), Viewer(model, eyes)
    assert_same(
        gradient(model, batch, way=packed_logprobs, viewer=viewer),
        gradient(model, batch, viewer=viewer),
        5e-6 if kind != "gemma4" else 2e-5,  # its scores are not scaled down: rounding counts for more
    )


class Towers:
    """Counts calls of the tower, and what it is shown."""

    def __init__(self, model):
        names = ("visual", "vision_tower", "vision_model")
        [tower] = [m for n, m in model.named_modules() if n.count(".") == 1 and n.rpartition(".")[2] in names]
        self.calls = 0
        tower.register_forward_hook(self._count)

    def _count(self, *_):
        self.calls += 1


@pytest.mark.parametrize("kind", EYES)
def test_rows_are_what_the_model_makes_of_each_alone(kind):
    model, eyes = policy(kind)
    batch = batch_of(eyes, MIXED)
    got, _, _ = plain_logprobs(model, batch, 0.9, False, Viewer(model, eyes))
    assert (got - by_hand(model, eyes, batch)).abs().max() < 2e-5


@pytest.mark.parametrize("kind", EYES)
def test_a_cut_changes_no_gradient(kind):
    model, eyes = policy(kind)
    batch, viewer = batch_of(eyes, MIXED), Viewer(model, eyes)
    whole = gradient(model, batch, viewer=viewer)
    for cut in ([range(4), range(4, 8)], [[i] for i in range(8)]):
        assert_same(gradient(model, batch, cut, viewer=viewer), whole)


def test_the_tower_runs_once_in_each_pass():
    model, eyes = policy()
    towers, viewer = Towers(model), Viewer(model, eyes)
    shown = []
    model.model.visual.register_forward_pre_hook(
        lambda _, given, more: shown.append(len(more["grid_thw"])), with_kwargs=True
    )
    plain_logprobs(model, batch_of(eyes, [(1, (2,) * 8)] * 3), 1.0, False, viewer)
    assert (towers.calls, shown) == (1, [3])
    plain_logprobs(model, batch_of(eyes, [(0, (2, 3))]), 1.0, False, viewer)
    assert towers.calls == 2
    plain_logprobs(model, MicroBatch.idle("cpu"), 1.0, False, viewer)
    assert towers.calls == 3


@pytest.mark.parametrize("kind", EYES)
def test_a_pass_without_pictures_gives_the_tower_a_gradient_of_zero(kind):
    model, eyes = policy(kind)
    viewer = Viewer(model, eyes)
    _, seen = gradient(model, batch_of(eyes, MIXED), viewer=viewer)
    _, blind = gradient(model, batch_of(eyes, [(0, (3, 2))]), viewer=viewer)
    assert {n for n, g in seen.items() if g is None} == {n for n, g in blind.items() if g is None}
    tower = [n for n in seen if seen[n] is not None and ("visual" in n or "vision" in n)]
    assert tower and all(not blind[n].any() for n in tower)


def test_another_number_of_features_than_of_tokens_is_an_error():
    """Whatever the policy's own code would make of it."""
    model, eyes = policy("llava")
    batch = batch_of(eyes, [(1, (3, 2))])
    sight = eyes.look(batch.prompts[0], batch.pictures[0])
    sight.places[int(sight.places.nonzero()[0])] = False
    for way in (plain_logprobs, packed_logprobs):
        with pytest.raises(ValueError, match="makes 16 features of pictures for 15 tokens"):
            gradient(model, batch, way=way, viewer=Viewer(model, eyes))


@pytest.mark.parametrize("kind", EYES)
def test_a_frozen_tower_runs_once_in_a_window(kind):
    model, eyes = policy(kind)
    batch = batch_of(eyes, MIXED)
    trained = gradient(model, batch, viewer=Viewer(model, eyes))
    decoder = {
        id(p) for p in [*model.get_decoder().parameters(), *model.get_output_embeddings().parameters()]
    }
    learned = {id(p) for p in model.parameters() if p.requires_grad}
    freeze(model, projector=True)
    assert {id(p) for p in model.parameters() if p.requires_grad} == decoder & learned
    towers, viewer = Towers(model), Viewer(model, eyes)
    with torch.no_grad():
        old, _, _ = plain_logprobs(model, batch, 0.9, False, viewer)
    for _ in range(3):
        logprobs, gradients = gradient(model, batch, [range(4), range(4, 8)], viewer=viewer)
    assert towers.calls == 1
    assert (old - trained[0]).abs().max() < 2e-5
    assert_same(
        (logprobs, gradients),
        (trained[0], {n: g if gradients[n] is not None else None for n, g in trained[1].items()}),
    )
    viewer.begin_window([batch])
    plain_logprobs(model, batch, 0.9, False, viewer)
    assert towers.calls == 1
    viewer.begin_window([])
    plain_logprobs(model, batch, 0.9, False, viewer)
    assert towers.calls == 2


@pytest.mark.parametrize("kind", EYES)
def test_another_picture_changes_what_is_likely(kind):
    model, eyes = policy(kind)
    batch, viewer = batch_of(eyes, [(1, (6, 6))]), Viewer(model, eyes)
    first, _, _ = plain_logprobs(model, batch, 1.0, False, viewer)
    other, _ = read_picture(drawn("blue", SIZES[0], 9))
    batch.pictures = [(other,)] * 2
    second, _, _ = plain_logprobs(model, batch, 1.0, False, viewer)
    assert (first - second).abs().max() > 1e-3


def test_the_side_on_which_a_processor_pads_changes_no_bit():
    model, eyes = policy("gemma3")
    batch = batch_of(eyes, MIXED)
    first, _, _ = plain_logprobs(model, batch, 1.0, False, Viewer(model, eyes))
    other = policy("gemma3")[1]
    other.processor.tokenizer.padding_side = (
        "left" if eyes.processor.tokenizer.padding_side == "right" else "right"
    )
    second, _, _ = plain_logprobs(model, batch, 1.0, False, Viewer(model, other))
    assert torch.equal(first, second)


def test_no_state_stays_on_the_policy():
    model, eyes = policy()
    before = model.model.rope_deltas
    plain_logprobs(model, batch_of(eyes, MIXED), 1.0, False, Viewer(model, eyes))
    assert model.model.rope_deltas is before


@pytest.mark.parametrize("kind", PACKED)
def test_every_family_packs(kind, caplog):
    model, processor = wide(kind)
    eyes = ProcessorEyes(processor, model)
    forward = Forward(model, 0.9, eyes=eyes)
    towers = Towers(model)
    batch = batch_of(eyes, MIXED)
    for _ in range(2):
        forward(model, batch)
    assert forward.is_fast and not caplog.records
    assert forward._packs(batch)
    towers.calls = 0
    forward(model, batch)
    forward(model, batch_of(eyes, [(0, (4,))]))
    assert towers.calls == 2


@pytest.mark.parametrize("before", ["a", "ab", "abc"])
def test_changed_neighbours_hold_no_film(before):
    """Between marks of a film a picture's token would mean a film's, and there is none."""
    model, processor = tiny_eyes("glm4v")
    eyes = ProcessorEyes(processor, model)
    forward = Forward(model, eyes=eyes)
    pairs = [read_picture(drawn(size=size)) for size in SIZES[:2]]
    texts = [f"{before}<|begin_of_image|>{eyes.image_token}<|end_of_image|>", f"x{before}{eyes.image_token}"]
    prompts = [Prompt("", eyes.read(t, [p]), pictures=(p[0],)) for t, p in zip(texts, pairs, strict=True)]
    answers = [Completion((9, 8, 7), (0.0,) * 3, "", "stop") for _ in prompts]
    samples = [Sample(p, a, 1.0, n) for n, (p, a) in enumerate(zip(prompts, answers, strict=True))]
    forward(model, micro_batch(samples, [0, 1], [1.0, 1.0]))
    assert forward.is_fast


def test_the_comparison_of_the_ways_lets_the_tower_run_twice():
    """Once for each way, for five passes; the pass that trains has it run again."""
    model, processor = wide("qwen2_5_vl")
    forward, towers = Forward(model, eyes=ProcessorEyes(processor, model)), Towers(model)
    batch = batch_of(forward.viewer.eyes, [(2, (3, 4))])
    with forward.layout(batch):
        assert (towers.calls, forward.is_due) == (2, False)
        forward(model, batch)
    assert towers.calls == 3 and not forward.viewer.kept


def test_questions_about_one_picture_show_it_once():
    model, eyes = policy()
    towers, viewer = [], Viewer(model, eyes)
    model.model.visual.register_forward_pre_hook(
        lambda _, given, more: towers.append(len(more["grid_thw"])), with_kwargs=True
    )
    batch = batch_of(eyes, [(1, (3, 2)), (1, (4,))])
    pair = read_picture(drawn("gold", (56, 30), 5))
    ids = [eyes.read(text + eyes.image_token, [pair]) for text in ("ab", "abc")]
    batch.prompts, batch.pictures = [ids[0], ids[0], ids[1]], [(pair[0],)] * 3
    got, _, _ = plain_logprobs(model, batch, 0.9, False, viewer)
    assert towers == [1]
    assert (got - by_hand(model, eyes, batch)).abs().max() < 2e-5
    assert_same(
        gradient(model, batch, way=packed_logprobs, viewer=viewer),
        gradient(model, batch, [[0], [1, 2]], viewer=viewer),
    )


@pytest.mark.parametrize("kind", ["gemma3", "paligemma"])
def test_without_spans_a_picture_would_not_see_itself_and_that_is_found(kind, caplog):
    """The law that they are needed: a packed row without them says something else, and the comparison gives packing up."""
    model, processor = wide(kind)
    eyes = ProcessorEyes(processor, model)
    look = eyes.look
    eyes.look = lambda ids, pictures: replace(look(ids, pictures), spans=())
    forward, batch = Forward(model, 0.9, eyes=eyes), batch_of(eyes, MIXED)
    viewer = Viewer(model, eyes)
    without, _ = gradient(model, batch, way=packed_logprobs, viewer=viewer)
    plain, _ = gradient(model, batch, viewer=viewer)
    assert (without - plain).abs().max() > 1e-2
    forward(model, batch)
    assert not forward.is_fast and "log-probabilities would differ by" in caplog.text


def test_checkpointed_layers_of_the_tower_attend_over_pictures_again():
    model, eyes = policy()
    batch, viewer = batch_of(eyes, MIXED), Viewer(model, eyes)
    whole = gradient(model, batch, way=packed_logprobs, viewer=viewer)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(gradient(model, batch, way=packed_logprobs, viewer=viewer), whole)


# --- a window in a checkpoint --------------------------------------------------------------------------------------------


def saved_window(tmp_path, eyes, batch):
    buffer = RolloutBuffer()
    buffer.fill([batch.select([0, 1, 2]), batch.select([3, 4, 5, 6, 7])], 1)
    buffer.next(1)
    buffer.save(tmp_path / "rank0")
    resumed = RolloutBuffer()
    resumed.load(tmp_path / "rank0", 1)
    return resumed


def test_a_window_with_pictures_continues_from_a_checkpoint(tmp_path):
    model, eyes = policy()
    batch = batch_of(eyes, MIXED)
    resumed = saved_window(tmp_path, eyes, batch)
    [left] = resumed.next(1)
    fresh = Viewer(model, ProcessorEyes(eyes.processor, model))
    assert [[p.digest for p in row] for row in left.pictures] == [
        [p.digest for p in row] for row in batch.pictures[3:]
    ]
    expected = plain_logprobs(model, batch.select([3, 4, 5, 6, 7]), 1.0, False, Viewer(model, eyes))
    assert torch.equal(plain_logprobs(model, left, 1.0, False, fresh)[0], expected[0])
    assert (tmp_path / "rank0.json").read_text().count('"pixels"') == 6  # each picture once


def test_a_changed_picture_is_an_error_that_names_it(tmp_path):
    _, eyes = policy()
    path = tmp_path / "disc.png"
    drawn("red").save(path)
    batch = batch_of(eyes, [(1, (3, 4, 2, 2)), (1, (1, 2, 3, 4))])
    picture, _ = read_picture(str(path), limits=PictureLimits(root=tmp_path))
    batch.pictures = [(picture,)] * 8
    saved_window(tmp_path, eyes, batch)
    drawn("blue").save(path)
    with pytest.raises(CheckpointError, match=r"disc\.png, and the picture has changed"):
        RolloutBuffer().load(tmp_path / "rank0", 1)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"disc\.png, which cannot be read"):
        RolloutBuffer().load(tmp_path / "rank0", 1)


# --- from end to end ------------------------------------------------------------------------------------------------------


def by_length(completions, **_):
    return [float(len(c[0]["content"])) + 0.1 * (c[0]["content"] > "m") for c in completions]


def trained(tmp_path, kind="qwen2_5_vl", steps=2, resume=None, **settings):
    """A trainer after its steps on rows with one picture, none and two."""
    folder = tmp_path / "policy"
    if not folder.exists():
        tiny_eyes_policy(folder, kind)
    out = tmp_path / str(len(list(tmp_path.iterdir())))
    rows = picture_rows(4, (1, 0, 2))
    small = dict(num_generations=4, max_completion_length=6, learning_rate=0.01, max_steps=steps)
    trainer = make(str(folder), out, by_length, rows, **{**small, **settings})
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def first(trainer, name):
    return next(row[name] for row in trainer.state.log_history if name in row)


def test_the_sampler_and_the_update_and_the_reference_see_the_same(tmp_path):
    trainer = trained(tmp_path, beta=0.1)
    assert first(trainer, "sampling/logp_gap/max") < 1e-5
    assert abs(first(trainer, "kl")) < 1e-9
    assert trainer.updater.forward.is_fast


@pytest.mark.parametrize(
    "settings", [{"freeze_vision_tower": True}, {"freeze_vision_tower": True, "freeze_projector": True}]
)
def test_what_is_frozen_stays(tmp_path, settings):
    trainer = trained(tmp_path, "llava", **settings)
    start = dict(tiny_eyes("llava")[0].named_parameters())
    moved = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, start[n])}
    assert not any("vision_tower" in n for n in moved)
    assert any("language_model" in n for n in moved)
    assert any("projector" in n for n in moved) != settings.get("freeze_projector", False)


@pytest.mark.parametrize("kind", EYES)
def test_what_joins_a_frozen_tower_to_the_decoder_goes_on_but_where_it_is_a_part_of_it(kind):
    """As docs/vision.md says of Qwen's families and GLM-4V."""
    model = tiny_eyes(kind)[0]
    has_projector = freeze(model, projector=False)
    assert (
        any(p.requires_grad for p in sees_with(model)) == has_projector != kind.startswith(("qwen", "glm4v"))
    )


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava"])
def test_a_projector_that_is_part_of_the_tower_cannot_be_frozen_besides_and_that_is_said(
    tmp_path, kind, recwarn
):
    trained(tmp_path, kind, freeze_vision_tower=True, freeze_projector=True, max_steps=1)
    said = any("freeze_projector has no effect" in str(warning.message) for warning in recwarn)
    assert said == (kind == "qwen2_5_vl")


def test_a_micro_batch_is_the_same_step_in_any_cut(tmp_path):
    whole = trained(tmp_path, per_device_train_batch_size=8)
    for size in (4, 2):
        cut = trained(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=8 // size)
        for (name, one), other in zip(whole.model.named_parameters(), cut.model.parameters(), strict=True):
            assert (one - other).abs().max() < 2e-6, name


def test_a_run_goes_on_inside_a_window_to_the_bit(tmp_path):
    settings = dict(
        steps=4, num_iterations=2, per_device_train_batch_size=4, save_strategy="steps", save_steps=1
    )
    whole = trained(tmp_path, **settings)
    folder = f"{whole.args.output_dir}/checkpoint-1"
    again = trained(tmp_path, **settings, resume=folder)
    assert again.state.global_step == 4
    for (name, one), other in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_all_pictures_on_one_of_two_processes_are_the_same_step_under_ddp(tmp_path):
    from tests.vision.two_processes import GROUPS

    command = [sys.executable, "-m", "tests.vision.two_processes", str(tmp_path)]
    both = [subprocess.Popen([*command, str(rank)]) for rank in (0, 1)]
    try:
        assert [one.wait(PATIENCE) for one in both] == [0, 0]
    finally:
        for one in both:
            one.kill()
    model, eyes = policy()
    viewer, total = Viewer(model, eyes), {}
    for rank, groups in enumerate(GROUPS):
        batch = batch_of(eyes, groups, seed=rank)
        model.zero_grad()
        logprobs, _, _ = plain_logprobs(model, batch, 1.0, False, viewer)
        (logprobs * batch.advantage_of_token).sum().backward()
        for name, parameter in model.named_parameters():
            total[name] = total.get(name, 0) + parameter.grad / 2
    for rank in (0, 1):
        for name, value in torch.load(tmp_path / f"{rank}.pt").items():
            assert (value - total[name]).abs().max() < 2e-5 * max(1.0, float(total[name].abs().max())), name
