"""Two launchers, as on two machines, and the file for SLURM: runs equal that of one launcher with as many processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.sample.remote.launch import free_port
from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import ENVIRONMENT, ROOT, run
from tests.trainer.distributed.test_two_processes import SETTINGS
from tests.trainer.harness import MANY_ENDS

pytestmark = pytest.mark.any_version

SLURM = ROOT / "examples" / "cluster" / "run.slurm"
SECONDS = 900


def accelerate_on(node, port):
    """As docs/distributed.md has it; without a GPU the processes talk through gloo."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "2"]
    command += ["--num_processes", "2", "--machine_rank", str(node), "--main_process_ip", "127.0.0.1"]
    return [*command, "--main_process_port", port, "--mixed_precision", "no", "--dynamo_backend", "no"]


def torchrun_on(node, port):
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    return [*command, "--rdzv-id=7", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]


@pytest.mark.parametrize("launcher", [accelerate_on, torchrun_on])
def test_two_launchers_take_the_steps_of_one(tmp_path, launcher):
    folder, port = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS), str(free_port())
    settings = {**SETTINGS, "per_device_train_batch_size": 4, "beta": 0.1}
    (tmp_path / "two").mkdir()
    worker = ["-m", "tests.trainer.distributed.worker", folder, str(tmp_path / "two"), json.dumps(settings)]
    nodes = [
        subprocess.Popen(
            [*launcher(node, port), *worker], cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        for node in range(2)
    ]
    try:
        said = [node.communicate(timeout=SECONDS)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "".join(said)[-3000:]
    one = run(2, folder, tmp_path / "one", **settings)[0]
    two = torch.load(tmp_path / "two" / "weights.pt")
    assert all(torch.equal(one[name], two[name]) for name in one | two)


STAND_INS = {
    "scontrol": 'printf "localhost\\n%.0s" $(seq "$SLURM_NNODES")',
    "srun": """
        while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && tasks=${1#*=}; shift; done
        for _ in $(seq "$tasks"); do "$@" & all+=("$!"); done
        trap 'kill "${all[@]}"' TERM
        for one in "${all[@]}"; do wait "$one" || status=$?; done
        exit "${status:-0}" """,
}
"""What SLURM's commands do, with all nodes on this machine."""


def slurm(folder, nodes, **given):
    """Run the file as a job of so many nodes."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nodes", "SLURM_NNODES": str(nodes)}
    process = subprocess.Popen(
        ["bash", str(SLURM)],
        cwd=ROOT,
        env={**ENVIRONMENT, **job, **given, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, *said)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_job_in_which_no_node_is_left_to_train_ends_at_once(tmp_path):
    assert subprocess.run(["bash", "-n", str(SLURM)]).returncode == 0
    done = slurm(tmp_path, 2, SERVERS="2")
    assert done.returncode == 2 and "2 nodes, and SERVERS=2 of them draw" in done.stderr


@pytest.mark.slow
def test_a_job_whose_servers_end_ends(tmp_path):
    """Here at once: there is no such model."""
    given = {"MODEL": str(tmp_path / "none"), "ENGINE": "covey", "SERVER_ARGS": "", "PER_NODE": "1"}
    done = slurm(
        tmp_path, 2, **given, RECIPE=str(ROOT / "recipes" / "tiny.yaml"), OUTPUT=str(tmp_path / "out")
    )
    assert done.returncode == 1 and "The servers have ended (status 2) before the trainer" in done.stderr


@pytest.mark.slow
def test_the_job_trains_on_two_nodes_what_a_server_draws_on_a_third(tmp_path):
    """As one launcher does in whose processes the native engine draws; then the servers are gone."""
    recipe = (ROOT / "recipes" / "tiny.yaml").read_text()
    settings = ["max_steps=3", "eval_strategy=no", "eval_on_start=false", "save_steps=3"]
    settings += ["num_generations=4", "per_device_train_batch_size=8", "max_completion_length=12"]
    (tmp_path / "tiny.yaml").write_text(recipe)
    port = str(free_port())
    done = slurm(
        tmp_path,
        3,
        **{"PER_NODE": "1", "MODEL": "bundled", "RECIPE": str(tmp_path / "tiny.yaml"), "ENGINE": "covey"},
        **{"PORT": port, "MEET": str(free_port()), "SERVER_ARGS": "", "OUTPUT": str(tmp_path / "two")},
        TRAIN_ARGS=" ".join(settings),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "covey",
    ]
    one += ["train", str(tmp_path / "tiny.yaml"), "--set", f"output_dir={tmp_path / 'one'}", *settings]
    alone = subprocess.run(one, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS)
    assert alone.returncode == 0, alone.stderr[-3000:]
    expected, got = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(expected[name], got[name]) for name in expected | got)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0
