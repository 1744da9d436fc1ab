"""Pictures in a record: each once, small, without a word of its file; marks in the texts; never more than the texts."""

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("PIL", reason="pictures need the extra `vision`")

from PIL import Image

import covey.runs
from covey.errors import RewardError
from covey.runs.export import Export
from covey.runs.record import schema
from covey.runs.record.completions_jsonl import CompletionLog, completion_rows
from covey.runs.record.json_text import json_text
from covey.runs.record.picture_files import SIDE, small, thumbnail
from covey.runs.record.resume import drop_after
from covey.runs.record.tables import printed
from covey.runs.what_if import WhatIf, rescore
from covey.types import Picture, Prompt, Score
from covey.vision.marks import mark, marked, word, worded
from covey.vision.pictures import PictureError
from tests.runs.episodes import write_episodes
from tests.runs.pictured import EXIF_WORDS, answered, asked, files_below, painting, photo, pictured

MAGIC = re.compile(
    rb"\x89PNG|\xff\xd8\xff|RIFF....WEBP|GIF8|II\*\x00|iVBORw0|/9j/|UklGR|\\\\x89PNG|\\\\xff\\\\xd8",
    re.DOTALL,
)
"""How files of pictures begin; also as base64, and as Python and JSON write bytes."""


def block(source=None):
    return {"type": "image"} if source is None else {"type": "image", "image": source}


def text(words="What is it?"):
    return {"type": "text", "text": words}


def png(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def forms(tmp_path):
    """One picture as rows may give it, by a name for each way."""
    image = painting()
    data = png(image)
    (tmp_path / "a.png").write_bytes(data)
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    columns = {
        "pil": image, "array": np.asarray(image), "bytes": data, "mapping": {"bytes": data, "path": "a.png"}, "path": "a.png",
        "path mapping": {"bytes": None, "path": "a.png"}, "uri": uri,
    }  # fmt: skip
    rows = {f"images as {name}": {"prompt": asked(), "images": [value]} for name, value in columns.items()}
    rows |= {f"image as {name}": {"prompt": asked(), "image": value} for name, value in columns.items()}
    rows |= {f"block with {n}": {"prompt": asked(block(v), text())} for n, v in columns.items()}
    rows["block with base64"] = {"prompt": asked({"type": "image", "base64": uri.partition(",")[2]}, text())}
    rows["block of OpenAI"] = {"prompt": asked({"type": "image_url", "image_url": {"url": uri}}, text())}
    rows["text"] = {"prompt": "<image> What is it?", "images": [image]}
    return rows


def test_a_picture_in_any_form_leaves_a_mark_a_thumbnail_and_nothing_else(forms, tmp_path):
    """No pixel, no base64, no place in memory, in the record and beside it; and the reader has the picture again."""
    for name, row in forms.items():
        scored = pictured(row, root=tmp_path)
        record = write_episodes(tmp_path / name, [scored])
        log = CompletionLog(tmp_path / name / "completions.jsonl")
        log.write(1, [scored])
        [picture] = scored.group.prompt.pictures
        run = covey.runs.open(record)
        rows = run.completions()
        entry = {"type": "image", "digest": picture.digest, "size": [400, 300]}
        path = {"path": str(tmp_path / "a.png")} if isinstance(picture.source, str) else {}
        assert [json.loads(p) for p in rows["pictures"]] == [[entry | path]] * 3, name
        if name != "text":
            prompt = json.loads(rows["prompt"][0])
            assert prompt[0]["content"] == [entry, text()], name
        for column in ("image", "images"):
            if column in row:
                held = json.loads(rows["columns"][0])[column]
                assert held == ([entry] if column == "images" else entry)
        found = files_below(tmp_path / name)
        assert [p.name for p in found if p.suffix == ".webp"] == [f"{picture.digest}.webp"]
        rest = b"".join(p.read_bytes() for p in found if p.suffix in (".json", ".jsonl"))
        rest += rows.to_json().encode()
        assert not MAGIC.search(rest) and not re.search(rb"0x[0-9a-f]{6}", rest), name
        assert run.picture(word(entry)[-5:-1]).size == (256, 192)


def test_a_thumbnail_is_small_and_says_nothing_but_the_picture(tmp_path):
    given = photo(size=(600, 900))
    assert EXIF_WORDS in given
    record = write_episodes(tmp_path, [pictured({"prompt": asked(), "images": [given]})])
    [path] = (record / "pictures").iterdir()
    data = path.read_bytes()
    image = Image.open(io.BytesIO(data))
    assert (
        image.size == (171, 256) and image.format == "WEBP" and not image.getexif() and EXIF_WORDS not in data
    )
    assert not set(image.info) & {"exif", "icc_profile", "xmp", "comment"}
    assert re.findall(rb"EXIF|ICCP|XMP ", data) == []


def test_what_is_drawn_is_kept_without_loss_where_that_takes_less():
    drawn, noisy = painting(size=(200, 200)), Image.effect_noise((200, 200), 80).convert("RGB")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(thumbnail(drawn)))), np.asarray(drawn))
    assert not np.array_equal(np.asarray(Image.open(io.BytesIO(thumbnail(noisy)))), np.asarray(noisy))
    assert max(small(painting(size=(1, 150))).size) == 150 and small(painting(size=(2000, 10))).size == (
        SIDE,
        1,
    )


def test_a_picture_is_written_once_and_equal_runs_leave_equal_bytes(tmp_path, monkeypatch):
    groups = [pictured({"prompt": asked(), "images": [photo(0), photo(1)]}, i) for i in range(3)]
    found = []
    for name in "ab":
        record = write_episodes(tmp_path / name, groups[:2], groups)
        found.append(
            {p.name: p.read_bytes() for p in files_below(record) if p.suffix in (".webp", ".parquet")}
        )
    assert found[0] == found[1] and sum(name.endswith(".webp") for name in found[0]) == 2
    writes = []
    monkeypatch.setattr("covey.runs.record.picture_files.thumbnail", lambda image: writes.append(1) or b"x")
    write_episodes(tmp_path / "c", groups, groups)
    assert len(writes) == 2


@pytest.mark.parametrize("pictures", ["thumbnail", "full"])
def test_pictures_are_never_recorded_without_their_texts(tmp_path, pictures):
    groups = [pictured({"prompt": asked(), "images": [photo(i)]}, i) for i in range(40)]
    record = write_episodes(tmp_path / "half", groups, record_completions=0.4, record_pictures=pictures)
    rows = covey.runs.open(record).completions()
    kept = {json.loads(p)[0]["digest"] for p in rows["pictures"].dropna()}
    assert 5 < len(kept) < 30 and {p.name.partition(".")[0] for p in (record / "pictures").iterdir()} == kept
    assert rows["pictures"].notna().equals(rows["completion"].notna())
    record = write_episodes(tmp_path / "no", groups, record_completions="none", record_pictures=pictures)
    assert not (record / "pictures").exists() and b"digest" not in b"".join(
        p.read_bytes() for p in files_below(record / "groups")
    )


def test_with_none_no_pixel_is_on_the_disk(forms, tmp_path):
    groups = [pictured(row, i, tmp_path) for i, row in enumerate(forms.values())]
    record = write_episodes(tmp_path / "run", groups, record_pictures="none")
    CompletionLog(tmp_path / "run" / "completions.jsonl").write(1, groups)
    frame = covey.runs.open(record).completions()
    held = [frame.to_json().encode(), *(p.read_bytes() for p in files_below(tmp_path / "run"))]
    assert not any(MAGIC.search(data) for data in held)
    assert frame["pictures"].notna().all(), "digests stay"


def test_a_run_that_shows_the_policy_nothing_leaves_no_pixel_either(forms, tmp_path):
    """`use_images=False`: prompts have no pictures; contents and columns still hold them."""
    for row in forms.values():
        columns = {name: value for name, value in row.items() if name != "prompt"}
        record = write_episodes(tmp_path / "blind", [answered(Prompt(row["prompt"], (1,), columns))])
        frame = covey.runs.open(record).completions()
        assert "pictures" not in frame and not (record / "pictures").exists()
        assert not MAGIC.search(frame.to_json().encode()) and " at 0x" not in frame.to_json()


def test_columns_of_text_named_like_pictures_stay(tmp_path):
    """An image of a container is a name."""
    columns = {"image": "ubuntu:24.04", "images": [], "n": 3}
    assert marked(Prompt("a", (1,), columns))[1] == columns


def test_no_address_of_an_object_is_written():
    class Odd:
        pass

    said = json_text({"a": [Odd()], "b": {1: lambda: 0}, "c": painting(), "d": b"\x89PNG secret"})
    held = {(1, 2): b"\x89PNG secret"}
    circle: dict[str, object] = {"pixels": b"\x89PNG secret"}
    circle["itself"] = circle
    assert json.loads(json_text(held)) == {"(1, 2)": "<11 bytes>"} and "PNG" not in json_text(circle)
    assert " at 0x" not in said and "PNG" not in said and "Odd object" in said and "<11 bytes>" in said


def test_a_picture_is_written_as_its_mark_wherever_it_stands():
    picture = Picture(b"", "ab" * 32, (4, 3))
    assert json.loads(json_text({"mask": [picture]})) == {"mask": [mark(picture)]}


def test_what_rewards_note_and_raise_names_no_place_in_memory(tmp_path):
    """Pictures, arrays and objects among the extras, and in a message of an error."""
    scored = pictured({"prompt": asked(), "images": [painting()]}, size=1)
    said = f"TypeError: cannot score {object()!r}"
    extras = {"seen": (painting(),), "box": (np.array([1.0, 2.0]),), "odd": ({"a": object()},)}
    scores = {"accuracy": (Score(None, "failed", said),)}
    record = write_episodes(tmp_path, [replace(scored, extras=extras, scores=scores)])
    run = covey.runs.open(record)
    held = run.completions().to_json() + run.events().to_json()
    assert "cannot score" in held and " at 0x" not in held
    assert json.loads(run.completions()["extra/box"][0]) == [1.0, 2.0]


def test_a_prompt_of_an_environment_that_shows_pictures_leaves_no_pixel(tmp_path):
    """Rewards alone see them: the prompt that an environment began anew holds references."""
    picture = pictured({"prompt": asked(), "images": [png(painting())]}).group.prompt.pictures[0]
    own = asked(block(picture), text("Begin."))
    scored = answered(Prompt(own, (1,)), 1)
    group = replace(scored.group, completions=(replace(scored.group.completions[0], own_prompt=own),))
    CompletionLog(tmp_path / "completions.jsonl").write(1, [replace(scored, group=group)])
    record = write_episodes(tmp_path, [replace(scored, group=group)], record_pictures="none")
    held = [
        (tmp_path / "completions.jsonl").read_bytes(),
        covey.runs.open(record).completions().to_json().encode(),
    ]
    assert not any(MAGIC.search(data) for data in held) and all(
        picture.digest.encode() in data for data in held
    )


def test_marks_stand_where_the_pictures_stood():
    """Columns before the first user's text; blocks in order; own payloads between them."""
    own, first, second = painting(1), painting(2), painting(3)
    row = {"prompt": [
        {"role": "system", "content": [block(own), text("Look.")]},
        {"role": "user", "content": "Which?"}], "images": [first, second]}  # fmt: skip
    scored = pictured(row)
    content, columns = marked(scored.group.prompt)
    digests = [p.digest for p in scored.group.prompt.pictures]
    assert [part.get("digest") for m in content for part in m["content"]] == [
        digests[0],
        None,
        *digests[1:],
        None,
    ]
    assert [m["digest"] for m in columns["images"]] == digests[1:] and row["images"] == [first, second]
    assert [p["text"] for p in worded(content)[1]["content"]] == [
        f" [picture 400×300 {digests[1][:4]}] ", f" [picture 400×300 {digests[2][:4]}] ", "Which?"]  # fmt: skip


@pytest.mark.parametrize(
    "part", [{}, {"size": "x"}, {"size": [1]}, {"size": [None, 2]}, {"digest": "../x"}, {"digest": 5}]
)
def test_marks_that_say_nonsense_are_pictures_all_the_same(part):
    assert word(part) == "[picture]"


def test_printed_prompts_say_which_picture():
    scored = pictured({"prompt": asked(), "images": [painting()]})
    said = "\n".join(printed(completion_rows(1, [scored]), 1))
    assert f"[picture 400×300 {scored.group.prompt.pictures[0].digest[:4]}]" in said and "PIL" not in said


def test_a_changed_or_lost_file_leaves_no_wrong_picture_and_an_event(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in "abc":
        painting(ord(name)).save(data / f"{name}.png")
    groups = [pictured({"prompt": asked(), "images": [f"{n}.png"]}, i, data) for i, n in enumerate("abc")]
    painting(7).save(data / "a.png")
    (data / "b.png").unlink()
    record = write_episodes(tmp_path / "run", groups)
    [kept] = (record / "pictures").iterdir()
    assert kept.name.startswith(groups[2].group.prompt.pictures[0].digest)
    events = covey.runs.open(record).events()
    [event] = events[events["kind"] == "record"].to_dict("records")
    assert event["details"] == {"pictures": 2} and "a.png has changed" in event["message"]


def test_a_resume_takes_out_the_pictures_of_later_steps(tmp_path):
    groups = [pictured({"prompt": asked(), "images": [photo(i)]}, i) for i in range(4)]
    record = write_episodes(tmp_path, groups[:2], groups[1:3], groups[3:])
    whole = {p.name: p.read_bytes() for p in (record / "pictures").iterdir()}
    (record / "pictures" / "half.tmp").write_bytes(b"x")
    drop_after(record, 1)
    left = {p.name.partition(".")[0] for p in (record / "pictures").iterdir()}
    assert left == {g.group.prompt.pictures[0].digest for g in groups[:2]} and len(whole) == 4
    segment = next((record / "groups").glob("*.parquet"))
    segment.write_bytes(b"damaged")
    drop_after(record, 1)
    assert len(list((record / "pictures").iterdir())) == 2, (
        "nothing is taken out where it is not known what is shown"
    )


def test_records_without_pictures_are_the_bytes_that_they_were(tmp_path):
    record = write_episodes(tmp_path, [answered(Prompt(asked(), (1, 2), {"answer": "red"}))])
    assert "pictures" not in covey.runs.open(record).completions() and not (record / "pictures").exists()
    mixed = write_episodes(
        tmp_path / "mixed",
        [answered(Prompt(asked(), (1, 2))), pictured({"prompt": asked(), "images": [photo()]})],
    )
    assert covey.runs.open(mixed).completions()["pictures"].notna().tolist() == [False] * 3 + [True] * 3
    assert set(schema.PICTURE_LEVEL) == {"pictures"}


def test_a_reader_finds_a_picture_by_the_beginning_of_its_digest(tmp_path):
    groups = [pictured({"prompt": asked(), "images": [photo(i)]}, i) for i in range(20)]
    run = covey.runs.open(write_episodes(tmp_path, groups, record_pictures="full"))
    digests = [g.group.prompt.pictures[0].digest for g in groups]
    whole = run.picture(digests[3])
    assert whole.size == (400, 300) and np.array_equal(
        np.asarray(whole), np.asarray(Image.open(io.BytesIO(photo(3))))
    )
    shared = next(d[0] for d in digests if sum(other[0] == d[0] for other in digests) > 1)
    for wrong, words in (
        (shared, "several pictures"),
        ("", "no picture"),
        ("../../run", "no picture"),
        ("zz", "no picture"),
    ):
        with pytest.raises(LookupError, match=words):
            run.picture(wrong)


# --- rescore --------------------------------------------------------------------------------------------------------------


def redness(completions, images, **_):
    assert all(isinstance(image, Image.Image) for several in images for image in several)
    return [float(np.asarray(several[0])[..., 0].mean()) for several in images]


def by_prompt(prompts, completions, **_):
    return [float(np.asarray(p[0]["content"][0]["image"])[..., 0].mean()) for p in prompts]


def by_text(completions, **_):
    return [float(len(c[0]["content"])) for c in completions]


def reds(groups):
    return [np.asarray(painting(i))[..., 0].mean() for i in range(len(groups)) for _ in range(3)]


@pytest.mark.parametrize("reward", [redness, by_prompt])
def test_rewards_are_run_again_on_the_pixels_that_they_had(tmp_path, reward):
    """From the record where it has them whole, though the dataset's files are gone; else from where they came from."""
    for i in range(3):
        painting(i).save(tmp_path / f"{i}.png")
    what_if = WhatIf(rewards={"accuracy": reward})
    groups = [pictured({"prompt": asked(), "images": [f"{i}.png"]}, i, tmp_path) for i in range(3)]
    small_ones = write_episodes(tmp_path / "small", groups)
    full = write_episodes(tmp_path / "full", groups, record_pictures="full")
    assert rescore(small_ones, what_if).after.totals.tolist() == reds(groups)
    for i in range(3):
        (tmp_path / f"{i}.png").unlink()
    assert rescore(full, what_if).after.totals.tolist() == reds(groups)


@pytest.mark.parametrize("change", ["gone", "changed", "no file"])
def test_a_reward_whose_pictures_cannot_be_opened_again_is_an_error_that_says_so(tmp_path, change):
    painting(0).save(tmp_path / "a.png")
    source = painting(0) if change == "no file" else "a.png"
    record = write_episodes(
        tmp_path / "run", [pictured({"prompt": asked(), "images": [source]}, 0, tmp_path)]
    )
    (tmp_path / "a.png").unlink() if change == "gone" else painting(1).save(tmp_path / "a.png")
    words = {"gone": "cannot be read", "changed": "has changed since", "no file": r"record_pictures='full'"}
    with pytest.raises(RewardError, match=f"'accuracy' asks for images.*{words[change]}"):
        rescore(record, WhatIf(rewards={"accuracy": redness}))
    assert rescore(record, WhatIf(rewards={"accuracy": by_text})).after.totals.tolist() == [8.0] * 3


def test_export_says_where_the_pictures_are(tmp_path):
    scored = pictured({"prompt": asked(), "images": [photo(), painting()]})
    for kind in ("thumbnail", "full", "none"):
        record = write_episodes(tmp_path / kind, [scored], record_pictures=kind)
        line = next(iter(Export(covey.runs.open(record))))
        assert [p["digest"] for p in line["pictures"]] == [p.digest for p in scored.group.prompt.pictures]
        sizes = [Image.open(p["file"]).size for p in line["pictures"] if p["file"]]
        assert sizes == {"thumbnail": [(256, 192)] * 2, "full": [(400, 300)] * 2, "none": []}[kind]
        assert [part["type"] for part in line["messages"][0]["content"]] == ["image", "image", "text"]


def test_a_damaged_picture_is_an_error_of_its_own(tmp_path):
    record = write_episodes(tmp_path, [pictured({"prompt": asked(), "images": [photo()]})])
    [path] = (record / "pictures").iterdir()
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(PictureError):
        covey.runs.open(record).picture(path.stem)
