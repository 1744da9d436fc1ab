"""Runs of one process and of several, and what they are compared by."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from tests.trainer.distributed.worker import work

ROOT = Path(__file__).parents[3]


def run(processes, folder, out, **settings):
    """Train with one process, this one, or with several under `accelerate launch`."""
    out.mkdir(parents=True, exist_ok=True)
    if processes == 1:
        work(folder, out, settings)
    else:
        done = launch(processes, folder, out, settings)
        assert done.returncode == 0, done.stderr[-3000:]
    calls = [json.loads((out / f"calls{rank}.json").read_text()) for rank in range(processes)]
    return torch.load(out / "weights.pt"), json.loads((out / "log.json").read_text()), calls


def launch(processes, folder, out, settings):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # accelerate's --multi_gpu is its launcher for several processes; without a GPU they talk through gloo.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes)]
    command += ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command += ["--main_process_port", str(port), "-m", "tests.trainer.distributed.worker"]
    command += [folder, str(out), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


def assert_close(a, b, tolerance=2e-6):
    for name in a:
        assert torch.allclose(a[name], b[name], atol=tolerance, rtol=1e-4), (
            name,
            (a[name] - b[name]).abs().max(),
        )


def completions(calls):
    return sorted(
        (p, tuple(i)) for rank in calls for c in rank for p, i in zip(c["prompts"], c["ids"], strict=True)
    )
