"""Law: one run at a time in an output_dir, however the one before ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from covey.errors import ConfigError
from covey.trainer.run_lock import LOCK, _is_alive, only_run

pytestmark = pytest.mark.any_version

HOLDS = """
import sys, time, os
from pathlib import Path
from covey.trainer.run_lock import only_run
with only_run(Path(sys.argv[1]), True, lambda v: [v]):
    if len(sys.argv) > 2 and os.fork() == 0:  # a child that outlives its parent
        time.sleep(30)
    print("held", os.getpid(), flush=True)
    time.sleep(600)
"""


def alone(value):
    return [value]


def holder(folder, *more):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder), *more], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("held")
    return process


def test_a_second_run_is_refused_with_the_process_of_the_first_and_a_killed_one_makes_room(tmp_path):
    first = holder(tmp_path)
    with pytest.raises(ConfigError, match=f"in use.*{first.pid}"), only_run(tmp_path, True, alone):
        pass
    first.kill()
    first.wait()
    assert (tmp_path / LOCK).exists()
    with only_run(tmp_path, True, alone):
        assert f'"pid": {__import__("os").getpid()}' in (tmp_path / LOCK).read_text()
    assert not (tmp_path / LOCK).exists()


def test_children_that_outlive_a_killed_run_do_not_hold_its_folder(tmp_path):
    first = holder(tmp_path, "forks")
    first.kill()
    first.wait()
    with only_run(tmp_path, True, alone):
        pass


def test_all_processes_of_a_launch_hear_of_it(tmp_path):
    with (
        pytest.raises(ConfigError, match="in use"),
        only_run(tmp_path, False, lambda v: [v, "output_dir is in use."]),
    ):
        pass


def test_without_locks_the_named_process_is_looked_for(tmp_path):
    first = holder(tmp_path)
    text = (tmp_path / LOCK).read_text()
    assert _is_alive(text)
    first.kill()
    first.wait()
    assert not any(map(_is_alive, (text, "", "{", "[]", '{"pid": 1, "host": "elsewhere"}')))


def test_an_error_inside_makes_room(tmp_path: Path):
    with pytest.raises(KeyError), only_run(tmp_path, True, alone):
        raise KeyError
    assert not (tmp_path / LOCK).exists()
