"""What is recorded is what was given, whatever interrupts it."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import covey.runs
from covey import GRPOConfig
from covey.errors import ConfigError, CoveyWarning
from covey.runs.record import segments
from covey.types import Completion, Group, Prompt, Score
from tests.runs.synthetic import (
    HOSTILE,
    Story,
    batch,
    open_writer,
    record_evaluation,
    record_step,
    scored_group,
    with_advantages,
    write_run,
)  # fmt: skip

SHORT = Story(steps=12, prompts_per_step=3, group_size=4, evaluate_every=4, eval_prompts=5)


def test_every_completion_comes_back_as_it_was_given(tmp_path):
    story = replace(SHORT, failure_rate=0.2)
    frame = covey.runs.open(write_run(tmp_path / "record", story)).completions()
    expected = [
        (step, number, i, group, completion)
        for step in range(1, story.steps + 1)
        for number, group in enumerate(batch(story, step))
        for i, completion in enumerate(group.group.completions)
    ]
    assert len(frame) == len(expected) == 12 * 3 * 4
    statuses = set()
    for row, (step, number, i, scored, completion) in zip(frame.to_dict("records"), expected, strict=True):
        prompt = scored.group.prompt
        assert (row["step"], row["group"], row["index"], row["row"]) == (step, number, i, prompt.row)
        assert (row["completion"], row["tokens"], row["finish"]) == (
            completion.text, len(completion.ids), completion.finish,
        )  # fmt: skip
        content = json.loads(row["prompt"]) if row["chat"] else row["prompt"]
        assert content == prompt.content and row["task"] == prompt.columns["task"]
        assert row["advantage"] == scored.advantages[i]
        assert (None if pd.isna(row["total"]) else row["total"]) == scored.totals[i]
        for name, column in scored.scores.items():
            value = row[f"score/{name}"]
            assert (None if pd.isna(value) else value) == column[i].value
            assert row[f"status/{name}"] == column[i].status
            statuses.add(column[i].status)
        if scored.scores["style_model"][i].status == "failed":
            assert "TimeoutError" in row["error/style_model"]
    assert statuses == {"value", "not_applicable", "gated", "failed"}


def test_steps_hold_the_metrics_and_no_step_is_missing(tmp_path):
    writer = open_writer(tmp_path / "record", SHORT)
    given = {step: record_step(writer, SHORT, step) for step in range(1, 6)}
    frame = covey.runs.open(tmp_path).steps()
    assert list(frame.index) == [1, 2, 3, 4, 5]
    for step, metrics in given.items():
        assert frame.loc[step, list(metrics)].to_dict() == metrics
        assert frame.loc[step, "seconds/sample"] == metrics["time/sample"]


def test_hostile_texts_come_back_whole(tmp_path):
    writer = open_writer(tmp_path / "record", SHORT)
    texts = [*HOSTILE, "", "\n", "\\udc00", '"quotes" and \\backslashes\\']
    completions = tuple(Completion((i,), (-1.0,), text, "stop") for i, text in enumerate(texts))
    scored = with_advantages(Group(Prompt("p", (1,)), completions), {"accuracy": [Score(1.0)] * len(texts)})
    writer.groups(1, [scored])
    open_segment = covey.runs.open(tmp_path).completions()["completion"].tolist()
    writer.close()
    sealed = covey.runs.open(tmp_path).completions()["completion"].tolist()
    # Parquet is UTF-8, which has no lone surrogates; they are kept as their escape.
    assert sealed == open_segment == [t.replace("\ud800", "\\ud800") for t in texts]


@pytest.mark.parametrize(
    ("record_completions", "low", "high"), [("all", 1.0, 1.0), (0.3, 0.2, 0.4), ("none", 0.0, 0.0)]
)
def test_record_completions_bounds_the_texts_and_never_the_numbers(tmp_path, record_completions, low, high):
    story = Story(steps=60, prompts_per_step=5, group_size=2, evaluate_every=0)
    run = covey.runs.open(write_run(tmp_path / "record", story, record_completions=record_completions))
    frame = run.completions()
    assert len(frame) == 600 and frame["advantage"].notna().all() and frame["status/format"].notna().all()
    has_text = frame["completion"].notna()
    assert low <= has_text.mean() <= high
    assert (frame["prompt"].notna() == has_text).all() and (frame["columns"].notna() == has_text).all()
    assert has_text.groupby([frame["step"], frame["group"]]).nunique().max() == 1  # whole groups or none


def test_without_texts_no_word_of_prompt_or_completion_is_on_the_disk(tmp_path):
    folder = write_run(tmp_path / "record", SHORT, record_completions="none", end=None)
    written = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    assert b"<think>" not in written and b"Using the numbers" not in written


@pytest.mark.parametrize("wrong", ["some", 0, 1.5, -0.1, True, None])
def test_another_value_of_record_completions_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError, match="record_completions is"):
        open_writer(tmp_path / "record", SHORT, record_completions=wrong)
    with pytest.raises(ConfigError, match="record_completions is"):
        GRPOConfig(output_dir=str(tmp_path), record_completions=wrong)


def test_secrets_are_not_recorded(tmp_path):
    folder = write_run(tmp_path / "record", SHORT)
    assert covey.runs.open(folder).settings["hub_token"] == "(not recorded)"
    assert b"hf_very_secret" not in (folder / "run.json").read_bytes()


def test_the_same_rows_of_an_evaluation_keep_their_texts_every_time(tmp_path):
    run = covey.runs.open(write_run(tmp_path / "record", SHORT, record_completions=0.5))
    kept = [
        set(rows.loc[rows["completion"].notna(), "row"])
        for rows in (run.evaluation_rows("held_out", step) for step in (0, 4, 8, 12))
    ]
    assert kept[0] and all(k == kept[0] for k in kept)
    assert list(run.evaluations()["step"]) == [0, 4, 8, 12]


def test_segments_are_sealed_when_full_and_the_order_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (20_000,))
    folder = write_run(tmp_path / "record", SHORT, end=None)
    kinds = [p.suffix for p in segments.segment_paths(folder / "groups")]
    assert kinds.count(".parquet") >= 2 and kinds[-1] == ".jsonl" and kinds.count(".jsonl") == 1
    frame = covey.runs.open(folder).completions()
    assert (
        frame[["step", "group", "index"]].apply(tuple, axis=1).is_monotonic_increasing and len(frame) == 144
    )


def _same(first: Path, second: Path) -> None:
    one, two = covey.runs.open(first), covey.runs.open(second)
    pd.testing.assert_frame_equal(one.steps().drop(columns="time"), two.steps().drop(columns="time"))
    pd.testing.assert_frame_equal(one.statistics(), two.statistics())
    pd.testing.assert_frame_equal(one.completions(), two.completions())
    drop = ["time"]
    pd.testing.assert_frame_equal(one.evaluations().drop(columns=drop), two.evaluations().drop(columns=drop))
    for step in one.evaluations()["step"]:
        pd.testing.assert_frame_equal(
            one.evaluation_rows("held_out", step), two.evaluation_rows("held_out", step)
        )


@pytest.mark.parametrize("segment_bytes", [4_000, 20_000, 8 << 20])
@pytest.mark.parametrize(("reached", "checkpoint"), [(7, 4), (12, 8), (5, 0), (8, 8)])
def test_a_resumed_record_is_the_record_of_a_run_that_was_never_stopped(
    tmp_path, monkeypatch, segment_bytes, reached, checkpoint
):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (segment_bytes,))
    whole = write_run(tmp_path / "whole" / "record", SHORT)
    broken = tmp_path / "broken" / "record"
    _go_on(open_writer(broken, SHORT), 0, reached)
    writer = open_writer(broken, SHORT, resume_step=checkpoint)
    _go_on(writer, checkpoint, SHORT.steps)
    writer.close()
    _same(whole, broken)
    assert list(covey.runs.open(broken).events()["kind"]).count("resumed") == 1


def test_a_resume_takes_out_what_came_after_it_at_once(tmp_path):
    folder = write_run(tmp_path / "record", SHORT, end=None)
    writer = open_writer(folder, SHORT, resume_step=6)
    run = covey.runs.open(folder)
    assert list(run.steps().index) == list(run.statistics().index) == [1, 2, 3, 4, 5, 6]
    assert run.completions()["step"].max() == 6
    assert list(run.evaluations()["step"]) == [0, 4]
    assert len(run.evaluation_rows("held_out", 4)) == 20
    with pytest.raises(FileNotFoundError, match="No rows of an evaluation 'held_out' at step 8"):
        run.evaluation_rows("held_out", 8)
    writer.close()


def _go_on(writer, after: int, until: int) -> None:
    if after == 0 and not covey.runs.open(writer.folder).evaluations().shape[0]:
        record_evaluation(writer, SHORT, 0)
    for step in range(after + 1, until + 1):
        record_step(writer, SHORT, step)
        if step % SHORT.evaluate_every == 0:
            record_evaluation(writer, SHORT, step)


def test_files_cut_at_any_byte_are_readable_and_can_be_resumed(tmp_path):
    story = replace(SHORT, steps=6, evaluate_every=0)
    whole = write_run(tmp_path / "whole" / "record", story)
    unfinished = write_run(tmp_path / "unfinished" / "record", story, end=None)
    lines = sorted(p.relative_to(unfinished) for p in unfinished.rglob("*.jsonl"))
    assert Path("groups/000000.jsonl") in lines
    for number in range(25):
        folder = tmp_path / f"cut{number}" / "record"
        subprocess.run(["cp", "-r", str(unfinished.parent), str(folder.parent)], check=True)
        for path in lines:  # what a power cut leaves: every file with a different part of its end missing
            size = (folder / path).stat().st_size
            first = size * 2 // 3 if path.name != "events.jsonl" else size // 2
            os.truncate(folder / path, first + (size - first) * (number * 7 % 25) // 25)
        run = covey.runs.open(folder)
        reached = [
            len(run.steps()),
            int(run.completions()["step"].max()) - 1,
            int(run.statistics().index.max()),
        ]
        run.groups(), run.events(), run.evaluations(), run.state
        checkpoint = min(reached)
        assert checkpoint >= 2
        writer = open_writer(folder, story, resume_step=checkpoint)
        for step in range(checkpoint + 1, story.steps + 1):
            record_step(writer, story, step)
        writer.close()
        pd.testing.assert_frame_equal(
            covey.runs.open(folder).completions(), covey.runs.open(whole).completions()
        )


KILLED = """
import sys
from pathlib import Path
from covey.runs.record import segments
from tests.runs.synthetic import Story, open_writer, record_step
segments.GroupFiles.__init__.__defaults__ = (6_000,)
story = Story(steps=100_000, prompts_per_step=2, group_size=2)
writer = open_writer(Path(sys.argv[1]), story, environment={}, git={})
for step in range(1, story.steps):
    record_step(writer, story, step)
    print(step, flush=True)
"""


def test_a_killed_process_leaves_every_step_that_it_finished(tmp_path):
    for number, last in enumerate((1, 2, 9, 23, 40)):
        folder = tmp_path / str(number) / "record"
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        while int(child.stdout.readline()) < last:
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        finished = max([last, *(int(line) for line in child.stdout if line.endswith("\n"))])
        child.stdout.close()
        run = covey.runs.open(folder)
        assert run.state == "killed"
        assert list(run.steps().index)[:finished] == list(range(1, finished + 1))
        counts = run.completions().groupby("step").size()
        assert (counts.loc[:finished] == 4).all() and len(counts.loc[:finished]) == finished
        writer = open_writer(folder, Story(), resume_step=finished - 1)
        writer.close()
        assert list(covey.runs.open(folder).completions()["step"].unique()) == list(range(1, finished))


def test_a_second_run_moves_the_first_record_aside(tmp_path):
    write_run(tmp_path / "record", SHORT)
    first = covey.runs.open(tmp_path).steps()
    write_run(tmp_path / "record", replace(SHORT, steps=3))
    assert len(covey.runs.open(tmp_path).steps()) == 3
    aside = [p for p in tmp_path.iterdir() if p.name != "record"]
    assert len(aside) == 1 and len(covey.runs.open(aside[0]).steps()) == len(first)


def test_a_full_disk_costs_lines_and_never_the_run(tmp_path, monkeypatch):
    writer = open_writer(tmp_path / "record", SHORT)
    record_step(writer, SHORT, 1)
    steps = writer._lines["steps.jsonl"]
    real = steps.append

    def full(record):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(steps, "append", full)
    with pytest.warns(CoveyWarning, match="No space left on device") as warned:
        record_step(writer, SHORT, 2)
        record_step(writer, SHORT, 3)
    assert len(warned) == 1
    monkeypatch.setattr(steps, "append", real)
    record_step(writer, SHORT, 4)
    writer.close()
    run = covey.runs.open(tmp_path)
    assert list(run.steps().index) == [1, 4]
    events = run.events()
    assert events.loc[events["kind"] == "record", "details"].tolist() == [{"lost": 2}]


def test_a_disk_that_is_full_while_sealing_keeps_the_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (1,))
    writer = open_writer(tmp_path / "record", SHORT)
    real = segments.write_parquet

    def full(rows, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segments, "write_parquet", full)
    with pytest.warns(CoveyWarning):
        record_step(writer, SHORT, 1)
        record_step(writer, SHORT, 2)
    monkeypatch.setattr(segments, "write_parquet", real)
    record_step(writer, SHORT, 3)
    assert list(covey.runs.open(tmp_path).completions()["step"].unique()) == [1, 2, 3]


def test_failures_of_a_reward_are_one_event_per_step_with_count_and_traceback(tmp_path):
    story = replace(SHORT, failure_rate=0.9)
    writer = open_writer(tmp_path / "record", story)
    record_step(writer, story, 1)
    events = covey.runs.open(tmp_path).events()
    failures = events[events["kind"] == "reward_failure"]
    frame = covey.runs.open(tmp_path).completions()
    assert len(failures) == 1
    details = failures.iloc[0]["details"]
    assert details["reward"] == "style_model" and "TimeoutError" in details["error"]
    assert details["count"] == (frame["status/style_model"] == "failed").sum()


def test_a_long_error_keeps_its_end():
    story = replace(SHORT, failure_rate=0.0)
    from covey.runs.record.group_lines import group_line

    group = scored_group(story, 1, 0, 2)
    scores = dict(group.scores) | {
        "style_model": (Score(None, "failed", "x" * 50_000 + "ValueError: the end"), Score(1.0))
    }
    line = group_line(1, 0, replace(group, scores=scores), None, True)
    error = line["error"]["style_model"][0]
    assert len(error) < 9_000 and error.endswith("ValueError: the end") and "left out" in error


def test_memory_files_and_descriptors_do_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (60_000,))
    story = Story(steps=300, prompts_per_step=2, group_size=3, evaluate_every=0)
    writer = open_writer(tmp_path / "record", story)
    for step in range(1, 60):
        record_step(writer, story, step)
    gc.collect()
    tracemalloc.start()
    descriptors = len(os.listdir("/proc/self/fd"))
    before = tracemalloc.get_traced_memory()[0]
    for step in range(60, 300):
        record_step(writer, story, step)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 150_000
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(list((tmp_path / "record" / "groups").iterdir())) < 20


def test_closing_twice_is_closing_once(tmp_path):
    writer = open_writer(tmp_path / "record", SHORT)
    writer.close()
    writer.close("failed")
    assert covey.runs.open(tmp_path).state == "finished"
