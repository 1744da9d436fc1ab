"""Threads are few where more would only wait, the same in every run of a machine, and never against the user's word."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from covey.config.threads import SMALL, quota

CODE = """
import json, os, sys, torch
from covey.config import threads
threads.usable_cores = lambda: {2, 4}
threads.QUOTA = threads.Path(sys.argv[1])
for weights, present, limit, variables in json.loads(sys.argv[2]):
    if os.fork() == 0:  # a process of its own, without the seconds that importing torch takes
        os.environ.update(variables)
        torch.set_num_threads(present)
        threads.QUOTA.write_text(limit)
        said = [threads.settle_threads(w) is not None for w in weights]
        print(json.dumps([torch.get_num_threads(), said]), flush=True)
        os._exit(0)
    os.wait()
"""

CASES = [
    (([SMALL - 1], 4, "max 100000", {}), [1, [True]]),
    (([SMALL], 4, "max 100000", {}), [4, [False]]),
    (([SMALL], 4, "250000 100000", {}), [2, [True]]),
    (([SMALL], 4, "50000 100000", {}), [1, [True]]),
    (([10, SMALL], 4, "max 100000", {}), [4, [True, False]]),  # a large policy after a small one
    (([10, 10], 4, "max 100000", {}), [1, [True, True]]),
    (([10], 3, "max 100000", {}), [3, [False]]),
    (([10], 4, "max 100000", {"OMP_NUM_THREADS": "4"}), [4, [False]]),
    (([10], 4, "max 100000", {"MKL_NUM_THREADS": "4"}), [4, [False]]),
]
"""Weights, torch's threads before, the container's limit and variables; threads then, and whether it was said."""


def without_word_of_the_user():
    return {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}


def test_threads_follow_from_size_and_machine_unless_the_user_says_otherwise(tmp_path):
    given = json.dumps([case for case, _ in CASES])
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "cpu.max"), given],
        capture_output=True, encoding="utf-8", env=without_word_of_the_user(),
    )  # fmt: skip
    assert [json.loads(line) for line in done.stdout.splitlines()] == [e for _, e in CASES], done.stderr


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("", {}, "1000"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
        ("import sys; sys.modules['torch'] = None; ", {}, "None"),  # too late: it was read
    ],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise(before, variables, expected):
    clean = {n: v for n, v in os.environ.items() if n not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = f"{before}import os, covey; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env={**clean, **variables}
    )
    assert done.stdout.strip() == expected, done.stderr


def test_the_quota_of_a_container_is_read_in_whole_cores():
    assert [
        quota(text) for text in ("max 100000\n", "200000 100000", "150000 100000", "1000 100000", "")
    ] == [None, 2, 1, 1, None]


def test_a_run_says_once_how_many_threads_it_takes(tmp_path):
    code = """
import sys, torch
torch.set_num_threads(2)
from covey.config import threads
threads.usable_cores = lambda: {2}
from datasets import Dataset
from covey import GRPOConfig, GRPOTrainer
from covey.tasks import assets
args = GRPOConfig(output_dir=sys.argv[1], max_steps=2, num_generations=2, per_device_train_batch_size=2, max_completion_length=4,
                  use_cpu=True, report_to="none", save_strategy="no")
rows = Dataset.from_list([{"prompt": "a"}] * 4)
GRPOTrainer(str(assets.POLICY), lambda completions, **_: [0.0] * len(completions), args, rows).train()
assert torch.get_num_threads() == 1
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        env=without_word_of_the_user(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Threads: 1 in place of 2; for a policy of 1.1 million weights") == 1
