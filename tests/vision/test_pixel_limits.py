"""min_pixels and max_pixels for processors that have none: pictures are made smaller or larger before them, and nowhere else."""

import pytest
import torch
from transformers import AutoProcessor

from covey.errors import ConfigError
from covey.vision.eyes import ProcessorEyes, with_pixel_limits, within
from covey.vision.pictures import read_picture
from tests.trainer.harness import make
from tests.vision.tiny_eyes import EYES, drawn, picture_rows, tiny_eyes, tiny_eyes_policy

OWN = tuple(kind for kind in EYES if kind.startswith("qwen"))
"""Families whose processors have such limits."""
BEFOREHAND = tuple(kind for kind in EYES if kind not in OWN)
pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")


@pytest.mark.parametrize(
    ("size", "limits", "expected"),
    [
        ((100, 50), (1, 5000), (100, 50)),
        ((100, 50), (1, 1250), (50, 25)),
        ((100, 50), (1, 4999), (99, 49)),
        ((100, 50), (20_000, 90_000), (200, 100)),
        ((30, 10), (301, 900), (31, 11)),
        ((300, 2), (1, 100), (122, 1)),
    ],
)
def test_sides_keep_their_ratio(size, limits, expected):
    assert within(drawn(size=size), *limits).size == expected


@pytest.mark.parametrize("kind", BEFOREHAND)
@pytest.mark.parametrize("limits", [(None, 900), (9000, None)], ids=["smaller", "larger"])
def test_the_policy_sees_what_its_processor_makes_of_the_other_size(kind, limits):
    model, processor = tiny_eyes(kind)
    eyes = ProcessorEyes(with_pixel_limits(processor, *limits), model)
    shown, text = drawn("red", (60, 90), 3), f"a{processor.image_token}b"
    picture, image = read_picture(shown)
    ids = eyes.read(text, [(picture, image)])
    by_hand = shown.resize((24, 36) if limits[1] else (78, 117), 3)
    own = processor(images=[[by_hand]], text=[text], return_tensors="pt", add_special_tokens=False)
    assert list(ids) == own["input_ids"][0].tolist()
    for name, value in eyes.look(ids, [picture]).inputs.items():
        assert torch.equal(value, own[name]), name
    assert eyes.length(text, [(60, 90)]) == len(ids)
    eyes.kept.clear()
    assert all(torch.equal(v, own[n]) for n, v in eyes.look(ids, [picture]).inputs.items())
    assert picture.size == (60, 90)
    plain = ProcessorEyes(processor, model)
    plain_ids = plain.read(text, [(picture, image)])
    assert not same(plain.look(plain_ids, [picture]).inputs, eyes.look(ids, [picture]).inputs)


def same(some, others):
    """Whether the processor gave the same."""
    return all(torch.equal(value, others[name]) for name, value in some.items())


@pytest.mark.parametrize("kind", ["internvl", "llava_next", "mistral3", "glm4v", "ernie4_5_vl_moe"])
def test_fewer_pixels_are_fewer_tokens(kind):
    model, processor = tiny_eyes(kind)
    picture, image = read_picture(drawn("red", (112, 112), 3))
    counts = []
    for most in (None, 800):
        eyes = ProcessorEyes(with_pixel_limits(processor, None, most), model)
        counts.append(len(eyes.read(processor.image_token, [(picture, image)])))
    assert counts[1] < counts[0]


def test_rewards_get_the_picture_of_the_dataset_and_the_limits_are_saved(tmp_path):
    folder, got = tiny_eyes_policy(tmp_path / "policy", "mistral3"), []

    def reward(completions, images, **_):
        got.extend(image.size for one in images for image in one)
        return [float(len(c[0]["content"])) for c in completions]

    rows = picture_rows(2, size=(80, 60))
    small = dict(per_device_train_batch_size=4, num_generations=4, max_completion_length=4)
    trainer = make(folder, tmp_path, reward, rows, max_steps=1, max_pixels=900, **small)
    trainer.train()
    assert set(got) == {(80, 60)}
    trainer.save_model(str(tmp_path / "kept"))
    kept = ProcessorEyes(AutoProcessor.from_pretrained(tmp_path / "kept"), trainer.policy)
    token, pair = kept.image_token, read_picture(rows[0]["images"][0])
    ids = kept.read(token, [pair])
    assert ids == trainer.prompts.reader.eyes.read(token, [pair])
    before = ProcessorEyes(AutoProcessor.from_pretrained(folder), trainer.policy)
    assert len(before.read(token, [pair])) > len(ids)


@pytest.mark.parametrize("kind", ["mistral3", "qwen2_5_vl"])
def test_limits_that_no_picture_fits_are_an_error(kind):
    _, processor = tiny_eyes(kind)
    saved = with_pixel_limits(processor, 5000, 9000)
    with pytest.raises(
        ConfigError, match="min_pixels=5000 is above max_pixels=800, one of them as the processor"
    ):
        with_pixel_limits(saved, None, 800)
    assert with_pixel_limits(processor, None, None) is processor


def test_limits_of_a_processor_that_resizes_nothing_are_refused():
    """They would do nothing, without a word."""
    for kind, acts in (("qwen2_5_vl", False), ("llava", True)):
        _, processor = tiny_eyes(kind)
        processor.image_processor.do_resize = False
        if acts:  # before the processor
            assert with_pixel_limits(processor, None, 900) is not processor
            continue
        with pytest.raises(ConfigError, match="do_resize=False"):
            with_pixel_limits(processor, None, 900)
