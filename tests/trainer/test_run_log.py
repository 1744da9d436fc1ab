"""Record, hints and display behind one object see the same run; metrics are reduced in one place."""

import pytest

import covey.runs
from covey.metrics import Mean
from covey.plan import make_plan
from covey.runs.hints import watch_record
from covey.trainer.run_log import RunLog
from tests.ranks import alone, on_ranks
from tests.runs.synthetic import WEIGHTS, Story, batch, metrics, scored_group
from tests.trainer.harness import config

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
