"""A policy in shards is published, proven and put back by all of its processes together."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_two_processes_prove_a_server_with_a_policy_in_shards(tmp_path):
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "tests.sample.remote.sharded_worker", str(tmp_path)]
    workers = [
        subprocess.Popen(
            command, cwd=ROOT, env={**shared, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for worker in workers:
            _, said = worker.communicate(timeout=1800)
            assert worker.returncode == 0, said[-3000:]
    finally:
        for worker in workers:
            worker.kill()
