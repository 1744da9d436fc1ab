"""DeepSpeed on a CPU (gloo, two processes) takes the steps of one process without it. Skipped where it is not installed."""

import json

import pytest
import torch

from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import ROOT, assert_close, completions, run
from tests.trainer.harness import MANY_ENDS

pytest.importorskip("deepspeed")

SETTINGS = dict(
    learning_rate=1e-3, optim="adamw_torch", max_steps=3, num_generations=4, per_device_train_batch_size=4
)


@pytest.fixture
def policy(tmp_path):
    return tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)


KEEPS_NOTHING = {"stage3_param_persistence_threshold": 300, "stage3_max_live_parameters": 2000}
"""So that weights of a tiny policy are taken apart as those of a large one; the smallest stay whole, as there."""


def zero(folder, stage):
    """The file of `docs/distributed.md`, at this stage."""
    settings = json.loads((ROOT / "examples" / "cluster" / "zero3.json").read_text())
    settings["zero_optimization"] = {"stage": stage, **(KEEPS_NOTHING if stage == 3 else {})}
    path = folder / f"zero{stage}.json"
    path.write_text(json.dumps(settings))
    return str(path)


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        (1, dict()),
        (2, dict(beta=0.1, num_iterations=2, gradient_checkpointing=True)),
        (3, dict(beta=0.1, num_iterations=2, gradient_checkpointing=True)),
        (3, dict(beta=0.1, num_iterations=2, max_tokens_per_forward=14)),
        (2, dict(beta=0.1, max_tokens_per_forward=14)),
    ],
)
def test_zero_takes_the_steps_of_one_process(tmp_path, policy, stage, more):
    """ZeRO-3 packs, and keeps a reference."""
    plain = {name: value for name, value in more.items() if name != "max_tokens_per_forward"}
    single = run(1, policy, tmp_path / "one", **SETTINGS, **plain, gradient_accumulation_steps=2)
    double = run(2, policy, tmp_path / "two", **SETTINGS, **more, deepspeed=zero(tmp_path, stage))
    packs = [json.loads((tmp_path / "two" / f"packs{rank}.json").read_text()) for rank in range(2)]
    assert packs == [True, True]
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    for key in ("loss", "grad_norm", "kl"):
        logs = [[entry[key] for entry in side[1] if key in entry] for side in (single, double)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6), key


def test_zero_accumulates_as_the_plan_says(tmp_path, policy):
    """Micro-batches of one and groups of four: the plan accumulates twice on two processes, the file says `auto`."""
    settings = {**SETTINGS, "per_device_train_batch_size": 1}
    single = run(1, policy, tmp_path / "one", **settings, gradient_accumulation_steps=4)
    double = run(2, policy, tmp_path / "two", **settings, deepspeed=zero(tmp_path, 2))
    assert_close(single[0], double[0])
    norms = [[e["grad_norm"] for e in side[1] if "grad_norm" in e] for side in (single, double)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_zero_resumes_inside_a_round(tmp_path, policy):
    settings = {
        **SETTINGS,
        "steps_per_generation": 2,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 3,
    }
    settings["deepspeed"] = zero(tmp_path, 2)
    whole = run(2, policy, tmp_path / "a", **settings)
    rest = run(2, policy, tmp_path / "b", **settings, resume=str(tmp_path / "a" / "run" / "checkpoint-3"))
    assert all(torch.equal(whole[0][name], rest[0][name]) for name in whole[0])
