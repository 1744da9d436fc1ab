"""Two processes train again on the groups that one does: each knows what the other holds."""

import json

import pytest

from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, run
from tests.trainer.harness import MANY_ENDS, same

pytestmark = pytest.mark.any_version

AGAIN = dict(
    learning_rate=0.05, max_steps=5, num_generations=4, per_device_train_batch_size=8, replay_groups=2, replay_min_ess=0.0,
    importance_sampling_mode="sequence_truncate",
)  # fmt: skip
STRADDLING = {**AGAIN, "per_device_train_batch_size": 6}


def drawn(calls):
    return sorted(
        (p, tuple(ids))
        for of_rank in calls
        for c in of_rank
        for p, ids in zip(c["prompts"], c["ids"], strict=True)
    )


@pytest.mark.parametrize("settings", [AGAIN, STRADDLING], ids=["whole groups", "groups of two processes"])
def test_two_processes_train_again_on_the_groups_of_one(tmp_path, settings):
    policy = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    single = run(1, policy, tmp_path / "one", **settings, gradient_accumulation_steps=2)
    double = run(2, policy, tmp_path / "two", **settings, save_strategy="steps", save_steps=2)
    assert drawn(single[2]) == drawn(double[2])
    shares = [[e["replay/share"] for e in log if "loss" in e] for log in (single[1], double[1])]
    assert shares[0] == shares[1] and max(shares[0]) > 0
    assert_close(single[0], double[0])
    checkpoint = tmp_path / "two" / "run" / "checkpoint-2"
    held = [json.loads((checkpoint / "covey" / f"replay{rank}.json").read_text()) for rank in (0, 1)]
    for a, b in zip(*(state["rollouts"] for state in held), strict=True):
        assert a["places"] == b["places"] == sorted(map(int, [*a["own"], *b["own"]]))
    rest = run(2, policy, tmp_path / "rest", **settings, resume=str(checkpoint))
    assert same(double[0], rest[0])
