"""Scores of pure rewards, kept by content: the same reward, completion and columns are scored once."""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypedDict, TypeVar

from covey.errors import RewardError, warn
from covey.rewards.batch import RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.fingerprint import fingerprint
from covey.types import Picture, Score

T = TypeVar("T")
Key = bytes
PREFIX = 32
"""Bytes of a whole key that tell the reward; the others are the digest of what it looked at."""
MAKE = "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, value REAL) WITHOUT ROWID"
FIND = "SELECT value FROM scores WHERE key = ?"
KEEP = "INSERT OR REPLACE INTO scores (key, value) VALUES (?, ?)"
DAMAGED = frozenset({1, 11, 19, 20, 24, 26})
"""Codes of SQLite for a file that holds something else: other columns, damage, other constraints or types, no database."""


class CacheState(TypedDict):
    """Scores in memory as plain values, the least recently used first; one owner, key and value per score."""

    names: list[str]
    """Of the rewards."""
    fingerprints: list[bytes]
    """Of the same rewards."""
    owners: list[int]
    """Positions in `names`."""
    keys: bytes
    """All keys, one after another; equally long."""
    values: list[float | None]


def row_keys(reward: Reward, batch: RewardBatch) -> list[Key | None]:
    """Return a digest of everything that a pure reward can look at, for each row; None where it cannot be taken."""
    columns: dict[str, Sequence[object]] = {
        **batch.columns,
        "prompts": batch.prompts,
        "completions": batch.completions,
        "completion_ids": batch.completion_ids,
        "image_sizes": batch.image_sizes,
    }
    seen = {name: values for name, values in reward.wanted(columns).items() if len(values) == len(batch)}
    keys: list[Key | None] = []
    for row in range(len(batch)):
        content = {name: values[row] for name, values in sorted(seen.items())}
        try:
            written = io.BytesIO()
            _ByDigest(written, protocol=5).dump(content)
            keys.append(hashlib.sha256(written.getbuffer()).digest())
        except Exception:
            keys.append(None)  # a column of something that cannot be written down; scored anew each time
    return keys


class _ByDigest(pickle.Pickler):
    """Writes values down with the digest of each picture in its place: the same one, wherever it lies."""

    def reducer_override(self, value: object) -> tuple[type, tuple[str, ...]]:
        return (str, (value.digest,)) if isinstance(value, Picture) else NotImplemented


class RewardCache:
    """Scores in memory, the least recently used dropped first, and in a file where one is given.

    Args:
        max_entries: scores kept in memory.
        path: a file that outlives the run; made where it is not there.
    """

    def __init__(self, max_entries: int = 100_000, path: str | Path | None = None) -> None:
        self.max_entries = max_entries
        self.path = Path(path) if path is not None else None
        self._memory: OrderedDict[Key, Score] = OrderedDict()
        self._fingerprints: dict[int, tuple[Reward, bytes | None]] = {}
        self._lock = threading.Lock()

    def get(self, reward: Reward, keys: Sequence[Key | None]) -> list[Score | None]:
        """Return the scores that are known, None for the others."""
        with self._lock:
            prefix, is_lasting = self._prefix(reward)
            found = [None if key is None else self._memory.get(prefix + key) for key in keys]
            for key, score in zip(keys, found, strict=True):
                if key is not None and score is not None:
                    self._memory.move_to_end(prefix + key)
            unknown = [i for i, score in enumerate(found) if score is None and keys[i] is not None]
            if unknown and self.path is not None and is_lasting:
                asked = {i: prefix + (keys[i] or b"") for i in unknown}
                rows = _with_file(
                    self.path,
                    lambda file: {i: file.execute(FIND, (key,)).fetchone() for i, key in asked.items()},
                )
                for i, row in rows.items():
                    found[i] = None if row is None else _score(row[0])
        return found

    def put(self, reward: Reward, scores: Mapping[Key, Score]) -> None:
        """Keep scores; failures, scores that stand for a fault, and scores by turn are not kept."""
        sound = {
            key: score
            for key, score in scores.items()
            if score.status in ("value", "not_applicable") and score.error is None and score.turns is None
        }
        with self._lock:
            prefix, is_lasting = self._prefix(reward)
            whole = {prefix + key: score for key, score in sound.items()}
            self._memory |= whole
            while len(self._memory) > self.max_entries:
                self._memory.popitem(last=False)
            if whole and self.path is not None and is_lasting:
                kept = [(key, score.value) for key, score in whole.items()]
                _with_file(self.path, lambda file: file.executemany(KEEP, kept))

    def state(self, rewards: Iterable[Reward]) -> CacheState:
        """Return the scores in memory of those of these rewards that can be told apart in another run."""
        told = [(reward.name, *self._prefix(reward)) for reward in rewards]
        owners = {prefix: name for name, prefix, is_lasting in told if is_lasting}
        with self._lock:
            entries = [
                (owners[key[:PREFIX]], key[PREFIX:], score.value)
                for key, score in self._memory.items()
                if key[:PREFIX] in owners
            ]
        names = list(dict.fromkeys(name for name, _, _ in entries))
        fingerprints = {name: prefix for prefix, name in owners.items()}
        return {
            "names": names,
            "fingerprints": [fingerprints[name] for name in names],
            "owners": [names.index(name) for name, _, _ in entries],
            "keys": b"".join(key for _, key, _ in entries),
            "values": [value for _, _, value in entries],
        }

    def restore(self, state: CacheState, rewards: Iterable[Reward]) -> None:
        """Take up a `state`; scores of rewards that are gone, or are not what they were, are left out."""
        known = {self._prefix(reward)[0] for reward in rewards}
        prefixes = state.get("fingerprints") or [b""] * len(state["names"])
        size = len(state["keys"]) // max(len(state["values"]), 1)
        with self._lock:
            for i, (owner, value) in enumerate(zip(state["owners"], state["values"], strict=True)):
                score = _score(value)
                if prefixes[owner] in known and score is not None:
                    self._memory[prefixes[owner] + state["keys"][i * size : (i + 1) * size]] = score

    def _prefix(self, reward: Reward) -> tuple[bytes, bool]:
        """Return the start of a reward's keys, and whether it is the same in another run: the reward can be told apart."""
        if id(reward) not in self._fingerprints:
            # The reward is held, so its id stays its own.
            self._fingerprints[id(reward)] = (reward, fingerprint(reward))
            if self._fingerprints[id(reward)][1] is None and self.path is not None:
                warn(
                    f"Reward {reward.name!r}: its scores are not kept in {str(self.path)!r}. It holds something that cannot be told "
                    "apart between runs (an open file, a lock, a connection); they are kept in memory, for this run."
                )
        known = self._fingerprints[id(reward)][1]
        return known or id(reward).to_bytes(PREFIX, "big"), known is not None

    def __reduce__(self) -> tuple[type[RewardCache], tuple[int, Path | None]]:
        return RewardCache, (self.max_entries, self.path)  # without scores and lock


def _score(value: object) -> Score | None:
    """Return a kept score, None where it is none: not every file was written here. A kept None stands for "does not apply"."""
    if value is None:
        return Score(None, "not_applicable")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Score(float(value)) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _with_file(path: Path, use: Callable[[sqlite3.Connection], T]) -> T:
    """Return what `use` does with the file of scores; several processes may use it. A file that is none is set aside first.

    Raises:
        RewardError: the file cannot be opened or written.
    """
    for _ in range(3):
        try:
            at_first = path.stat().st_ino if path.exists() else None
            with closing(sqlite3.connect(path, timeout=30.0)) as connection, connection:
                connection.execute(MAKE)
                return use(connection)
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in DAMAGED:
                raise RewardError(
                    f"cache={str(path)!r} cannot be used: {error}. Name a file that can be written."
                ) from error
            _set_aside(path, at_first, error)
    raise RewardError(f"cache={str(path)!r} is damaged again each time it is made. Name another file.")


def _set_aside(path: Path, inode: int | None, error: Exception) -> None:
    """Rename a file that holds no scores, and say so; not one that another process has put there meanwhile."""
    aside = next(
        p for i in range(10**6) if not (p := path.with_name(f"{path.name}.damaged{i or ''}")).exists()
    )
    try:
        if path.stat().st_ino == inode:
            path.rename(aside)
            warn(
                f"cache={str(path)!r} is damaged, or holds something else ({error}). It is now {aside.name!r}; scores are kept anew."
            )
    except FileNotFoundError:
        pass  # another process was faster
