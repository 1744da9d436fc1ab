"""What was sampled ahead comes back from a checkpoint as it was, to the bit, without running code from the file."""

import base64
import hashlib
import json
import math
from dataclasses import replace

import pytest

from covey.errors import CheckpointError
from covey.metrics import Largest, Mean, Spread, Total
from covey.trainer.checkpoint.ahead import load_ahead, save_ahead
from covey.trainer.scored_rollout import ScoredRollout
from covey.types import Completion, Group, Picture, Prompt, Score, ScoredGroup, ToolCall, Turn


def scored(number):
    call = ToolCall("add", {"a": 1, "b": [0.1, None]}, "call-1", "ok", "3\ud800", 0.1 + 0.2)
    turn = Turn(0, 2, 3, (call,), 1 / 3, 0.7)
    plain = Completion((1, 2, 3), (-1 / 3, -5e-324, -0.0), "a\u2028b\udcff", "stop")
    episode = Completion(
        (4, 5, 6), (-0.1, -1e300, 0.0), "", "turns", (True, True, False), (-0.2, -0.3, 0.0), (turn, Turn(3, 4, 4)),
        ({"role": "assistant", "content": "x"}, {"role": "tool", "content": "3"}), [{"role": "user", "content": "own"}], 1,
    )  # fmt: skip
    prompt = Prompt(
        [{"role": "user", "content": "say é"}], (7, 8), {"task": "sums", "n": 3}, number, (number, 1), 2
    )
    scores = {
        "good": (Score(0.1 + number), Score(None, "failed", "no\nanswer")),
        "turns": (Score(0.3, turns=(0.1, 0.2)), Score(None, "gated")),
    }
    return ScoredGroup(
        Group(prompt, (plain, episode)), scores, (1 / 7, None), (0.0, 0.0), {"seen": (1, None), "why": ("a", [1.5])},
        {"good": 0.5, "turns": 1.0}, (0.25, 1e-17), ((0.5,), (0.25, -0.25)),
    )  # fmt: skip


def rollout(number):
    made = ScoredRollout(number, 3, rounds=[[scored(0), scored(1)], [scored(2)]])
    made.engine_numbers = {"engine/tokens/0": 17.0, "engine/wait_seconds": 0.1 + 0.2}
    made.notes = [
        {"a": Mean(0.1, 3.0), "b": Largest(None)}, {}, {"c": Spread(2, 0.3, 1e-9), "t": Total(math.inf)},
    ]  # fmt: skip
    return made


def test_rollouts_come_back_as_they_were(tmp_path):
    queue = [rollout(4), rollout(5)]
    save_ahead(tmp_path, 1, 2, queue)
    back = load_ahead(tmp_path, 1, 2, 4, ["turns", "good"])
    for one, other in zip(queue, back, strict=True):
        assert (one.number, one.version, one.rounds, one.notes) == (
            other.number,
            other.version,
            other.rounds,
            other.notes,
        )
        assert one.engine_numbers == other.engine_numbers
        assert repr(one.rounds) == repr(other.rounds), "signs of zeros, tuples and all"
        assert other.sampled.is_set() and other.scored.is_set()


def test_pictures_come_back_once_each(tmp_path):
    made = rollout(4)
    path = tmp_path / "a.png"
    path.write_bytes(b"some bytes")
    digest = hashlib.sha256(b"some bytes").hexdigest()
    pictures = (
        Picture(str(path), digest, (2, 3)),
        Picture(b"more", hashlib.sha256(b"more").hexdigest(), (1, 1)),
    )
    made.rounds = [
        [
            replace(s, group=replace(s.group, prompt=replace(s.group.prompt, pictures=pictures)))
            for s in groups
        ]
        for groups in made.rounds
    ]
    save_ahead(tmp_path, 0, 1, [made])
    [back] = load_ahead(tmp_path, 0, 1, 4, ["turns", "good"])
    assert back.rounds == made.rounds
    assert (tmp_path / "ahead0.json").read_text().count(base64.b64encode(b"more").decode()) == 1
    path.write_bytes(b"others")
    with pytest.raises(CheckpointError, match=r"a\.png, and the picture has changed"):
        load_ahead(tmp_path, 0, 1, 4, ["turns", "good"])


def test_pictures_in_contents_and_columns_come_back_as_they_were(tmp_path):
    """Also those that are for rewards alone, which the policy is shown none of; what looks like one stays what it is."""
    made = rollout(4)
    shown, other = (Picture(d, hashlib.sha256(d).hexdigest(), (1, 1)) for d in (b"some", b"others"))
    content = [
        {"role": "user", "content": [{"type": "image", "image": shown}, {"type": "text", "text": "What?"}]}
    ]
    columns = {
        "images": [shown, other],
        "image": other,
        "task": "x",
        "own": {"covey_picture": "abc"},
        "none": None,
    }
    made.rounds = [
        [replace(s, group=replace(s.group, prompt=replace(s.group.prompt, content=content, columns=columns, pictures=(shown,) * (n % 2))))
         for n, s in enumerate(groups)]
        for groups in made.rounds
    ]  # fmt: skip
    save_ahead(tmp_path, 0, 1, [made])
    [back] = load_ahead(tmp_path, 0, 1, 4, ["turns", "good"])
    assert back.rounds == made.rounds
    text = (tmp_path / "ahead0.json").read_text()
    assert [text.count(base64.b64encode(d).decode()) for d in (b"some", b"others")] == [1, 1]
    assert "picture 1" not in text


def test_nothing_is_written_where_nothing_is_ahead(tmp_path):
    save_ahead(tmp_path, 0, 1, [])
    assert not list(tmp_path.iterdir()) and load_ahead(tmp_path, 0, 1, 4, ["good"]) == []


def test_rollouts_of_others_are_refused(tmp_path):
    save_ahead(tmp_path, 0, 1, [rollout(4)])
    names = ["good", "turns"]
    for rank, ranks in ((0, 2), (1, 2)):
        with pytest.raises(CheckpointError, match="another number of processes than 2"):
            load_ahead(tmp_path, rank, ranks, 4, names)
    with pytest.raises(
        CheckpointError, match=r"holds rollouts \[4\], and the settings of this run make 5 the next"
    ):
        load_ahead(tmp_path, 0, 1, 5, names)
    path = tmp_path / "ahead0.json"
    for broken in (path.read_text()[:-20], "[]", json.dumps({"ranks": 1, "rollouts": [{"number": 4}]})):
        path.write_text(broken)
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_ahead(tmp_path, 0, 1, 4, names)
