"""Two processes that sample ahead take the steps of one, whoever is late; where one fails both end."""

import pytest

from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, completions, run
from tests.trainer.distributed.test_two_processes import SETTINGS
from tests.trainer.harness import MANY_ENDS, same

pytestmark = pytest.mark.any_version

AHEAD = {**SETTINGS, "async_lag": 1, "max_steps": 4, "per_device_train_batch_size": 4}
GROWS = dict(group_allocation="grow", advantage_estimator="rloo", per_device_train_batch_size=8)
REFILLS = dict(dynamic_sampling=True, dynamic_sampling_rounds=2)


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)


@pytest.mark.parametrize(
    "more",
    [dict(), REFILLS, dict(REFILLS, elsewhere=0.05), dict(GROWS, elsewhere=0.05), dict(REFILLS, **GROWS)],
    ids=["plain", "refills", "refills elsewhere", "groups grow elsewhere", "groups grow, refilled"],
)
def test_two_processes_take_the_steps_of_one(tmp_path, policy, more):
    plain = {name: value for name, value in more.items() if name != "elsewhere"}
    single = run(1, policy, tmp_path / "one", **{**AHEAD, **plain}, gradient_accumulation_steps=2)
    double = run(2, policy, tmp_path / "two", **{**AHEAD, **more})
    if "dynamic_sampling" not in more:  # else each process has its own share of the fresh prompts
        assert completions(single[2]) == completions(double[2])
        assert_close(single[0], double[0])
    saved = {**AHEAD, **plain, "save_strategy": "steps", "save_steps": 1}
    again = run(2, policy, tmp_path / "again", **saved)
    assert completions(again[2]) == completions(double[2])
    assert same(again[0], double[0])
    checkpoint = str(tmp_path / "again" / "run" / "checkpoint-2")
    rest = run(2, policy, tmp_path / "rest", **{**AHEAD, **more}, resume=checkpoint)
    assert same(again[0], rest[0])


@pytest.mark.parametrize(
    "more",
    [dict(elsewhere=0.02), dict(REFILLS, elsewhere=0.02), dict(GROWS, elsewhere=0.02)],
    ids=["plain", "refills", "groups grow"],
)
def test_a_reward_that_fails_ahead_on_one_process_ends_both(tmp_path, policy, more):
    with pytest.raises(AssertionError):
        run(2, policy, tmp_path / "failed", **{**AHEAD, **more}, failing=["reward", 1, 3])
    said = [(tmp_path / "failed" / f"error{rank}.txt").read_text() for rank in range(2)]
    assert all("this is the call 3" in text for text in said), said
