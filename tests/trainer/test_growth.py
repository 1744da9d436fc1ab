"""Nothing grows with the number of steps: live tensors, memory, descriptors, threads, children, files."""

import asyncio
import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from covey.rewards import reward
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, make, rows

pytestmark = pytest.mark.any_version

EVAL_STEPS = 10


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


async def awaited(completion_ids):
    await asyncio.sleep(0)
    return [float(len(ids) % 2) for ids in completion_ids]


def children():
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended is listed for a moment more
            found += task.read_text().split()
    return found


def state_of_process(folder):
    gc.collect()
    objects = gc.get_objects()
    tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {
        "tensors": len(tensors),
        "tensor bytes": sum(t.untyped_storage().nbytes() for t in tensors if t.device.type != "meta"),
        "objects": len(objects),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children()),
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
    }


class Watch(TrainerCallback):
    """What the process holds at the end of some steps."""

    def __init__(self, folder, at):
        self.folder, self.at, self.found = folder, at, {}

    def on_step_end(self, args, state, control, **_):
        if state.global_step in self.at:
            self.found[state.global_step] = state_of_process(self.folder)


def held(tmp_path, steps, first):
    """What is held after `first` steps, and after `steps`."""
    watch = Watch(tmp_path / "run", {first, steps})
    rewards = [
        by_ids,
        reward(awaited, weight=0.5),
        reward(by_length_elsewhere, name="thread", where="thread", weight=0.5),
        reward(by_length_elsewhere, name="process", where="process", weight=0.5),
    ]
    trainer = make(
        tiny_policy(tmp_path / "policy", generation=MANY_ENDS),
        tmp_path / "run",
        rewards,
        rows(16),
        max_steps=steps,
        learning_rate=1e-3,
        optim="adamw_torch",
        beta=0.05,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=2,
        eval_dataset=rows(2),
        eval_strategy="steps",
        eval_steps=EVAL_STEPS,
        record_completions="none",
        callbacks=[watch],
    )
    trainer.train()
    return watch.found[first], watch.found[steps]


def by_length_elsewhere(completion_ids):
    return [float(len(ids) % 3) for ids in completion_ids]


def assert_nothing_grew(before, after, steps):
    assert after["tensor bytes"] <= 1.05 * before["tensor bytes"], "completions differ in length, no more"
    for what in ("tensors", "descriptors", "threads", "children"):
        assert after[what] <= before[what], (what, before, after)
    # One entry of the Trainer's own log_history per log, which its checkpoints hold, and nothing else.
    assert after["objects"] - before["objects"] <= 100 + 4 * steps, (before, after)
    assert after["files"] - before["files"] <= 2 + steps // EVAL_STEPS, (
        "the record has a file for each evaluation"
    )
    assert after["bytes"] - before["bytes"] <= 25_000 * steps, (before, after)


def test_nothing_grows_over_some_steps(tmp_path):
    assert_nothing_grew(*held(tmp_path, 20, 10), 10)


@pytest.mark.slow
def test_nothing_grows_over_300_steps(tmp_path):
    before, after = held(tmp_path, 300, 40)
    print(before, after, sep="\n")
    assert_nothing_grew(before, after, 260)
