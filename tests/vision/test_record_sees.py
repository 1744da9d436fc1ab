"""What a run that sees leaves behind: pictures in its record and its loggers, once each; none where none are wanted."""

import base64
import json

import numpy as np
import pytest
from transformers import TrainerCallback

pytest.importorskip("torchvision", reason="pictures need the extra `vision`")


import covey.runs
from covey.runs.report import write_report
from covey.runs.what_if import WhatIf, rescore
from tests.runs.pictured import EXIF_WORDS, files_below, photo
from tests.runs.record.test_pictures import MAGIC
from tests.trainer.harness import make, train
from tests.vision.test_training_sees import SMALL
from tests.vision.tiny_eyes import asked, by_letters, tiny_eyes_policy

pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
SIZE = (64, 48)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_eyes_policy(tmp_path_factory.mktemp("policy"))


def rows():
    """Three rows: two pictures, one that another row shows too, and none."""
    shown = [[photo(0, SIZE), photo(1, SIZE)], [photo(1, SIZE)], []]
    return [{"prompt": asked(f"What {i}?"), "images": images} for i, images in enumerate(shown)]


def run(policy, folder, reward=by_letters, **settings):
    return train(
        policy,
        folder,
        reward,
        rows(),
        **SMALL | dict(max_steps=3, display="plain", log_completions=True) | settings,
    )


def test_two_runs_leave_equal_pictures_and_groups_and_the_reader_has_them(policy, tmp_path):
    found = []
    for name in "ab":
        run(policy, tmp_path / name)
        kept = [
            p
            for p in files_below(tmp_path / name)
            if p.suffix in (".webp", ".parquet") or p.name == "completions.jsonl"
        ]
        found.append({p.relative_to(tmp_path / name): p.read_bytes() for p in kept})
    assert found[0] == found[1]
    pictures = [path for path in found[0] if path.suffix == ".webp"]
    assert len(pictures) == 2 and not any(EXIF_WORDS in data or b"EXIF" in data for data in found[0].values())
    frame = covey.runs.open(tmp_path / "a").completions()
    shown = [json.loads(text) if text else [] for text in frame["pictures"].fillna("")]
    assert {len(entries) for entries in shown} == {0, 1, 2}
    assert {e["digest"] for entries in shown for e in entries} == {path.stem for path in pictures}
    page = write_report([tmp_path / "a"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('id="b0-0-picture-') == 2


def test_with_none_no_pixel_is_below_the_output_directory(policy, tmp_path):
    logger = Board()
    run(policy, tmp_path / "run", record_pictures="none", callbacks=[logger])
    write_report([tmp_path / "run"], tmp_path / "run" / "report.html")
    held = {path.name: path.read_bytes() for path in files_below(tmp_path / "run")}
    assert "completions.jsonl" in held and [n for n, data in held.items() if MAGIC.search(data)] == []
    assert logger.images == [] and logger.texts


@pytest.mark.parametrize("is_path", [False, True])
def test_with_none_a_checkpoint_inside_a_round_holds_what_is_still_trained_on_and_nothing_else_does(
    policy, tmp_path, is_path
):
    """Bytes of pictures that came as bytes, paths of those that came from files."""
    shown = {f"{i}.jpg": photo(i, SIZE) for i in range(2)}
    for name, data in shown.items():
        (tmp_path / name).write_bytes(data)
    rows = [{"prompt": asked(f"{n}?"), "image": n if is_path else data} for n, data in shown.items()]
    inside = dict(num_iterations=2, max_steps=2, save_strategy="steps", save_steps=1, record_pictures="none")
    train(policy, tmp_path / "run", by_letters, rows, image_root=str(tmp_path), **SMALL | inside)
    files = {path.relative_to(tmp_path / "run"): path.read_bytes() for path in files_below(tmp_path / "run")}
    whole = [data for one in shown.values() for data in (one, base64.b64encode(one))]
    held = {path for path, data in files.items() if any(one in data for one in whole)}
    named = {path for path, data in files.items() if b".jpg" in data and "checkpoint" in str(path)}
    assert {path.parts[0] for path in (named if is_path else held)} == {"checkpoint-1"}
    assert not (held if is_path else named)


def test_a_resumed_run_has_the_pictures_of_one_that_was_not_interrupted(policy, tmp_path):
    run(policy, tmp_path / "whole")
    run(policy, tmp_path / "cut", save_strategy="steps", save_steps=1)
    again = make(policy, tmp_path / "cut", by_letters, rows(), **SMALL, max_steps=3, display="plain")
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-1"))
    names = [
        sorted(p.name for p in (tmp_path / n / "record" / "pictures").iterdir()) for n in ("whole", "cut")
    ]
    assert names[0] == names[1]


def test_full_pictures_are_what_rewards_were_given(policy, tmp_path, monkeypatch):
    given = {}

    def sees(completions, images, **_):
        for image in (image for several in images for image in several or ()):
            given[image.tobytes()] = image
        return [float(sum(np.asarray(i).mean() for i in several or ())) for several in images]

    run(policy, tmp_path / "run", sees, record_pictures="full")
    record = covey.runs.open(tmp_path / "run")
    kept = [record.picture(p.name[:64]).tobytes() for p in (record.folder / "pictures").glob("*.full.webp")]
    assert sorted(kept) == sorted(given)
    monkeypatch.chdir(tmp_path)
    for opened in (record, covey.runs.open("run")):  # as a script names it, and as a command does
        again = rescore(opened, WhatIf(rewards={"sees": sees}))
        assert np.allclose(again.after.totals, again.before.totals, atol=1e-9)


def test_without_a_policy_that_sees_the_record_shows_what_rewards_saw(tmp_path):
    from datasets import Dataset, Features, List, Value
    from datasets import Image as Pictures

    from tests.tiny import tiny_policy

    folder = tiny_policy(tmp_path / "text")
    text = {"role": Value("string"), "content": Value("string")}
    features = Features({"prompt": List(text), "images": List(Pictures())})
    data = Dataset.from_list(rows(), features=features)
    settings = dict(use_images=False, max_steps=3, display="plain", **SMALL)
    train(
        folder,
        tmp_path / "run",
        lambda completions, images, **_: [float(len(i)) for i in images],
        data,
        **settings,
    )
    frame = covey.runs.open(tmp_path / "run").completions()
    assert not MAGIC.search(frame.to_json().encode()) and " at 0x" not in frame.to_json()
    assert len(list((tmp_path / "run" / "record").glob("pictures/*.webp"))) == 2


# --- loggers ----------------------------------------------------------------------------------------------------------------


class Board(TrainerCallback):
    """What TensorBoard's callback is to the sender: known by its class's name, below."""

    def __init__(self):
        self.tb_writer, self.images, self.texts = self, [], []

    def add_image(self, tag, pixels, step, dataformats):
        assert dataformats == "HWC" and pixels.dtype == np.uint8 and pixels.shape[2] == 3
        self.images.append((tag, pixels.shape[:2], step))

    def add_text(self, tag, text, step):
        self.texts.append(text)

    def flush(self): ...


Board = type("TensorBoardCallback", (Board,), {})


def test_a_logger_gets_each_picture_once_and_a_table_that_names_it(policy, tmp_path):
    logger = Board()
    trainer = run(policy, tmp_path / "run", callbacks=[logger], logging_steps=1)
    tags = [tag for tag, _, _ in logger.images]
    assert sorted(set(tags)) == sorted(tags) and len(tags) == 2 and len(logger.texts) == 3
    digests = {p.stem for p in (tmp_path / "run" / "record" / "pictures").iterdir()}
    assert {tag.rpartition("/")[2] for tag in tags} == {digest[:16] for digest in digests}
    assert any(f"64×48 {digest[:4]}" in text for digest in digests for text in logger.texts)
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("off", [{"log_multimodal": False}, {"log_completions": False}])
def test_off_means_no_picture_anywhere_in_loggers(policy, tmp_path, off):
    logger = Board()
    run(policy, tmp_path / "run", callbacks=[logger], **off)
    assert logger.images == []
    assert bool(logger.texts) == ("log_multimodal" in off)
    assert len(list((tmp_path / "run" / "record" / "pictures").iterdir())) == 2, (
        "the record has its own setting"
    )
