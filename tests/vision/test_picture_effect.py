"""vision/effect: measured once, at step 1, without a trace in the run; 0 and a hint where the policy does not look."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from covey.metrics import Ledger, Mean, Once
from covey.runs.hints import watch_record
from covey.runs.hints.history import History
from covey.runs.hints.seeing import the_picture_does_not_matter
from covey.types import Completion, Prompt
from covey.update import updater
from covey.update.forward import Forward
from covey.update.micro_batch import micro_batch
from covey.update.picture_effect import GREY, in_grey, picture_effect, spread
from covey.update.samples import Sample
from covey.vision.eyes import ProcessorEyes
from covey.vision.pictures import read_picture
from covey.vision.sight import placed
from tests.trainer.harness import make
from tests.vision.tiny_eyes import asked, by_letters, drawn, picture_rows, tiny_eyes, tiny_eyes_policy

SMALL = dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=6, learning_rate=1e-3)
KINDS = ["qwen2_5_vl", "qwen3_vl", "idefics3", "llava", "gemma3", "paligemma"]
pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")


def samples_of(eyes, counts, size=3):
    """Completions of prompts with so many pictures."""
    rng, samples = random.Random(0), []
    for number, count in enumerate(counts):
        pairs = [read_picture(drawn("blue", (32 + 8 * number, 40), i)) for i in range(count)]
        text = "what" + (eyes.image_token + "so") * count + "?"
        ids = eyes.read(text, pairs) if pairs else tuple(eyes.processor.tokenizer(text)["input_ids"])
        prompt = Prompt(text, ids, pictures=tuple(p for p, _ in pairs))
        for i in range(size):
            answer = tuple(rng.randrange(5, 30) for _ in range(2 + i))
            samples.append(Sample(prompt, Completion(answer, (0.0,) * len(answer), "", "stop"), 1.0, number))
    return samples


def by_hand(model, eyes, samples):
    """The effect, row by row from the model's own logits, with pixels of the processor."""
    gaps = []
    for sample in samples:
        answer, found = sample.completion.ids, []
        for pictures in (
            sample.prompt.pictures,
            [read_picture(Image.new("RGB", p.size, GREY))[0] for p in sample.prompt.pictures],
        ):
            sight = eyes.look(sample.prompt.ids, pictures)
            typed = {
                n: torch.cat([v, v.new_full((len(answer),), sight.next_type)])[None]
                for n, v in sight.types.items()
            }
            if sight.positions is not None:
                typed["position_ids"] = placed(sight, len(sample.prompt.ids) + len(answer))[:, None]
                if len(sight.positions) == 1:
                    typed["position_ids"] = typed["position_ids"][0]
            with torch.no_grad():
                logits = model(
                    input_ids=torch.tensor([[*sample.prompt.ids, *answer]]),
                    use_cache=False,
                    **sight.inputs,
                    **typed,
                ).logits[0]
            chosen = torch.log_softmax(logits[len(sample.prompt.ids) - 1 : -1].double(), -1)
            found.append(chosen.gather(-1, torch.tensor(answer)[:, None])[:, 0])
        gaps += (found[0] - found[1]).abs().tolist()
    return sum(gaps) / len(gaps)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_mean_gap_to_grey_pictures(kind):
    model, processor = tiny_eyes(kind)
    eyes = ProcessorEyes(processor, model)
    samples = samples_of(eyes, (1, 0, 2))
    expected = by_hand(model, eyes, [s for s in samples if s.prompt.pictures])
    effect = picture_effect(Forward(model, eyes=eyes), samples, 99, torch.device("cpu"))
    assert abs(effect.value - expected) < 1e-5 and effect.value > 1e-3
    assert effect.count == 2 * (2 + 3 + 4)  # tokens of rows that see


def test_grey_pictures_have_the_sizes_of_the_others_and_nothing_else_changes():
    model, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, model)
    samples = samples_of(eyes, (1, 2))
    batch = micro_batch(samples, range(6), [1.0] * 6)
    grey = in_grey(batch)
    assert [[p.size for p in row] for row in grey.pictures] == [
        [p.size for p in row] for row in batch.pictures
    ]
    assert {np.asarray(p.source).min() for row in grey.pictures for p in row} == {
        128
    } and grey.prompts == batch.prompts
    assert [s.group for s in spread(samples)] == [0, 1] * 3  # as many prompts as there are, first of all


def test_nothing_is_measured_without_pictures():
    model, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, model)
    samples = samples_of(eyes, (0, 1))
    assert picture_effect(Forward(model, eyes=eyes), samples[:3], 9, torch.device("cpu")) is None
    assert picture_effect(Forward(tiny_eyes()[0]), samples, 9, torch.device("cpu")) is None


def test_processes_add_up_and_it_is_logged_once():
    """Each process measures by itself, on its own weights: one without pictures has nothing to say. Resumed ledgers go on so."""
    first, ledger = {"vision/effect": Once(1.0, 2.0), "kl": Mean(1.0)}, Ledger()
    assert ledger.reduce([first, {"vision/effect": Once(5.0, 4.0)}, {}]) == {"vision/effect": 1.0, "kl": 1.0}
    other = Ledger()
    other.restore(ledger.state())
    assert ledger.reduce([{}]) == other.reduce([{}]) == {"kl": 1.0}
    other.add({"vision/effect": Once(3.0, 2.0)})
    third = Ledger()
    third.restore(other.state())
    assert third.drain() == {"vision/effect": Once(3.0, 2.0)}


# --- in a run ---------------------------------------------------------------------------------------------------------------


def trained(folder, tmp_path, rows, reward=by_letters, max_steps=3, **settings):
    trainer = make(folder, tmp_path, reward, rows, max_steps=max_steps, **SMALL | settings)
    trainer.train()
    return trainer


def logged(trainer):
    return [
        (row["step"], row["vision/effect"]) for row in trainer.state.log_history if "vision/effect" in row
    ]


def test_a_run_logs_it_at_step_one_alone(tmp_path):
    folder = tiny_eyes_policy(tmp_path / "policy")
    trainer = trained(folder, tmp_path / "a", picture_rows(4, (1, 0, 2)))
    [(step, value)] = logged(trainer)
    assert step == 1 and value > 1e-3
    assert not the_hint(tmp_path / "a")
    text = trained(folder, tmp_path / "b", [{"prompt": asked()}], max_steps=1)
    assert not logged(text) and not the_hint(tmp_path / "b")


def the_hint(folder):
    [record] = [p.parent for p in folder.rglob("steps.jsonl")]
    return [hint for hint in watch_record(record).hints if hint.rule == the_picture_does_not_matter.name]


def test_a_policy_whose_projector_says_nothing_is_told_of(tmp_path):
    """Worked case K: exactly 0, and a hint."""
    model, processor = tiny_eyes()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "visual.merger" in name:
                parameter.zero_()
    trainer = make(
        model, tmp_path, by_letters, picture_rows(4), max_steps=2, processing_class=processor, **SMALL
    )
    trainer.train()
    assert logged(trainer) == [(1, 0.0)]
    [hint] = the_hint(tmp_path)
    assert hint.severity == "warning" and "0 nats" in hint.evidence and "projector" in hint.advice[0]


@pytest.mark.parametrize(("effect", "is_found"), [(None, False), (2e-4, False), (9e-5, True), (0.0, True)])
def test_the_hint_knows_its_bound(effect, is_found):
    history = History({}, {}, {}, {})
    for step in (1, 2):
        history.add(
            step,
            {"loss": 0.0, **({"vision/effect": effect} if effect is not None and step == 1 else {})},
            None,
        )
    assert bool(the_picture_does_not_matter.find(history)) is is_found


@pytest.mark.parametrize("settings", [{}, {"disable_dropout": False}, {"freeze_vision_tower": True, "freeze_projector": True}, {"num_iterations": 2}])  # fmt: skip
def test_it_changes_no_bit_of_the_run(settings, tmp_path, monkeypatch):
    """Weights, completions and random numbers are those of a run that does not measure, dropout or not."""
    folder = tiny_eyes_policy(tmp_path / "policy")
    runs = []
    for name in ("with", "without"):
        seen = []

        def reward(completions, seen=seen, **_):
            seen += [c[0]["content"] for c in completions]
            return by_letters(completions)

        if name == "without":
            monkeypatch.setattr(updater, "picture_effect", lambda *_: None)
        trainer = make(
            folder, tmp_path / name, reward, picture_rows(4, (1, 2)), max_steps=2, **SMALL | settings
        )
        for module in trainer.model.modules():
            if (
                isinstance(getattr(module, "attention_dropout", None), float)
                and "disable_dropout" in settings
            ):
                module.attention_dropout = 0.2
        trainer.train()
        runs.append(
            (
                seen,
                {n: p.clone() for n, p in trainer.policy.named_parameters()},
                torch.get_rng_state(),
                logged(trainer),
            )
        )
    (seen, weights, numbers, effect), (other_seen, others, other_numbers, none) = runs
    assert effect and not none and seen == other_seen and torch.equal(numbers, other_numbers)
    assert all(torch.equal(weights[n], others[n]) for n in weights)
