"""JSON lines survive what kills a process, fills a disk, or cannot be said in JSON."""

import errno
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.runs.record.json_text import encode
from covey.runs.record.jsonl import JsonLines, Tail, keep_lines, read_lines

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_a_line_says_what_went_in(record):
    line = encode(record)
    assert line.isascii() and line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == record


def test_numbers_that_are_not_finite_become_null_also_deep_inside_and_in_arrays():
    record = {
        "a": float("nan"),
        "b": [1.0, float("inf")],
        "c": {"d": np.array([1.5, np.nan])},
        "e": np.float32(0.5),
    }
    assert json.loads(encode(record)) == {"a": None, "b": [1.0, None], "c": {"d": [1.5, None]}, "e": 0.5}


def test_a_file_cut_at_any_byte_reads_up_to_the_last_whole_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    lines = [{"step": i, "text": "é\u2028" * i} for i in range(4)]
    whole = b"".join(encode(line) for line in lines)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        assert list(read_lines(path)) == lines[:complete]


def test_opening_cuts_off_a_torn_line_and_goes_on_behind_it(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(encode({"step": 1}) + b'{"step": 2, "torn' + b"x" * 200_000)
    file = JsonLines(path)
    file.append({"step": 2})
    assert list(read_lines(path)) == [{"step": 1}, {"step": 2}]


class FullDisk:
    """A file that takes `room` more bytes, then fails as a full disk does."""

    def __init__(self, file, room, raises):
        self.file, self.room, self.raises = file, room, raises

    def write(self, data):
        taken = self.file.write(data[: self.room])
        self.room -= taken
        if taken < len(data) and self.raises:
            raise OSError(errno.ENOSPC, "No space left on device")
        return taken

    def truncate(self, size):
        return self.file.truncate(size)


@pytest.mark.parametrize("raises", [True, False])
def test_a_write_that_the_disk_takes_in_part_leaves_no_half_line(tmp_path, raises):
    file = JsonLines(tmp_path / "steps.jsonl")
    file.append({"step": 1})
    real = file._file
    file._file = FullDisk(real, room=5, raises=raises)
    with pytest.raises(OSError):
        file.append({"step": 2})
    file._file = real
    file.append({"step": 3})
    assert (tmp_path / "steps.jsonl").read_bytes() == encode({"step": 1}) + encode({"step": 3})


def test_a_tail_gives_each_line_once_and_waits_for_the_end_of_a_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_bytes(b'{"step":1}\n{"st')
    assert tail.read() == [{"step": 1}]
    with open(path, "ab") as file:
        file.write(b'ep":2}\n')
    assert tail.read() == [{"step": 2}]
    assert tail.read() == []


def test_a_tail_notices_that_the_file_was_rewritten_even_when_it_has_grown_since(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(encode({"step": i}) for i in range(1, 6)))
    tail = Tail(path)
    assert len(tail.read()) == 5
    assert keep_lines(path, lambda line: line["step"] <= 3) == 2
    with open(path, "ab") as file:
        file.write(b"".join(encode({"step": i, "again": True}) for i in range(4, 20)))
    assert [line["step"] for line in tail.read()] == list(range(1, 20))
    assert tail.restarts == 1


def test_lines_that_a_power_cut_turned_into_zeros_are_counted_and_left_out(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(encode({"step": 1}) + b"\0" * 40 + b"\n[1,2]\n" + encode({"step": 2}))
    tail = Tail(path)
    assert tail.read() == [{"step": 1}, {"step": 2}]
    assert tail.damaged == 2
