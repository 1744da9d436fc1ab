"""Datasets with Image columns: nothing is decoded when a row is read, and policy and rewards see the same pictures all the same."""

import os
import subprocess
import sys
import textwrap

import datasets
import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, Image, List, Value

from covey.errors import DatasetError
from covey.plan import make_plan
from covey.rewards import RewardBatch
from covey.sample.given_data import GivenData, first_row, readable
from covey.sample.prompts import PromptReader
from covey.trainer.data import RolloutStream, kept_rows
from covey.types import Completion, Group, Picture
from covey.vision.eyes import ProcessorEyes
from covey.vision.pictures import read_picture
from tests.trainer.harness import make
from tests.vision.tiny_eyes import asked, drawn, encoded, tiny_eyes, tiny_eyes_policy

CHAT = List({"role": Value("string"), "content": Value("string")})
BLOCKS = List(
    {
        "role": Value("string"),
        "content": List({"type": Value("string"), "text": Value("string"), "image": Image()}),
    }
)
DONE = Completion((1,), (0.0,), "a", "stop")


@pytest.fixture(scope="module")
def reader():
    model, processor = tiny_eyes()
    return PromptReader(processor.tokenizer, eyes=ProcessorEyes(processor, model), blind="")


def table(count=3, **columns):
    """A dataset of Image columns: one picture, several, and a mask."""
    images = [[drawn("red", (40 + n, 32)), drawn("blue", (32, 40 + n))][: 1 + n % 2] for n in range(count)]
    masks = [drawn("gold").convert("L") for _ in range(count)]
    features = Features(
        {"prompt": CHAT, "images": List(Image()), "mask": Image(), **{n: f for n, (f, _) in columns.items()}}
    )
    rows = {
        "prompt": [asked()] * count,
        "images": images,
        "mask": masks,
        **{n: v for n, (_, v) in columns.items()},
    }
    return Dataset.from_dict(rows, features=features)


def given(prompt):
    """What a reward with **kwargs gets of a prompt."""
    from covey.rewards.batch import Notes
    from covey.rewards.contract import Reward

    def all_of_it(completions, **columns): ...

    batch = RewardBatch.of_groups([Group(prompt, (DONE, DONE))])
    return Reward(all_of_it, "all").arguments(batch, Notes(2))


@pytest.fixture
def decoded(monkeypatch):
    """Counts what `datasets` decodes."""
    seen = []
    decode = Image.decode_example

    def counted(self, value, token_per_repo_id=None):
        seen.append(value)
        return decode(self, value, token_per_repo_id)

    monkeypatch.setattr(Image, "decode_example", counted)
    return seen


WAYS = {
    "rows by number": lambda d: readable(d),
    "columns chosen": lambda d: readable(d.with_format(None, columns=["prompt", "images"])),
    "torch": lambda d: readable(d.with_format("torch")),
    "numpy": lambda d: readable(d.with_format("numpy")),
    "stream": lambda d: list(readable(d.to_iterable_dataset())),
    "first row": lambda d: [first_row(d)],
}


@pytest.mark.parametrize("way", WAYS)
def test_no_picture_of_a_column_is_decoded_when_rows_are_read(way, decoded, reader):
    dataset = table().remove_columns("mask")
    expected = [dataset[n]["images"] for n in range(3)]
    decoded.clear()
    rows = WAYS[way](dataset)
    for number in range(len(rows)):
        prompt = reader.read(rows[number], number, (number, 0))
        assert not decoded
        seen = given(prompt)["images"][0]
        assert [
            np.array_equal(np.asarray(i), np.asarray(e)) for i, e in zip(seen, expected[number], strict=True)
        ]
        assert all(isinstance(p.source, bytes) for p in prompt.pictures)


def test_other_columns_are_what_the_library_makes_of_them(reader):
    """A mask keeps its mode; a number stays a number."""
    dataset = table(
        kind=(datasets.ClassLabel(names=["a", "b"]), [0, 1, 0]),
        box=(datasets.Array2D((2, 2), "int64"), [[[1, 2], [3, 4]]] * 3),
    )
    row, theirs = readable(dataset)[1], dataset[1]
    assert row["mask"].mode == "L" and np.array_equal(np.asarray(row["mask"]), np.asarray(theirs["mask"]))
    assert {n: row[n] for n in ("kind", "box", "prompt")} == {n: theirs[n] for n in ("kind", "box", "prompt")}


def test_pictures_in_blocks_of_a_table_are_not_decoded(decoded, reader):
    content = [
        {"type": "image", "text": None, "image": drawn("gold")},
        {"type": "text", "text": "What?", "image": None},
    ]
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": content}]] * 2}, features=Features({"prompt": BLOCKS})
    )
    data = GivenData.of(dataset, None)
    decoded.clear()
    prompt = reader.read(readable(data.train)[0], 0, (0, 0))
    assert not decoded and len(prompt.pictures) == 1
    [block, _] = given(prompt)["prompts"][0][0]["content"]
    assert np.array_equal(np.asarray(block["image"]), np.asarray(drawn("gold")))


def test_files_of_an_image_column_are_opened_where_they_lie(tmp_path, reader):
    """Their paths are the dataset's, as the library opens them; a path as text stays below image_root."""
    drawn("blue").save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    dataset = Dataset.from_dict(
        {"prompt": [asked()], "image": [path]}, features=Features({"prompt": CHAT, "image": Image()})
    )
    for rows in (readable(dataset), list(readable(dataset.to_iterable_dataset()))):
        prompt = reader.read(rows[0], 0, (0, 0))
        assert prompt.pictures[0].source == path and prompt.columns["image"] == prompt.pictures[0]
        reader.eyes.kept.clear()
        reader.eyes.look(prompt.ids, prompt.pictures)  # seen again, from the file
        assert np.array_equal(np.asarray(given(prompt)["image"][0]), np.asarray(drawn("blue")))
    for value in (path, {"bytes": None, "path": path}):
        with pytest.raises(DatasetError, match=r"Row 0, column 'image', picture 0: .* no folder is named"):
            reader.read({"prompt": asked(), "image": value}, 0, (0, 0))


def test_a_stream_goes_on_with_its_epochs():
    """A shuffled stream has another order in each epoch, decoded or not."""
    dataset = (
        table(32, n=(Value("int64"), list(range(32)))).to_iterable_dataset().shuffle(seed=3, buffer_size=32)
    )
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append([row["n"] for row in readable(dataset)])
        assert orders[-1] == [row["n"] for row in dataset]
    assert orders[0] == orders[2] != orders[1]


def test_pictures_for_rewards_alone_are_not_decoded_either(decoded, reader):
    blind = PromptReader(reader.tokenizer, use_images=False)
    prompt = blind.read(readable(table().remove_columns("mask"))[1], 1, (1, 0))
    assert (
        not decoded and not prompt.pictures and all(isinstance(p, Picture) for p in prompt.columns["images"])
    )
    seen = given(prompt)
    assert [i.size for i in seen["images"][0]] == [(41, 32), (32, 41)] and seen["prompts"][0] == asked()


def test_what_no_image_column_holds_is_left_alone_for_rewards():
    """A docker image is no picture."""
    _, processor = tiny_eyes()
    row = {"prompt": asked(), "image": "ubuntu:24.04", "images": [{"path": "a.png", "bytes": None}, 5]}
    assert PromptReader(processor.tokenizer, use_images=False).read(row, 0, (0, 0)).columns == {
        n: row[n] for n in ("image", "images")
    }


# --- lengths and usability, from the heads of files --------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """Counts pictures whose pixels are read."""
    from covey.vision import pictures

    seen, load = [], pictures._loaded

    def counted(image):
        seen.append(image)
        return load(image)

    monkeypatch.setattr(pictures, "_loaded", counted)
    return seen


@pytest.mark.parametrize(
    "kind", ["qwen2_5_vl", "qwen3_vl", "idefics3", "llava", "llava_next", "internvl", "gemma3", "paligemma"]
)
def test_a_length_from_sizes_alone_is_that_of_the_prompt(kind, opened):
    model, processor = tiny_eyes(kind)
    eyes = ProcessorEyes(processor, model)
    reader = PromptReader(processor.tokenizer, eyes=eyes, blind="", max_length=1, overlong="drop")
    lengths = []
    for number, sizes in enumerate([[(32, 32)], [(60, 40), (90, 30)], [(30, 90)], [(32, 32)], []]):
        row = {"prompt": asked(f"What is\n{number}?"), "images": [encoded(drawn(size=s)) for s in sizes]}
        lengths.append(
            len(PromptReader(processor.tokenizer, eyes=eyes, blind="").read(row, number, (number, 0)).ids)
        )
        before = len(opened)
        assert PromptReader(
            processor.tokenizer, eyes=eyes, blind="", max_length=lengths[-1], overlong="drop"
        ).is_kept(row, number)
        assert reader.fault(row, number) == "long"
        assert PromptReader(
            processor.tokenizer, eyes=eyes, blind="", max_length=lengths[-1] - 1, overlong="drop"
        ).fault(row, number)
        assert len(opened) == before
    assert len(set(lengths)) > 2
    calls, process = [], eyes._processed
    eyes._processed = lambda *given: calls.append(given) or process(*given)
    row = {"prompt": asked("Another text?"), "images": [encoded(drawn(size=s)) for s in ((32, 32), (30, 90))]}
    assert reader.fault(row, 9) == "long"
    assert len(calls) == (kind == "paligemma")  # what a size takes is remembered, where it adds up


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("turn", [1, 3, 6, 8])
def test_a_size_by_the_head_is_upright(kind, turn):
    from covey.vision.pictures import picture_of

    exif = PIL.Image.Exif()
    exif[0x0112] = turn
    data = encoded(drawn(size=(60, 30)), kind, exif=exif)
    assert picture_of(data) == read_picture(data)[0]
    assert picture_of(data).size == ((30, 60) if turn in (6, 8) else (60, 30))


def test_notes_behind_the_pixels_of_a_png_are_found():
    """Some programs write EXIF at the end: then the pixels are read for the size."""
    from covey.vision.pictures import picture_of

    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = encoded(drawn(size=(60, 30)), exif=exif)
    at = data.index(b"eXIf") - 4
    length = int.from_bytes(data[at : at + 4], "big") + 12
    end = data.index(b"IEND") - 4
    moved = data[:at] + data[at + length : end] + data[at : at + length] + data[end:]
    assert picture_of(moved) == read_picture(moved)[0] and picture_of(moved).size == (30, 60)


def test_long_rows_are_dropped_by_heads_and_damaged_ones_by_decoding(reader, opened):
    """Damage behind the head is found where bad pictures are to be dropped; a length alone does not look for it."""
    whole, cut = encoded(PIL.Image.effect_noise((90, 60), 50).convert("RGB"), "JPEG"), None
    cut = whole[: len(whole) // 2]
    rows = [
        {"prompt": asked("a" * 90), "image": whole},
        {"prompt": asked(), "image": whole},
        {"prompt": asked(), "image": cut},
    ]
    settings = dict(eyes=reader.eyes, blind="", max_length=60, overlong="drop")
    with pytest.warns(
        match="1 of 3 rows of the training dataset have a prompt of more than max_prompt_length=60"
    ):
        assert kept_rows(rows, PromptReader(reader.tokenizer, **settings)) == [1, 2]
    assert not opened
    with pytest.warns(match="1 of 3 rows of the training dataset have a picture that cannot be used"):
        assert kept_rows(rows, PromptReader(reader.tokenizer, **settings, drops_bad_images=True)) == [1]
    assert len(opened) == 3


def test_where_no_row_is_left_the_way_out_is_that_of_the_fault(reader):
    """Whoever has broken pictures is not told to set another length of prompts, and the other way round."""
    good, cut = (
        {"prompt": asked(), "image": encoded(drawn())},
        {"prompt": asked(), "image": encoded(drawn())[:60]},
    )
    settings = dict(eyes=reader.eyes, blind="", max_length=2, overlong="drop", drops_bad_images=True)
    ways = {"overlong_prompts to 'truncate'": [good], "bad_images='error'": [cut]}
    for way, rows in ways.items():
        with (
            pytest.warns(match="leaves them out"),
            pytest.raises(DatasetError, match="none are left") as error,
        ):
            kept_rows(rows, PromptReader(reader.tokenizer, **settings))
        assert [other in str(error.value) for other in ways] == [other == way for other in ways]


def test_a_stream_says_what_it_dropped_when_its_first_round_is_over(reader):
    """Once, as a dataset whose rows have numbers does at the beginning."""
    bad = encoded(drawn("blue", (32, 200)))[:60]
    rows = [{"prompt": asked(), "image": encoded(drawn()) if n % 3 else bad} for n in range(6)]
    reader = PromptReader(reader.tokenizer, eyes=reader.eyes, blind="", drops_bad_images=True)
    stream = RolloutStream(rows, make_plan(group_size=4, micro_batch=8, accumulation=1, max_steps=9), reader)
    with pytest.warns() as told:
        drawn_rows = [number for _, part in zip(range(6), stream, strict=False) for number, _ in part]
    assert drawn_rows == [1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17]
    said = [str(w.message) for w in told if "cannot be used" in str(w.message)]
    assert said == [
        "2 of 6 rows of the training dataset have a picture that cannot be used, and bad_images='drop' leaves them out."
    ]


@pytest.mark.parametrize("form", ["table", "stream", "generator"])
def test_every_form_of_a_dataset_trains_and_shows_rewards_its_pictures(form, tmp_path):
    seen = []

    def sees(completions, images, **_):
        seen.extend(i.size for shown in images for i in shown)
        return [float(len(c[0]["content"]) % 3) for c in completions]

    dataset = table(4).remove_columns("mask")
    given = {
        "table": dataset,
        "stream": dataset.to_iterable_dataset(),
        "generator": (row for row in list(dataset)),
    }[form]
    settings = dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=4, max_steps=2)
    trainer = make(tiny_eyes_policy(tmp_path / "policy"), tmp_path, sees, given, **settings)
    trainer.train()
    assert set(seen) == {(40, 32), (41, 32), (42, 32), (43, 32), (32, 41), (32, 43)} and len(seen) == 4 * 6


@pytest.mark.parametrize(
    "way", ["https://10.0.0.1/{}", "http://10.0.0.1/{}", "zip://{}::https://10.0.0.1/x.zip", "s3://bucket/{}"]
)
def test_an_address_in_an_image_column_is_no_way_around_the_limits(way, reader, monkeypatch):
    """The library `datasets` would fetch it; whoever wrote the file of the dataset would have the machine ask for it."""
    monkeypatch.setattr(Image, "decode_example", lambda *_, **__: pytest.fail("it is fetched"))
    row = {"prompt": asked(), "image": {"bytes": None, "path": way.format("a.png")}}
    given = Dataset.from_list([row]).cast_column("image", Image())
    with pytest.raises(
        DatasetError, match=r"Row 0, column 'image', picture 0: .* is an address, and nothing is fetched"
    ):
        reader.read(readable(given)[0], 0, (0, 0))


# --- what is held ------------------------------------------------------------------------------------------------------------

FLAT = """
    import gc, os, resource, sys
    import PIL.Image
    from datasets import Dataset, Features, Image, List, Value
    from covey.plan import make_plan
    from covey.rewards import Mixture, RewardBatch
    from covey.sample.given_data import GivenData, readable
    from covey.sample.prompts import PromptReader
    from covey.trainer.data import ShardedPrompts, kept_rows
    from covey.types import Completion, Group
    from covey.vision.eyes import ProcessorEyes
    from covey.vision.pictures import PictureLimits
    from tests.vision.tiny_eyes import asked, tiny_eyes
    folder = sys.argv[1]
    paths = [f"{folder}/{n}.png" for n in range(500)]
    model, processor = tiny_eyes()
    reader = PromptReader(processor.tokenizer, eyes=ProcessorEyes(processor, model, PictureLimits(folder), most_bytes=10**5), blind="")
    reader.read({"prompt": asked(), "image": paths[0]}, 0, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    rows = [{"prompt": asked(), "image": path} for path in paths]
    chat = List({"role": Value("string"), "content": Value("string")})
    table = Dataset.from_dict({"prompt": [asked()] * 500, "image": paths}, features=Features({"prompt": chat, "image": Image()}))
    def judged(completions, image, **_):
        assert len(set(map(id, image))) == 2
        return [float(i.width) for i in image]
    held = []
    for given, size, steps in ((rows, 4, 300), (rows, 8, 100), (table, 4, 100)):
        given, mixture = readable(given), Mixture(judged)
        done = tuple(Completion((i,), (0.0,), "a", "stop") for i in range(size))
        for step in range(steps):
            numbers = [2 * step % 500, (2 * step + 1) % 500]
            prompts = [reader.read(given[n], n, (n, step)) for n in numbers]
            for prompt in prompts:
                reader.eyes.look(prompt.ids, prompt.pictures)
            mixture.score(RewardBatch.of_groups([Group(p, done) for p in prompts]))
            if step % 100 == 99:
                del prompts, prompt
                gc.collect()
                images = [o for o in gc.get_objects() if isinstance(o, PIL.Image.Image)]
                assert not images and reader.eyes.num_bytes <= 10**5
                held.append((len(os.listdir("/proc/self/fd")), len(reader.eyes.kept)))
    assert len(set(held)) == 1, held
"""


def test_three_hundred_steps_hold_no_more_than_the_first(tmp_path):
    """With 64 files at most open and 500 paths: no picture stays decoded, pixels are bounded, and files are closed; twice the
    completions per prompt, or a dataset in place of rows, hold the same."""
    for n in range(500):
        drawn("red", (32 + n % 8, 32)).save(tmp_path / f"{n}.png")
    command = [sys.executable, "-c", textwrap.dedent(FLAT), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == 0, done.stderr[-2000:]
