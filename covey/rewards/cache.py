"""Scores of pure rewards, kept by content: the same reward, completion and columns are scored once."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.rewards.batch import RewardBatch
from covey.rewards.contract import Reward
from covey.types import Score

Key = bytes
PREFIX = 32
"""Bytes of a whole key that tell the reward; the others are the digest of what it looked at."""


def row_keys(reward: Reward, batch: RewardBatch) -> list[Key | None]:
    """For each row, a digest of everything that a pure reward can look at; None where it cannot be taken."""
    columns: dict[str, Sequence[Any]] = {
        **batch.columns,
        "prompts": batch.prompts,
        "completions": batch.completions,
        "completion_ids": batch.completion_ids,
    }
    seen = {name: values for name, values in reward.wanted(columns).items() if len(values) == len(batch)}
    return [
        _digest({name: values[row] for name, values in sorted(seen.items())}) for row in range(len(batch))
    ]


def fingerprint(reward: Reward) -> bytes | None:
    """What tells one reward's scores from another's between runs: its name, code and settings; None: not known."""
    function = reward.function
    try:
        code = inspect.getsource(function if inspect.isroutine(function) else type(function))
        settings = b"" if inspect.isroutine(function) else pickle.dumps(function)
    except (OSError, TypeError, pickle.PicklingError, AttributeError):
        return None
    return hashlib.sha256(b"\0".join((reward.name.encode(), code.encode(), settings))).digest()


def _digest(content: dict[str, Any]) -> Key | None:
    try:
        return hashlib.sha256(pickle.dumps(content, protocol=5)).digest()
    except Exception:
        return None  # a column of something that cannot be written down; scored anew each time


class Cache:
    """Keeps scores in memory, the least recently used dropped first, and in a file where one is given.

    Args:
        max_entries: scores kept in memory.
        path: a file that outlives the run; made where it is not there.
    """

    def __init__(self, max_entries: int = 100_000, path: str | Path | None = None) -> None:
        self.max_entries = max_entries
        self.path = Path(path) if path is not None else None
        self._memory: OrderedDict[Key, Score] = OrderedDict()
        self._prints: dict[int, tuple[Reward, bytes | None]] = {}
        self._lock = threading.Lock()

    def get(self, reward: Reward, keys: Sequence[Key | None]) -> list[Score | None]:
        """The scores that are known, None for the others."""
        with self._lock:
            found = [self._recall(self._whole(reward, key)) for key in keys]
            unknown = [i for i, score in enumerate(found) if score is None and keys[i] is not None]
            if unknown and self._is_lasting(reward):
                with _opened(self.path) as file:
                    for i in unknown:
                        found[i] = _read(file, self._whole(reward, keys[i]))
        return found

    def put(self, reward: Reward, scores: Mapping[Key, Score]) -> None:
        """Keep scores; failures, and scores that stand for a fault, are not kept."""
        sound = {
            k: s for k, s in scores.items() if s.status in ("value", "not_applicable") and s.error is None
        }
        with self._lock:
            prefix = self._prefix(reward)
            whole = {prefix + key: score for key, score in sound.items()}
            self._memory |= whole
            while len(self._memory) > self.max_entries:
                self._memory.popitem(last=False)
            if whole and self._is_lasting(reward):
                with _opened(self.path) as file:
                    file.executemany(
                        "INSERT OR REPLACE INTO scores VALUES (?, ?)",
                        [(k, s.value) for k, s in whole.items()],
                    )

    def state(self, rewards: Iterable[Reward]) -> dict[str, Any]:
        """What is in memory, as plain values: keys and scores by reward, the least recently used first."""
        owners = {self._prefix(reward): reward.name for reward in rewards}
        with self._lock:
            entries = [
                (owners[key[:PREFIX]], key[PREFIX:], score.value)
                for key, score in self._memory.items()
                if key[:PREFIX] in owners
            ]
        names = list(dict.fromkeys(name for name, _, _ in entries))
        return {
            "names": names,
            "owners": [names.index(name) for name, _, _ in entries],
            "keys": b"".join(key for _, key, _ in entries),
            "values": [value for _, _, value in entries],
        }

    def restore(self, state: Mapping[str, Any], rewards: Iterable[Reward]) -> None:
        """Take up what `state` gave; scores of rewards that are not there any more are left out."""
        prefixes = {reward.name: self._prefix(reward) for reward in rewards}
        size = len(state["keys"]) // max(len(state["values"]), 1)
        with self._lock:
            for i, (owner, value) in enumerate(zip(state["owners"], state["values"], strict=True)):
                prefix = prefixes.get(state["names"][owner])
                if prefix is not None:
                    self._memory[prefix + state["keys"][i * size : (i + 1) * size]] = _score(value)

    def _recall(self, whole: Key | None) -> Score | None:
        if whole is None or whole not in self._memory:
            return None
        self._memory.move_to_end(whole)
        return self._memory[whole]

    def _whole(self, reward: Reward, key: Key | None) -> Key | None:
        """A row's key for one reward; a reward that cannot be told apart between runs gets a key for this one."""
        return None if key is None else self._prefix(reward) + key

    def _prefix(self, reward: Reward) -> bytes:
        return self._known(reward)[1] or id(reward).to_bytes(PREFIX, "big")

    def __getstate__(self) -> dict[str, Any]:
        return {"max_entries": self.max_entries, "path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _is_lasting(self, reward: Reward) -> bool:
        return self.path is not None and self._known(reward)[1] is not None

    def _known(self, reward: Reward) -> tuple[Reward, bytes | None]:
        if id(reward) not in self._prints:
            self._prints[id(reward)] = (
                reward,
                fingerprint(reward),
            )  # the reward is held, so its id stays its own
        return self._prints[id(reward)]


def _read(file: sqlite3.Connection, key: Key | None) -> Score | None:
    found = file.execute("SELECT value FROM scores WHERE key = ?", (key,)).fetchone()
    return None if found is None else _score(found[0])


def _score(value: float | None) -> Score:
    """A kept score; None stands for a reward that does not apply."""
    return Score(None, "not_applicable") if value is None else Score(value)


class _opened:
    """The file of scores for one operation; several processes may use it."""

    def __init__(self, path: Path | None) -> None:
        assert path is not None
        self._connection = sqlite3.connect(path, timeout=30.0)

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, value REAL) WITHOUT ROWID"
        )
        return self._connection

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._connection.commit()
        self._connection.close()
