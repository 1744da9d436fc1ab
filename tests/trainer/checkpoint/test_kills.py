"""A run that is killed at any moment, and goes on, ends as one that was not: bit for bit."""

import json
import os
import random
import signal

import pytest

from tests.tiny import tiny_policy
from tests.trainer.checkpoint.lives import POINTS, Server
from tests.trainer.harness import MANY_ENDS

pytestmark = pytest.mark.any_version

VARIANTS = ("plain", "inside a round", "mixture", "stream", "dynamic sampling", "epochs", "best", "tools")
RUNS = 5
"""Of each variant: 40 ends in all."""


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), generation=MANY_ENDS)


def end(folder):
    return json.loads((folder / "end.json").read_text())


def log(folder):
    return (folder / "life.log").read_text()


def a_moment(dice, points, seconds):
    """Somewhere in a life: at one of the points that it comes to, or after some time."""
    if dice.random() < 0.3:
        return {"seconds": dice.uniform(0.0, seconds)}
    point = dice.choice([p for p in POINTS if points[p]])
    return {"point": point, "count": dice.randint(1, points[point])}


def whole_life(server, policy, variant, out):
    assert server.live(variant, policy, out, None) == 0, log(out)[-3000:]
    return end(out)


def killed_and_resumed(server, policy, variant, out, kills):
    """Live until the end; returns how often the run was killed."""
    deaths = 0
    for kill in [*kills, None]:
        status = server.live(variant, policy, out, kill)
        deaths += status == signal.SIGKILL
        if status == 0:
            return deaths
        assert status == signal.SIGKILL, (kill, log(out)[-3000:])
    raise AssertionError("a life that nobody killed did not come to its end")


def assert_same_end(whole, out, what):
    found = end(out)["end"]
    for part, expected in whole["end"].items():
        assert found[part] == expected, f"{what}: {part} differs"


def study(server, policy, tmp_path, variant, runs, seed):
    dice = random.Random(f"{variant} {seed}")
    whole = whole_life(server, policy, variant, tmp_path / "whole")
    deaths, seconds = 0, whole["seconds"]
    for number in range(runs):
        kills = [a_moment(dice, whole["points"], seconds)]
        if number % 3 == 0:  # and once more, on the way back
            kills.append(
                dice.choice([{"point": "load", "count": 1}, {"seconds": dice.uniform(0.0, seconds)}])
            )
        out = tmp_path / str(number)
        deaths += killed_and_resumed(server, policy, variant, out, kills)
        assert_same_end(whole, out, f"{variant}, killed at {kills}")
    return deaths


AT = {
    "plain": [{"point": "evaluate", "count": 3}, {"point": "write", "count": 4}],
    "inside a round": [{"point": "optimizer", "count": 3}, {"point": "load", "count": 1}],
    "mixture": [{"point": "full disk", "count": 4}],
    "dynamic sampling": [{"point": "sample", "count": 6}],
    "epochs": [{"point": "score", "count": 6}],
    "tools": [{"point": "tool", "count": 30}],
}


@pytest.mark.parametrize("variant", AT)
def test_a_run_that_is_killed_ends_as_one_that_is_not(server, policy, tmp_path, variant):
    whole = whole_life(server, policy, variant, tmp_path / "whole")
    deaths = killed_and_resumed(server, policy, variant, tmp_path / "killed", AT[variant])
    assert deaths == len(AT[variant])
    assert_same_end(whole, tmp_path / "killed", f"{variant}, killed at {AT[variant]}")


def test_a_checkpoint_that_a_power_cut_left_half_is_named_and_the_one_before_is_used(
    server, policy, tmp_path
):
    whole = whole_life(server, policy, "plain", tmp_path / "whole")
    out = tmp_path / "cut"
    assert server.live("plain", policy, out, {"point": "forward", "count": 6}) == signal.SIGKILL
    weights = out / "run" / "checkpoint-4" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    killed_and_resumed(server, policy, "plain", out, [])
    assert "checkpoint-4 is damaged: model.safetensors has" in log(out)
    assert f"Going on from {out / 'run' / 'checkpoint-2'} instead." in log(out)
    assert_same_end(whole, out, "after a power cut")


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(server, policy, tmp_path):
    whole = whole_life(server, policy, "plain", tmp_path / "whole")
    out = tmp_path / "full"
    kill = {"point": "full disk", "count": 2, "goes_on": True}
    assert server.live("plain", policy, out, kill) == 0, log(out)[-3000:]
    events = [json.loads(line) for line in (out / "run" / "record" / "events.jsonl").read_text().splitlines()]
    assert [e["message"].split(": ")[0] for e in events if e["kind"] == "warning"] == [
        "Checkpoint 4 could not be saved"
    ]
    found = end(out)["end"]
    assert found.pop("checkpoints") == ["checkpoint-2", "checkpoint-6"]
    whole["end"].pop("checkpoints")
    assert found == whole["end"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_at_many_random_moments(server, policy, tmp_path, variant):
    assert study(server, policy, tmp_path, variant, RUNS, seed=0) >= RUNS - 1, "time may come too late once"
