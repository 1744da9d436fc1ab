"""Damage in the middle of a record hides only itself, from every reader."""

import json
import os
import sys

import pytest

import covey.runs
from covey.cli import main
from covey.runs.record import jsonl, segments
from covey.runs.what_if import WhatIf, rescore
from tests.runs.episodes import write_episodes
from tests.runs.synthetic import Story, open_writer, record_step, write_run

SHORT = Story(steps=8, prompts_per_step=3, group_size=4, evaluate_every=4, eval_prompts=5)
PER_SEGMENT = 9_000

pytestmark = pytest.mark.filterwarnings("ignore:.*damaged and left out")


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (PER_SEGMENT,))
    return write_run(tmp_path / "run" / "record", SHORT)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeros(path):
    data = path.read_bytes()
    edge = min(300, len(data) // 3)
    path.write_bytes(data[:edge] + bytes(len(data) - 2 * edge) + data[len(data) - edge :])


def empty(path):
    path.write_bytes(b"")


def other(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"step": ["one"], "completion": [5]}), path)


def read_everything(record, tmp_path):
    run = covey.runs.open(record)
    frames = run.steps(), run.statistics(), run.events(), run.evaluations(), run.groups(), run.completions()
    assert run.state in ("finished", "killed") and repr(run)
    assert main(["report", str(record.parent), "--output", str(tmp_path / "page.html")]) == 0
    assert main(["doctor", str(record.parent)]) in (0, 1)
    return frames


@pytest.mark.parametrize("damage", [cut, zeros, empty, other])
def test_a_damaged_segment_hides_only_its_own_completions(record, tmp_path, damage):
    whole = covey.runs.open(record).completions()
    paths = segments.segment_paths(record / "groups")
    lost = segments.read_segment(paths[1]).num_rows
    damage(paths[1])
    assert len(paths) > 2
    completions = read_everything(record, tmp_path)[-1]
    assert len(completions) == len(whole) - lost
    assert len(covey.runs.open(record).completions(columns=["total"])) in (len(whole) - lost, len(whole))
    with pytest.warns(match="damaged"):
        jsonl._warned.clear()
        covey.runs.open(record).completions()


@pytest.mark.parametrize("damage", [cut, zeros, empty, other])
def test_damaged_rows_of_an_evaluation_hide_only_themselves(record, tmp_path, damage):
    damage(next((record / "evaluation_rows").iterdir()))
    assert len(read_everything(record, tmp_path)[3]) > 0


def hole(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + data[len(data) * 6 // 10 :])


def torn_lines(path):
    path.write_bytes(path.read_bytes().replace(b"\n", b""))


def gone(path):
    path.unlink()


HELD = {"steps": "steps", "group_statistics": "statistics", "events": "events", "evaluations": "evaluations"}
"""Frame that a file of lines holds; all others hold completions, or the head."""
READ = ("steps", "statistics", "events", "evaluations", "completions")


@pytest.mark.parametrize("damage", [cut, zeros, empty, hole, torn_lines, gone])
def test_damage_of_any_file_changes_no_frame_but_its_own(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (PER_SEGMENT,))
    record = write_run(tmp_path / "record", SHORT, end=None)  # its last segment is open, and empty
    whole = {name: getattr(covey.runs.open(record), name)().to_json() for name in READ}
    for path in sorted(path for path in record.rglob("*") if path.is_file()):
        kept = path.read_bytes()
        damage(path)
        run = covey.runs.open(record)
        own = None if path.name == "run.json" else HELD.get(path.stem, "completions")
        for name in READ:
            assert name == own or getattr(run, name)().to_json() == whole[name], (path.name, name)
        assert run.state and repr(run) and run._repr_html_()
        rescore(run, WhatIf(scale_rewards="none"))
        path.write_bytes(kept)


@pytest.mark.parametrize("damage", [cut, zeros, empty, gone])
def test_damage_of_a_picture_changes_no_frame(tmp_path, damage):
    """A frame says which pictures there were; what became of their files is the page's affair, and `picture`'s."""
    pytest.importorskip("PIL", reason="pictures need the extra `vision`")
    from tests.runs.pictured import asked, photo, pictured

    groups = [pictured({"prompt": asked(), "images": [photo(i)]}, i) for i in range(2)]
    record = write_episodes(tmp_path / "run", groups, record_pictures="full")
    whole = {name: getattr(covey.runs.open(record), name)().to_json() for name in READ}
    pages = []
    for path in sorted((record / "pictures").iterdir()):
        damage(path)
        assert {name: getattr(covey.runs.open(record), name)().to_json() for name in READ} == whole
        read_everything(record, tmp_path)
        pages.append((tmp_path / "page.html").read_text(encoding="utf-8").count('id="b0-0-picture-'))
    assert pages[-1] == (2 if damage is zeros else 0), "a picture whose head is whole is the browser's affair"
    rescore(covey.runs.open(record), WhatIf(scale_rewards="none"))


def test_a_record_whose_head_is_gone_is_moved_aside_or_gone_on_with(record):
    (record / "run.json").unlink()
    writer = open_writer(record, SHORT, resume_step=4)
    record_step(writer, SHORT, 5)
    writer.close()
    assert covey.runs.open(record).steps().index.tolist() == [1, 2, 3, 4, 5]
    (record / "run.json").unlink()
    open_writer(record, SHORT).close()
    assert covey.runs.open(record).steps().empty, "nothing of the earlier run is in the new record"
    assert len(list(record.parent.glob("record-*"))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode alone")
def test_a_folder_whose_name_is_no_utf8_holds_a_record(tmp_path):
    record = write_run(tmp_path / os.fsdecode(b"run\xff") / "record", SHORT)
    frames = read_everything(record, tmp_path)
    assert len(frames[-1]) == 96 and len(covey.runs.open(record).evaluation_rows("held_out", 4)) > 0


@pytest.mark.skipif(sys.platform == "win32", reason="a folder is opened as a file on Unix alone")
def test_a_file_that_cannot_be_read_is_warned_of_once(record):
    (record / "steps.jsonl").unlink()
    (record / "steps.jsonl").mkdir()
    jsonl._warned.clear()
    with pytest.warns(match="damaged and left out"):
        assert covey.runs.open(record).steps().empty and covey.runs.open(record).steps().empty
    assert len(covey.runs.open(record).completions()) == 96


LINES = [
    b"{}", b"null", b"[1]", b"\0" * 50, b"[" * 100_000, b'{"step": {}}', b'{"step": null, "time": null, "kind": null, "details": null, "message": null}',
    b'{"step": 3, "time": 1.0, "metrics": null, "seconds": null, "numbers": null, "name": null, "rows": "x"}',
    b'{"step": "3", "time": "x", "metrics": {}, "seconds": {}, "numbers": {}, "name": "a", "rows": 5, "kind": "started", "message": "", "details": {}}',
    b'{"step": 3, "time": 1.0, "metrics": {"reward": {}}, "seconds": {}, "numbers": {"reward": "x"}, "name": "a", "rows": 5}',
    b'{"step": 3, "time": 1.0, "kind": "started", "message": "", "details": {"pid": "x", "host": 5}}',
    b'{"step": 3, "time": 1.0, "kind": "reward_failure", "message": "", "details": {"reward": 5}}',
    b'{"step": 3, "group": 0, "tokens": 5}', b'{"step": 3, "group": 0, "tokens": [1, 2], "score": {"a": [1]}}',
    b'{"step": 3, "group": 0, "tokens": [1], "total": ["x"]}', b"\xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("name", ["steps", "group_statistics", "events", "evaluations"])
def test_lines_that_are_not_ours_hide_only_themselves(record, tmp_path, name):
    path = record / f"{name}.jsonl"
    before = [frame.to_json() for frame in read_everything(record, tmp_path)]
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:1], *LINES[:-6], *LINES[-4:], *lines[1:]]) + b"\n")
    assert [frame.to_json() for frame in read_everything(record, tmp_path)] == before
    path.write_bytes(b"\n".join([*lines[:1], *LINES, *lines[1:]]) + b"\n")
    read_everything(record, tmp_path)


def test_groups_that_are_not_ours_hide_only_themselves(record, tmp_path):
    whole = covey.runs.open(record).completions()
    path = record / "groups" / "000099.jsonl"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    assert len(read_everything(record, tmp_path)[-1]) == len(whole)
    segments.tidy(record / "groups")
    assert len(read_everything(record, tmp_path)[-1]) == len(whole)


@pytest.mark.parametrize(
    "field",
    ["version", "settings", "rewards", "started", "name", "model", "environment", "git", "max_steps", "plan"],
)
@pytest.mark.parametrize("value", ["x", 5, [1], {"a": []}, None])
def test_a_field_of_the_header_of_another_type_is_left_out(record, tmp_path, field, value):
    if field == "version" and value == 5:
        return
    path = record / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}) + "\n")
    run = covey.runs.open(record)
    assert (
        run.name
        and isinstance(run.settings, dict)
        and isinstance(run.rewards, dict)
        and isinstance(run.environment, dict)
    )
    assert main(["report", str(record.parent), "--output", str(tmp_path / "page.html")]) == 0
