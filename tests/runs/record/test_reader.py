"""A record is read while the run goes on, after it ended, and after it was killed."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

import covey.runs
from covey.runs.record import segments
from covey.runs.record.json_text import encode
from covey.runs.record.jsonl import read_lines
from tests.runs.synthetic import Story, open_writer, record_step, write_run

SHORT = Story(steps=8, prompts_per_step=3, group_size=4, evaluate_every=4, eval_prompts=5)


def test_a_run_is_found_by_its_output_directory_or_its_record(tmp_path):
    write_run(tmp_path / "out" / "record", SHORT)
    assert covey.runs.open(tmp_path / "out").folder == covey.runs.open(tmp_path / "out" / "record").folder
    with pytest.raises(FileNotFoundError, match="No run record at"):
        covey.runs.open(tmp_path)


def test_a_record_of_a_newer_version_is_refused(tmp_path):
    folder = write_run(tmp_path / "record", SHORT)
    header = read_lines(folder / "run.json")[0]
    (folder / "run.json").write_bytes(encode(header | {"version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        covey.runs.open(folder)


def test_a_growing_record_is_read_step_by_step(tmp_path, monkeypatch):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (9_000,))
    writer = open_writer(tmp_path / "record", SHORT)
    run = covey.runs.open(tmp_path)
    assert run.completions().empty and run.steps().empty and run.groups().empty and run.evaluations().empty
    for step in range(1, 9):
        record_step(writer, SHORT, step)
        assert run.steps().index[-1] == step
        assert len(run.completions()) == step * 12
        assert run.state == "running"
    assert any(p.suffix == ".parquet" for p in segments.segment_paths(tmp_path / "record" / "groups"))


def test_a_segment_that_is_sealed_between_listing_and_reading_is_read(tmp_path):
    folder = write_run(tmp_path / "record", SHORT, end=None)
    (listed,) = segments.segment_paths(folder / "groups")
    before = segments.read_segment(listed)
    segments.seal(listed)
    assert not listed.exists()
    assert segments.read_segment(listed).equals(before)


def test_what_a_kill_leaves_between_two_steps_of_sealing_is_brought_into_order(tmp_path):
    folder = write_run(tmp_path / "record", SHORT, end=None)
    (lines,) = segments.segment_paths(folder / "groups")
    rows = segments.read_segment(lines)
    segments.write_parquet(rows, lines.with_suffix(".parquet"))  # killed before the lines were deleted
    (folder / "groups" / "000001.tmp").write_bytes(b"half a file")  # killed while writing the next
    lines.write_bytes(
        lines.read_bytes()[:2000]
    )  # and a power cut: the Parquet file was flushed, the lines were not
    assert len(covey.runs.open(folder).completions()) == len(rows)
    segments.tidy(folder / "groups")
    assert sorted(p.name for p in (folder / "groups").iterdir()) == ["000000.parquet"]
    assert len(covey.runs.open(folder).completions()) == len(rows)


def test_only_the_steps_and_columns_that_are_asked_for(tmp_path):
    run = covey.runs.open(write_run(tmp_path / "record", SHORT))
    frame = run.completions(steps=range(3, 5), columns=["advantage", "score/format", "no such column"])
    assert list(frame.columns) == ["advantage", "score/format"] and len(frame) == 24


def test_groups_sum_up_their_completions(tmp_path):
    run = covey.runs.open(write_run(tmp_path / "record", replace(SHORT, failure_rate=0.0)))
    groups, frame = run.groups(), run.completions()
    assert len(groups) == 24 and (groups["completions"] == 4).all()
    first = frame[(frame["step"] == 1) & (frame["group"] == 0)]
    row = groups.iloc[0]
    assert row["mean"] == pytest.approx(first["total"].mean()) and row["best"] == first["total"].max()
    assert row["signal"] == pytest.approx(first["advantage"].abs().mean())
    assert row["prompt"] == first["prompt"].iloc[0]


def test_events_of_steps_that_a_resume_took_out_are_marked(tmp_path):
    writer = open_writer(tmp_path / "record", SHORT)
    for step in (2, 4, 6):
        writer.event("hint", f"hint at {step}", step)
    open_writer(tmp_path / "record", SHORT, resume_step=4).event("hint", "hint at 6 again", 6)
    events = covey.runs.open(tmp_path).events().set_index("message")["void"]
    assert events["hint at 6"] and not events["hint at 4"] and not events["hint at 6 again"]


def test_settings_that_a_resume_changes_are_in_its_event(tmp_path):
    open_writer(tmp_path / "record", SHORT, settings={"learning_rate": 1e-6, "beta": 0.0})
    open_writer(tmp_path / "record", SHORT, settings={"learning_rate": 5e-6, "beta": 0.0}, resume_step=0)
    event = covey.runs.open(tmp_path).events().iloc[-1]
    assert event["kind"] == "resumed" and event["details"]["changed"] == {"learning_rate": [1e-6, 5e-6]}


@pytest.mark.parametrize("end", ["finished", "interrupted", "failed"])
def test_the_state_says_how_a_run_ended(tmp_path, end):
    assert covey.runs.open(write_run(tmp_path / "record", SHORT, end=end)).state == end


def test_a_run_whose_process_is_gone_was_killed(tmp_path):
    code = "import sys; from pathlib import Path; from tests.runs.synthetic import *; open_writer(Path(sys.argv[1]), Story())"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "record")], check=True)
    assert covey.runs.open(tmp_path).state == "killed"


def test_a_process_number_that_was_given_to_another_process_is_not_the_run(tmp_path, monkeypatch):
    open_writer(tmp_path / "record", SHORT)
    run = covey.runs.open(tmp_path)
    assert run.state == "running"
    monkeypatch.setattr("covey.runs.record.reader.process_start", lambda pid: "another time")
    assert run.state == "killed"


def test_a_run_on_another_machine_is_judged_by_its_last_write(tmp_path, monkeypatch):
    open_writer(tmp_path / "record", SHORT)
    run = covey.runs.open(tmp_path)
    monkeypatch.setattr("covey.runs.record.reader.platform.node", lambda: "another-machine")
    assert run.state == "running"
    monkeypatch.setattr("covey.runs.record.reader.time.time", lambda: time.time_ns() / 1e9 + 7200)
    assert run.state == "killed"


def test_reading_a_run_imports_no_torch_and_pandas_only_for_frames(tmp_path):
    write_run(tmp_path / "record", SHORT)
    code = (
        "import sys, covey.runs; run = covey.runs.open(sys.argv[1]); run.state\n"
        "assert 'pandas' not in sys.modules and 'pyarrow' not in sys.modules\n"
        "assert len(run.completions()) == 96\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
