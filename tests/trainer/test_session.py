"""Record, hints and terminal behind one object see the same run."""

import io

from rich.console import Console

import covey.runs
from covey.runs.hints import HintWatch, watch_record
from covey.runs.terminal.display import Display
from covey.trainer.session import RunSession
from tests.runs.synthetic import WEIGHTS, Story, batch, metrics, scored_group, settings_of

STORY = Story(steps=30, prompts_per_step=3, group_size=4, kl_growth=1.4, failure_rate=0.2)


def go(session, steps=30):
    new = []
    for step in range(1, steps + 1):
        groups = batch(STORY, step)
        session.groups(step, groups)
        from covey.runs.record.group_statistics import group_statistics

        found = metrics(STORY, step, groups, group_statistics(groups, [None] * len(groups)))
        new += session.step(step, found, {"sample": 1.0})
    return new


def test_all_three_see_the_run(tmp_path, capsys):
    session = RunSession.open(
        tmp_path / "record", settings=settings_of(STORY), rewards=WEIGHTS, plan=[("prompts per step", "3")], max_steps=30
    )  # fmt: skip
    hints = go(session)
    session.evaluation("held_out", 30, {"accuracy": 0.5}, [scored_group(STORY, 30, 1000, 2, "eval")])
    session.event("checkpoint", "Checkpoint 30 saved.", 30)
    session.sync()
    session.close()
    run = covey.runs.open(tmp_path)
    assert len(run.steps()) == 30 and len(run.completions()) == 360 and len(run.evaluations()) == 1
    events = run.events()
    told = events.loc[events["kind"] == "hint", "details"].tolist()
    assert [d["rule"] for d in told] == [h.rule for h in hints] and {"kl_runs_away", "reward_fails"} <= {
        h.rule for h in hints
    }
    assert {h.rule for h in watch_record(run.folder).hints} >= {h.rule for h in hints}
    shown = capsys.readouterr().out
    assert shown.startswith("prompts per step") and shown.count("step ") >= 30 and "hint: " in shown
    assert run.state == "finished" and (events["kind"] == "checkpoint").any()


def test_each_of_the_three_can_be_left_out(tmp_path):
    nothing = RunSession()
    assert go(nothing, 3) == []
    nothing.evaluation("x", 1, {}), nothing.event("note", "x"), nothing.sync(), nothing.close()
    only_hints = RunSession(hints=HintWatch(settings_of(STORY), WEIGHTS, {}))
    assert {"kl_runs_away", "reward_fails"} <= {h.rule for h in go(only_hints)}
    console = Console(file=io.StringIO())
    go(RunSession(display=Display("", 30, console=console)), 2)
    assert console.file.getvalue().count("\n") == 2


def test_groups_that_come_in_parts_are_numbered_on(tmp_path):
    session = RunSession.open(tmp_path / "record", settings={}, rewards=WEIGHTS, display=False)
    groups = batch(STORY, 1)
    session.groups(1, groups[:2])
    session.groups(1, groups[2:])
    session.groups(2, batch(STORY, 2))
    session.close()
    frame = covey.runs.open(tmp_path).completions()
    assert frame[["step", "group"]].drop_duplicates().values.tolist() == [
        [1, 0],
        [1, 1],
        [1, 2],
        [2, 0],
        [2, 1],
        [2, 2],
    ]
