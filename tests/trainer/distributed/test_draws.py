"""Two processes draw the same prompts, and those of one: each knows the evidence of both."""

import pytest

from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, completions, run
from tests.trainer.distributed.test_two_processes import SETTINGS
from tests.trainer.harness import MANY_ENDS, same

pytestmark = pytest.mark.any_version

DRAWN = {**SETTINGS, "curriculum": "exact", "max_steps": 5, "per_device_train_batch_size": 4}


@pytest.mark.parametrize("more", [dict(), dict(async_lag=1)], ids=["at once", "ahead"])
def test_two_processes_draw_the_prompts_of_one(tmp_path, more):
    policy = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    single = run(1, policy, tmp_path / "one", **DRAWN, **more, gradient_accumulation_steps=2)
    double = run(2, policy, tmp_path / "two", **DRAWN, **more, save_strategy="steps", save_steps=2)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    checkpoint = str(tmp_path / "two" / "run" / "checkpoint-2")
    rest = run(2, policy, tmp_path / "rest", **DRAWN, **more, resume=checkpoint)
    assert same(double[0], rest[0])
