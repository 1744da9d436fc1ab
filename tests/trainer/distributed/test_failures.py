"""Where one process fails all end, with the same message, and the checkpoint is whole."""

import pytest

from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, launch, run
from tests.trainer.distributed.test_two_processes import FSDP2, SETTINGS
from tests.trainer.harness import MANY_ENDS

pytestmark = pytest.mark.any_version

SAVED = {
    **SETTINGS,
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 2,
}


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)


def errors(out):
    return [(out / f"error{rank}.txt").read_text() for rank in range(2)]


@pytest.mark.parametrize(
    ("part", "kind", "more"),
    [
        ("reward", "RewardError", dict()),
        ("engine", "EngineError", dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)),
        ("reward", "RewardError", dict(FSDP2, kl_in_reward=True, optim="adamw_torch")),
    ],
    ids=["a reward", "an engine, groups that straddle", "a reward, sharded weights"],
)
def test_what_fails_on_one_process_ends_all_with_its_message(tmp_path, policy, part, kind, more):
    """In the third step, after a checkpoint, from which the run goes on as if nothing had been."""
    settings = {**SAVED, **more}
    with pytest.raises(AssertionError):
        run(2, policy, tmp_path / "failed", **settings, failing=[part, 1, 3])
    first, second = errors(tmp_path / "failed")
    assert first == second and first.startswith(kind) and "this is the call 3" in first
    whole = run(2, policy, tmp_path / "whole", **settings)
    checkpoint = str(tmp_path / "failed" / "run" / "checkpoint-2")
    rest = run(2, policy, tmp_path / "rest", **settings, resume=checkpoint)
    assert_close(whole[0], rest[0], 1e-7)


def test_a_process_that_waits_in_the_middle_of_a_pass_ends_with_the_message_of_the_one_that_failed(
    tmp_path, policy
):
    """FSDP2: memory runs out on process 1, which lives on; process 0 waits for it in a layer."""
    (tmp_path / "out").mkdir()
    settings = {**SAVED, **FSDP2, "out_of_memory": [1, "backward", 3], "stays": True}
    done = launch(policy, tmp_path / "out", settings)
    assert done.returncode != 0
    said = "OutOfMemoryError on process 1: Step 3 ran out of memory with 4 completion(s) on process 1."
    assert (
        said in done.stderr and "Resume from the last checkpoint with max_tokens_per_forward=" in done.stderr
    )
    assert not (tmp_path / "out" / "error0.txt").exists(), "it could not raise"
    record = (tmp_path / "out" / "run" / "record" / "events.jsonl").read_text()
    assert said in record
    assert (tmp_path / "out" / "run" / "checkpoint-2").exists()
