"""Record, hints and display behind one object see the same run; metrics are reduced in one place."""

from types import SimpleNamespace

import pytest

import covey.runs
from covey.errors import EngineError
from covey.metrics import Mean
from covey.plan import make_plan
from covey.runs.hints import watch_record
from covey.trainer.run_log import RunLog
from tests.ranks import alone, on_ranks
from tests.runs.synthetic import WEIGHTS, Story, batch, metrics, scored_group
from tests.trainer.harness import config

pytestmark = pytest.mark.any_version

STORY = Story(steps=30, prompts_per_step=3, group_size=4, kl_growth=1.4, failure_rate=0.2)
PLAN = make_plan(group_size=4, micro_batch=12, accumulation=1, max_steps=30)


def log_of(folder, gather=alone, **given):
    log = RunLog(config(folder, num_generations=4, beta=0.1, **given), WEIGHTS, PLAN, {"model": {}}, gather)
    log.begin(0)
    return log


def go(log, steps=30):
    new = []
    for step in range(1, steps + 1):
        groups = batch(STORY, step)
        log.record_groups(step, groups)
        from covey.runs.record.group_statistics import group_statistics

        found = metrics(STORY, step, groups, group_statistics(groups, [None] * len(groups)))
        new += log.record_step(step, {**found, "time/sample": 1.0})
        log.show_log({**found, "loss": 0.0}, step)
    return new


def test_all_three_see_the_run(tmp_path, capsys):
    log = log_of(tmp_path, display="live")
    hints = go(log)
    log.record_evaluation("held_out", 30, {"accuracy": 0.5}, [scored_group(STORY, 30, 1000, 2, "eval")])
    log.event("checkpoint", "Checkpoint 30 saved.", 30)
    log.sync()
    log.close("finished")
    run = covey.runs.open(tmp_path)
    assert len(run.steps()) == 30 and len(run.completions()) == 360 and len(run.evaluations()) == 1
    events = run.events()
    told = events.loc[events["kind"] == "hint", "details"].tolist()
    assert [d["rule"] for d in told] == [h.rule for h in hints] and {"kl_runs_away", "reward_fails"} <= {
        h.rule for h in hints
    }
    assert {h.rule for h in watch_record(run.folder).hints} >= {h.rule for h in hints}
    shown = capsys.readouterr().out
    assert shown.startswith("Plan\nprompts per") and shown.count("step ") >= 30 and "hint: " in shown
    assert run.state == "finished" and (events["kind"] == "checkpoint").any()


def test_each_of_the_three_can_be_left_out(tmp_path, capsys):
    only_hints = log_of(tmp_path / "hints", record=False, display="plain")
    found = go(only_hints)
    assert {"kl_runs_away", "reward_fails"} <= {h.rule for h in found}
    assert capsys.readouterr().out.count("hint: ") == sum(h.severity != "note" for h in found)
    only_hints.close("finished")
    assert go(only_hints, 3) == [], "what comes later is no part of the run"
    only_hints.record_evaluation("x", 1, {}), only_hints.event("note", "x"), only_hints.sync()
    assert not (tmp_path / "hints" / "record").exists()


def test_groups_that_come_in_parts_are_numbered_on(tmp_path):
    log = log_of(tmp_path)
    groups = batch(STORY, 1)
    log.record_groups(1, groups[:2])
    log.record_groups(1, groups[2:])
    log.record_groups(2, batch(STORY, 2))
    log.close("finished")
    frame = covey.runs.open(tmp_path).completions()
    assert frame[["step", "group"]].drop_duplicates().values.tolist() == [
        [1, 0],
        [1, 1],
        [1, 2],
        [2, 0],
        [2, 1],
        [2, 2],
    ]


def test_the_log_and_the_record_have_the_same_mean_over_ranks(tmp_path):
    """Logged every second step: the log's mean is that of both steps; the run's loss is the mean over its steps."""

    def on_rank(rank, gather):
        log = RunLog(config(tmp_path), WEIGHTS, PLAN, {}, gather)
        steps = []
        for step in range(2):
            log.begin_step()
            log.note({"reward": Mean(float(rank + 10 * step)), "loss": Mean(step + 1.0)})
            steps.append(log.reduce_step())
        return [s["reward"] for s in steps], log.reduce_log()["reward"], log.reduce_run()["train_loss"]

    for steps, logged, loss in on_ranks(2, on_rank):
        assert (steps, logged, loss) == ([0.5, 10.5], 5.5, pytest.approx(1.5))


def test_the_record_names_the_settings_that_were_changed_for_the_page_to_show_first(tmp_path):
    log = log_of(tmp_path, temperature=0.7)
    log.close("finished")
    changed = covey.runs.open(tmp_path).header["changed"]
    assert {"temperature", "beta", "num_generations"} <= set(changed) and not {"top_p", "epsilon"} & set(
        changed
    )


PASSWORD = "qx" * 6
"""Not written out: the record holds the difference of this file to its commit."""


class Servers:
    """An engine on servers, as far as a log asks it."""

    def __init__(self, lost=0):
        self.asked, self.lost = 0, lost

    @property
    def facts(self):
        self.asked += 1
        if self.asked <= self.lost:
            raise EngineError("the first server is gone")
        return {"kind": "vllm", "release": "0.33.0", "urls": [f"http://me:{PASSWORD}@a:8000"], "model": "m"}


def test_what_samples_is_told_once_when_it_has_sampled_and_without_a_secret(tmp_path, capsys):
    log = log_of(tmp_path, display="plain")
    log.engine = Servers(lost=1)
    assert "engine" not in covey.runs.open(tmp_path).header
    go(log, 3)
    log.close("finished")
    assert log.engine.asked == 2  # the first time nobody answered
    run = covey.runs.open(tmp_path)
    assert run.header["engine"]["kind"] == "vllm" and run.header["settings"] and run.header["plan"]
    (told,) = [e for e in run.events().to_dict("records") if e["kind"] == "engine"]
    assert told["step"] == 2 and "Sampled by vllm 0.33.0 at http://" in told["message"]
    out = capsys.readouterr().out
    assert "Sampled by vllm 0.33.0 at" in out
    everything = out + "".join(p.read_text() for p in (tmp_path / "record").glob("*.json*"))
    assert PASSWORD not in everything


def test_a_sentence_is_said_by_the_display_or_without_one_and_by_the_first_process_alone(tmp_path, capsys):
    log = log_of(tmp_path, display="plain")
    log.display.say = [].append
    log.say("shown by the display")
    log.close("finished")
    log.say("an evaluation after the run")
    log.args = SimpleNamespace(process_index=1)
    log.say("another process")
    out = capsys.readouterr().out
    assert "an evaluation after the run" in out and "shown by" not in out and "another process" not in out


def test_a_second_run_tells_what_samples_anew(tmp_path):
    log = log_of(tmp_path)
    log.engine = Servers()
    for _ in range(2):
        go(log, 2)
        log.close("finished")
        log.begin(0)
    assert log.engine.asked == 2


def test_of_an_engine_what_was_drawn_adds_up_and_seconds_are_means_over_processes(tmp_path):
    numbers = [
        {
            "engine/wait_seconds": 2.0,
            "engine/tokens/0": 100.0,
            "engine/retries": 1.0,
            "engine/probe_gap": 0.01,
        },
        {
            "engine/wait_seconds": 4.0,
            "engine/tokens/0": 50.0,
            "engine/retries": 0.0,
            "engine/probe_gap": 0.03,
        },
    ]

    def reduced(rank, gather):
        log = RunLog(config(tmp_path, num_generations=4), WEIGHTS, PLAN, {}, gather)
        log.begin_step()
        log.note_engine(numbers[rank])
        return log.reduce_step()

    found = on_ranks(2, reduced)[0]
    assert (found["engine/tokens/0"], found["engine/retries"]) == (150, 1)
    assert found["engine/wait_seconds"] == 3 and found["engine/probe_gap"] == pytest.approx(0.02)
