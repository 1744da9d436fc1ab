"""Discs: pictures, letters, the reward, and the policy that is made to see badly."""

import io
from collections import Counter

import pytest
from PIL import Image

from covey.errors import ConfigError, DatasetError
from covey.tasks import disc_rows, discs_reward, discs_run, discs_solved
from covey.tasks.discs import COLOURS, QUARTERS, SIDE, disc_puzzles
from covey.tasks.split import split_of

SOME = disc_puzzles(200, seed=3)


def pixels(encoded):
    image = Image.open(io.BytesIO(encoded))
    assert image.format == "PNG" and image.size == (SIDE, SIDE) and image.mode == "RGB"
    return image


@pytest.mark.parametrize("puzzle", SOME[:60], ids=lambda p: p.answer)
def test_the_letters_are_those_of_the_picture(puzzle):
    """Read from pixels: which ones are bright, what they look like, and where the middle of them is."""
    image = pixels(puzzle.picture())
    bright = [(x, y) for x in range(SIDE) for y in range(SIDE) if max(image.getpixel((x, y))) > 110]
    middle = [sum(place) / len(bright) for place in zip(*bright, strict=True)]
    seen = [sum(image.getpixel(place)[channel] for place in bright) / len(bright) for channel in range(3)]
    nearest = min(
        COLOURS, key=lambda letter: sum((a - b) ** 2 for a, b in zip(COLOURS[letter], seen, strict=True))
    )
    quarter = next(
        letter for letter, steps in QUARTERS.items() if steps == tuple(int(m > SIDE / 2) for m in middle)
    )
    assert puzzle.answer == nearest + quarter
    assert all((x >= SIDE // 2, y >= SIDE // 2) == tuple(map(bool, QUARTERS[quarter])) for x, y in bright)


def test_every_answer_is_asked_for_about_as_often():
    counts = Counter(puzzle.answer for puzzle in disc_puzzles(3_200, seed=1))
    assert len(counts) == 16 and all(140 < count < 260 for count in counts.values())


def test_rows_are_deterministic_and_held_out_pictures_are_unseen():
    assert disc_rows(20, seed=3) == disc_rows(20, seed=3) != disc_rows(20, seed=4)
    pictures = {
        split: {row["image"] for row in disc_rows(1_000, seed=1, split=split)}
        for split in ("train", "held_out")
    }
    assert (
        all(len(found) == 1_000 for found in pictures.values())
        and not pictures["train"] & pictures["held_out"]
    )
    with pytest.raises(DatasetError, match="split is 'test'"):
        disc_rows(1, split="test")


@pytest.mark.parametrize(
    ("said", "graded", "solved"),
    [
        *(("rc", 1, 1), ("rd", 0.5, 0), ("gc", 0.5, 0), ("gd", 0, 0)),
        *((said, 0, 0) for said in ("cr", "r", "", "rcc", "rc\n", " rc", "RC", "rgby", "rc" * 10**5)),
    ],
)
def test_letters_are_paid_in_their_places_and_nothing_may_stand_beside_them(said, graded, solved):
    for completion in (said, [{"role": "assistant", "content": said}]):
        assert discs_reward([completion], answer=["rc"]) == [graded]
        assert discs_solved([completion], answer=["rc"]) == [solved]
    assert discs_reward([said], answer=[None]) == discs_solved([said], answer=[None]) == [None]


def test_the_gold_is_paid_in_full():
    for row in disc_rows(20):
        gold = discs_reward.gold_completion(row)
        assert (
            discs_reward([gold], answer=[row["answer"]])
            == discs_solved([gold], answer=[row["answer"]])
            == [1.0]
        )
    assert discs_solved.gold_completion({}) is None


def test_a_run_trains_on_no_held_out_picture_and_its_pictures_fill_its_steps():
    [held_out] = discs_run.held_out_rows().values()
    rows = discs_run.train_rows(seed=2)
    assert len(rows) == discs_run.STEPS * discs_run.PROMPTS_PER_STEP and len(held_out) == discs_run.HELD_OUT
    assert not {row["image"] for row in rows} & {row["image"] for row in held_out}


def test_shuffling_exchanges_pictures_and_nothing_else():
    rows, mixed = (discs_run.train_rows(1, 60, is_shuffled) for is_shuffled in (False, True))
    assert mixed == discs_run.train_rows(1, 60, True)
    assert Counter(row["image"] for row in mixed) == Counter(row["image"] for row in rows)
    assert [row["answer"] for row in mixed] == [row["answer"] for row in rows]
    right = {row["image"]: row["answer"] for row in rows}
    assert sum(right[row["image"]] == row["answer"] for row in mixed) < 80


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install 'covey\[vision\]'"):
        disc_rows(1)


def test_the_policy_is_shown_right_answers_to_pictures_of_the_train_split(tools):
    maker = tools("train_discs_policy")
    assert all(split_of(puzzle.key) == "train" for puzzle in SOME)
    batch = maker.encoded(maker.new_processor(), SOME[:4])
    said = [
        ids[labels >= 0].tolist() for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    read = maker.new_processor().tokenizer.batch_decode(said)
    assert read == [f"{puzzle.answer}<|end|>" for puzzle in SOME[:4]]


def test_the_policy_is_read_as_it_was_made(tools):
    """Processor and shape in the package are those of the script; a picture is four tokens, as it is drawn."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from covey.tasks.assets import DISCS_POLICY

    maker = tools("train_discs_policy")
    shipped, made = AutoProcessor.from_pretrained(DISCS_POLICY), maker.new_processor()
    model, fresh = AutoModelForImageTextToText.from_pretrained(DISCS_POLICY), maker.new_policy(made.tokenizer)
    assert shipped.tokenizer.get_vocab() == made.tokenizer.get_vocab()
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in fresh.named_parameters()
    }
    read, own = maker.encoded(shipped, SOME[:2]), maker.encoded(made, SOME[:2])
    assert all((read[name] == own[name]).all() for name in own)
    assert (read["input_ids"][0] == shipped.image_token_id).sum() == 4
    assert read["image_grid_thw"].tolist() == [[1, 4, 4]] * 2
