"""Threads are few where more would only wait, the same in every run of a machine, and never against the user's word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from covey.config.threads import SMALL, quota

CODE = """
import sys, torch
from covey.config import threads
{before}
threads.usable_cores = lambda: {{2, 4}}
threads.QUOTA = threads.Path(sys.argv[1])
said = [threads.settle_threads(weights) for weights in {weights}]
print(torch.get_num_threads(), [line is not None for line in said], flush=True)
"""


def settled(folder, weights, before="torch.set_num_threads(4)", limit="max 100000", **variables):
    """What a fresh process settles on, and whether it said so, on a machine of four cores."""
    (folder / "cpu.max").write_text(limit + "\n")
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before, weights=weights), str(folder / "cpu.max")],
        capture_output=True, encoding="utf-8", env={**clean, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("weights", "given", "expected"),
    [
        ([SMALL - 1], {}, "1 [True]"),
        ([SMALL], {}, "4 [False]"),
        ([SMALL], {"limit": "250000 100000"}, "2 [True]"),
        ([SMALL], {"limit": "50000 100000"}, "1 [True]"),
        ([10, SMALL], {}, "4 [True, False]"),  # a large policy after a small one
        ([10, 10], {}, "1 [True, True]"),
        ([10], {"before": "torch.set_num_threads(3)"}, "3 [False]"),
        ([10], {"OMP_NUM_THREADS": "4"}, "4 [False]"),
        ([10], {"MKL_NUM_THREADS": "4"}, "4 [False]"),
    ],
)
def test_threads_follow_from_size_and_machine_unless_the_user_says_otherwise(
    tmp_path, weights, given, expected
):
    assert settled(tmp_path, weights, **given) == expected


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
from covey.tasks import quickstart_run
args = GRPOConfig(output_dir=sys.argv[1], max_steps=2, num_generations=2, per_device_train_batch_size=2, max_completion_length=4,
                  use_cpu=True, report_to="none", save_strategy="no")
rows = Dataset.from_list([{"prompt": "a"}] * 4)
GRPOTrainer(str(quickstart_run.POLICY), lambda completions, **_: [0.0] * len(completions), args, rows).train()
assert torch.get_num_threads() == 1
"""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        env=clean,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Threads: 1 in place of 2; for a policy of 1.1 million weights") == 1
