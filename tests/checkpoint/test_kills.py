"""A run that is killed at any moment, and goes on, ends as one that was not: bit for bit."""

import json
import random
import signal

import pytest

from tests.checkpoint.lives import POINTS, Server
from tests.models import tiny_policy
from tests.trainer.harness import MANY_ENDS

VARIANTS = ("plain", "inside a round", "mixture", "stream", "epochs", "best")
RUNS = 5
"""Of each variant: 30 ends in all."""


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


def a_moment(dice, points, seconds):
    """Somewhere in a life: at one of the points that it comes to, or after some time."""
    if dice.random() < 0.3:
        return {"seconds": dice.uniform(0.0, seconds)}
    point = dice.choice([p for p in POINTS if points[p]])
    return {"point": point, "count": dice.randint(1, points[point])}


def killed_and_resumed(server, policy, variant, out, kills):
    """Live until the end; returns how often the run was killed."""
    deaths = 0
    for kill in [*kills, None]:
        status = server.live(variant, policy, out, kill)
        deaths += status == signal.SIGKILL
        if status == 0:
            return deaths
        assert status == signal.SIGKILL, (kill, (out / "life.log").read_text()[-3000:])
    raise AssertionError("a life that nobody killed did not come to its end")


def study(server, policy, tmp_path, variant, runs, seed):
    dice = random.Random(f"{variant} {seed}")
    assert server.live(variant, policy, tmp_path / "whole", None) == 0, (
        tmp_path / "whole" / "life.log"
    ).read_text()
    whole = end(tmp_path / "whole")
    deaths, seconds = 0, 0.8
    for number in range(runs):
        kills = [a_moment(dice, whole["points"], seconds)]
        if number % 3 == 0:  # and once more, on the way back
            kills.append(
                dice.choice([{"point": "load", "count": 1}, {"seconds": dice.uniform(0.0, seconds)}])
            )
        out = tmp_path / str(number)
        deaths += killed_and_resumed(server, policy, variant, out, kills)
        found = end(out)["end"]
        for part, expected in whole["end"].items():
            assert found[part] == expected, f"{variant}, killed at {kills}: {part} differs"
    return deaths


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_is_killed_at_random_moments_ends_as_one_that_is_not(server, policy, tmp_path, variant):
    assert study(server, policy, tmp_path, variant, RUNS, seed=0) >= RUNS - 1, "time may come too late once"


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_at_many_more_moments(server, policy, tmp_path, variant):
    assert study(server, policy, tmp_path, variant, 60, seed=1) >= 50
