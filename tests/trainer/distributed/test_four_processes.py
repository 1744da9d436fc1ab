"""Four processes on a CPU (gloo) take the same steps as one."""

import pytest

from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, completions, run
from tests.trainer.distributed.test_two_processes import FSDP2, SETTINGS, passes
from tests.trainer.harness import MANY_ENDS


@pytest.mark.parametrize(
    "more",
    [dict(beta=0.1, num_iterations=2), dict(FSDP2, max_tokens_per_forward=12, num_iterations=2)],
    ids=["whole weights, straddling groups", "sharded weights, a limit of tokens"],
)
def test_four_processes_take_the_steps_of_one(tmp_path, more):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {
        **SETTINGS,
        "max_steps": 4,
        "beta": 0.1,
        "num_iterations": 2,
        "per_device_train_batch_size": 2,
    }
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=4)
    four = run(4, folder, tmp_path / "four", **{**settings, **more})
    assert completions(single[2]) == completions(four[2])
    assert_close(single[0], four[0])
    for key in ("loss", "reward", "kl", "entropy", "grad_norm", "num_tokens"):
        logs = [[entry[key] for entry in side[1] if key in entry] for side in (single, four)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6), key
    if "max_tokens_per_forward" in more:
        of_ranks = {passes(tmp_path / "four", rank) for rank in range(4)}
        assert len(of_ranks) == 1 and of_ranks.pop() > 4
