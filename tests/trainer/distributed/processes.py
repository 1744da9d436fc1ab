"""Runs of one process and of several, and what they are compared by."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from covey.sample.remote.launch import free_port
from tests.trainer.distributed.worker import work

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SECONDS = 900
"""Until what hangs is ended: longer than any run takes on a machine that has other things to do."""


def run(processes, folder, out, fresh=False, **settings):
    """Train with one process, this one, or with several: those that stand ready, or fresh ones."""
    out.mkdir(parents=True, exist_ok=True)
    if processes == 1:
        work(folder, out, settings)
    elif fresh or "deepspeed" in settings:
        done = launch(folder, out, settings, processes)
        assert done.returncode == 0, done.stderr[-3000:]
    else:
        Team.ready(processes).run(folder, out, settings)
    calls = [json.loads((out / f"calls{rank}.json").read_text()) for rank in range(processes)]
    return torch.load(out / "weights.pt"), json.loads((out / "log.json").read_text()), calls


def launch(folder, out, settings, processes=2):
    """Train with fresh processes under `accelerate launch`, to their end."""
    return subprocess.run(
        command(processes, folder, str(out), json.dumps(settings)),
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def command(processes, *arguments):
    # accelerate's --multi_gpu is its launcher for several processes; without a GPU they talk through gloo.
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes)]
    launcher += ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--main_process_port", str(free_port()), "-m", "tests.trainer.distributed.worker"]
    return [*launcher, *arguments]


class Team:
    """Processes that take one run after the other."""

    standing = None

    @classmethod
    def ready(cls, processes):
        if cls.standing is not None and cls.standing.processes != processes:
            cls.standing.end()
        if cls.standing is None:
            cls.standing = Team(processes)
        return cls.standing

    def __init__(self, processes):
        self.processes = processes
        self.jobs, self.count = Path(tempfile.mkdtemp(prefix="covey-jobs-")), 0
        self.output = (self.jobs / "output").open("w")
        self.process = subprocess.Popen(
            command(processes, str(self.jobs)),
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def run(self, folder, out, settings):
        """Have all train, and raise what was raised in one of them, or where they take too long."""
        number, self.count = self.count, self.count + 1
        draft = self.jobs / "draft"
        draft.write_text(json.dumps([folder, str(out), settings]))
        draft.rename(self.jobs / f"{number}.json")
        answers = [self.jobs / f"{number}.rank{rank}" for rank in range(self.processes)]
        deadline = time.monotonic() + SECONDS
        while True:
            faults = [answer.read_text() for answer in answers if answer.exists()]
            is_late = self.process.poll() is not None or time.monotonic() > deadline
            if len(faults) == self.processes and all(faults):
                raise AssertionError("".join(faults)[-3000:])
            if any(faults):
                deadline = min(deadline, time.monotonic() + 60)
            if is_late:
                said = "".join(faults) or (self.jobs / "output").read_text()
                self.end()
                raise AssertionError(said[-3000:])
            if len(faults) == self.processes and not any(faults):
                return
            time.sleep(0.01)

    def end(self):
        """End all: one that has failed leaves the others waiting for it."""
        Team.standing = None
        self.process.kill()
        self.process.wait()
        for file in self.jobs.glob("*.pid"):  # the launcher has given each a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.suffixes[0][1:]), signal.SIGKILL)
        self.output.close()
        shutil.rmtree(self.jobs, ignore_errors=True)


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
