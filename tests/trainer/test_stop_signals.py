"""SIGTERM and Ctrl-C save a checkpoint and say how to go on; a second Ctrl-C stops at once."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from covey.trainer.stop_signals import StopAfterStep, StopSignals, stop_message
from tests.tiny import tiny_policy
from tests.trainer.checkpoint.lives import ROOT, Server
from tests.trainer.harness import MANY_ENDS

pytestmark = pytest.mark.any_version

TERM, INT = int(signal.SIGTERM), int(signal.SIGINT)


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), generation=MANY_ENDS)


def exit_code(status):
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(
    ("variant", "number", "point", "count", "step"),
    [
        ("inside a round", INT, "forward", 3, 3),
        ("epochs", TERM, "score", 2, 2),
        ("plain", TERM, "evaluate", 2, 2),  # evaluations at 0, 2, 4
    ],
)
def test_a_signal_saves_and_the_run_that_goes_on_ends_as_one_without_a_stop(
    server, policy, tmp_path, variant, number, point, count, step
):
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    assert server.live(variant, policy, whole, None) == 0
    kill = {"point": point, "count": count, "signals": [number]}
    assert exit_code(server.live(variant, policy, out, kill)) == 128 + number
    said = (out / "life.log").read_text()
    assert f"after step {step} of 6." in said
    assert f"Saved in {out / 'run' / f'checkpoint-{step}'}. To go on from there:" in said
    assert "trainer.train(resume_from_checkpoint=True)" in said
    events = [json.loads(line) for line in (out / "run" / "record" / "events.jsonl").read_text().splitlines()]
    assert "interrupted" in {event["kind"] for event in events}
    assert server.live(variant, policy, out, None) == 0
    ends = [json.loads((folder / "end.json").read_text())["end"] for folder in (whole, out)]
    for part in ends[0].keys() - {"checkpoints"}:
        assert ends[0][part] == ends[1][part], part


def test_a_second_ctrl_c_stops_at_once(server, policy, tmp_path):
    kill = {"point": "forward", "count": 2, "signals": [INT, INT]}
    assert exit_code(server.live("stream", policy, tmp_path, kill)) == 1
    said = (tmp_path / "life.log").read_text()
    assert "Ctrl-C: finishing this step, then saving. Ctrl-C stops at once." in said
    assert said.rstrip().endswith("KeyboardInterrupt") and not list((tmp_path / "run").glob("checkpoint-*"))


RECIPE = """
model: {policy}
data: {{generator: countdown, arguments: {{count: 20, seed: 1, level: easy}}}}
rewards: [covey.tasks:countdown_reward]
train:
  output_dir: {out}
  max_steps: 100000
  num_generations: 2
  per_device_train_batch_size: 4
  max_completion_length: 8
  use_cpu: true
  display: plain
  logging_steps: 1
  save_strategy: "no"
  report_to: none
"""


def test_covey_train_stopped_from_outside_says_the_command_that_goes_on(policy, tmp_path):
    recipe = tmp_path / "run.yaml"
    recipe.write_text(RECIPE.format(policy=policy, out=tmp_path / "out"))
    process = subprocess.Popen(
        [sys.executable, "-m", "covey", "train", str(recipe)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for line in process.stdout:
        if "loss" in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said[-3000:]
    assert f"covey train {recipe} --resume" in said and "Stopped by Ctrl-C after step" in said
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 1


def test_the_handlers_of_the_program_come_back_and_are_called_afterwards():
    called = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append("theirs"))
    try:
        signals = StopSignals(prints=False)
        with signals.listening():
            signal.raise_signal(signal.SIGTERM)
            assert signals.received == signal.SIGTERM and not called
        signals.call_previous_handler()
        signal.raise_signal(signal.SIGTERM)
        assert called == ["theirs", "theirs"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signals = StopSignals(prints=False)
        with signals.listening():
            signal.raise_signal(signal.SIGINT)
        assert signals.received == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_echo_of_a_launcher_is_no_second_ctrl_c():
    now = iter([0.0, 0.5, 2.0])
    signals = StopSignals(prints=False, echoes=True, clock=lambda: next(now))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with signals.listening():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_to_one_process_stops_all_of_them():
    callback = StopAfterStep(StopSignals(prints=False), lambda own: [own, TERM])
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_step_end(None, SimpleNamespace(global_step=1), control)
    assert control.should_save and control.should_training_stop and callback.stopped_by == TERM


@pytest.mark.parametrize(
    ("saved", "fault", "step", "says"),
    [
        ("out/checkpoint-3", None, 3, "Saved in out/checkpoint-3. To go on from there:\n    covey train x --resume"),
        ("out/checkpoint-2", "No space left", 3, "Checkpoint 3 could not be saved: No space left.\nSaved in out/checkpoint-2"),
        (None, "No space left", 3, "There is no checkpoint; the run starts again at the beginning."),
        ("out/checkpoint-9", None, 9, "The run had come to its end; it is saved in out/checkpoint-9."),
    ],
)  # fmt: skip
def test_what_a_stopped_run_says(saved, fault, step, says):
    text = stop_message(TERM, step, 9, saved, fault, "covey train x --resume")
    assert says in text and text.startswith(f"Stopped by SIGTERM after step {step} of 9.")
