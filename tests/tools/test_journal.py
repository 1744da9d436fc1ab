"""What tools returned is noted before it is used, and a run that was killed goes on as it would have."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from covey.errors import CoveyWarning
from covey.tools import tool
from covey.tools.journal import CallJournal, read_journal
from tests.tools.chats import adder, call, maker, named, play, results, says

ROOT = Path(__file__).parents[2]


def noisy(log, **options):
    def body():
        log.append(1)
        return str(random.random())

    return tool(**options)(named("f", body)) if options else named("f", body)


def run(path, tools, since=None, environments=None, step=0, said=None, **kw):
    journal = CallJournal(path, since)
    made = maker(tools, environments, journal=journal)
    turns = said or (call("f") + call("f"), call("f"), "ok")
    played = play(made, ["x", "y"], says(*turns), group_size=2, step=(1, step), **kw)
    journal.close()
    return [results(c) for c in played.completions]


def test_after_a_resume_a_tool_is_not_asked_again(tmp_path):
    log, path = [], tmp_path / "deep" / "calls.jsonl"
    first = run(path, [noisy(log)])
    assert len(log) == 12 and len(path.read_text().splitlines()) == 12
    assert run(path, [noisy(log)], since=(1, 0)) == first and len(log) == 12
    assert len(path.read_text().splitlines()) == 12, "what is replayed is not noted again"
    assert run(path, [noisy(log)]) != first, "a new run replays nothing"
    assert len(path.read_text().splitlines()) == 12, "and forgets what another has noted"


def test_only_what_was_noted_from_the_checkpoint_on_is_replayed(tmp_path):
    log, path = [], tmp_path / "calls.jsonl"
    run(path, [noisy(log)], step=0)
    second = run(path, [noisy(log)], since=(1, 1), step=1)
    assert {place[1] for place in read_journal(path, (1, 1))} == {1}
    assert run(path, [noisy(log)], since=(1, 1), step=1) == second


def test_failures_and_their_seconds_are_replayed_too(tmp_path):
    def fails():
        raise ValueError(str(random.random()))

    path = tmp_path / "calls.jsonl"
    assert run(path, [named("f", fails)]) == run(path, [named("f", lambda: 1 / 0)], since=(1, 0))
    journal = CallJournal(path, (1, 0))
    made = maker([named("f", fails)], journal=journal)
    (call_,) = play(made, ["x"], says(call("f"), "ok"), step=(1, 0)).first.turns[0].calls
    made.close()
    noted = json.loads(path.read_text().splitlines()[0])
    assert call_.status == "raised" and call_.seconds == noted["seconds"]


def test_a_tool_that_wants_no_replay_is_asked_again_and_told_once(tmp_path):
    log, path = [], tmp_path / "calls.jsonl"
    run(path, [noisy(log, replay=False)])
    with pytest.warns(CoveyWarning, match="differ from those before the stop") as told:
        run(path, [noisy(log, replay=False)], since=(1, 0))
    assert len(log) == 24 and len(told) == 1


class Counter:
    def reset(self, **row):
        self.n = 0

    def f(self) -> str:
        """Counts."""
        self.n += 1
        return str(self.n)


def test_environments_are_run_again_and_compared(tmp_path, recwarn):
    path = tmp_path / "calls.jsonl"
    first = run(path, [], environments=Counter)
    assert run(path, [], since=(1, 0), environments=Counter) == first == [["1", "2", "3"]] * 4
    assert not [w for w in recwarn if w.category is CoveyWarning]

    class Other(Counter):
        def f(self) -> str:
            """Counts."""
            return "x"

    with pytest.warns(CoveyWarning, match="returned something else"):
        run(path, [], since=(1, 0), environments=Other)


def test_another_call_at_the_same_place_is_no_replay(tmp_path):
    path, log = tmp_path / "calls.jsonl", []
    turn = lambda a: (call("add", f'{{"a": {a}, "b": 0}}'), "ok")  # noqa: E731
    run(path, [adder(log)], said=turn(1))
    with pytest.warns(CoveyWarning, match="other arguments"):
        assert run(path, [adder(log)], since=(1, 0), said=turn(2)) == [["2"]] * 4


def test_a_line_that_was_cut_hurts_no_other(tmp_path):
    path, log = tmp_path / "calls.jsonl", []
    first = run(path, [noisy(log)])
    text = path.read_bytes()
    path.write_bytes(text[:-20] + b"\xff")
    again = run(path, [noisy(log)], since=(1, 0))
    assert len(log) == 13 and sum(a == b for a, b in zip(again, first, strict=True)) == 3
    assert run(path, [noisy(log)], since=(1, 0)) == again and len(log) == 13


def test_what_is_noted_outlives_a_kill(tmp_path):
    """The process dies in its second call, without a word; the first result is in the file."""
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from covey.tools.journal import CallJournal, read_journal
        from tests.tools.chats import call, maker, named, play, says
        def f():
            if os.path.getsize("calls.jsonl"):
                os.kill(os.getpid(), signal.SIGKILL)
            return "first"
        play(maker([named("f", f)], journal=CallJournal("calls.jsonl")), ["x"], says(call("f"), call("f"), "ok"), step=(1, 0))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, env={**os.environ}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    (line,) = (tmp_path / "calls.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == "first"


def test_evaluation_keeps_no_journal(tmp_path):
    journal = CallJournal(tmp_path / "calls.jsonl")
    made = maker([named("f", lambda: "1")], journal=journal)
    play(made.for_evaluation(), ["x"], says(call("f"), "ok"))
    made.close()
    assert (tmp_path / "calls.jsonl").read_text() == ""
