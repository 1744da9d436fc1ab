"""Damage in the middle of a record hides only itself, from every reader."""

import json

import pytest

import covey.runs
from covey.cli import main
from covey.runs.record import segments
from tests.runs.synthetic import Story, write_run

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
    path.write_bytes(data[:300] + bytes(len(data) - 600) + data[-300:])


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
        segments._warned.clear()
        covey.runs.open(record).completions()


@pytest.mark.parametrize("damage", [cut, zeros, empty, other])
def test_damaged_rows_of_an_evaluation_hide_only_themselves(record, tmp_path, damage):
    damage(next((record / "evaluation_rows").iterdir()))
    assert len(read_everything(record, tmp_path)[3]) > 0


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
