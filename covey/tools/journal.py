"""Journal: what tools returned, noted before it is used, so that a run that was killed goes on as it would have.

One JSON object per line: `place` (the step, the prompt, the member, the turn, the number of the call), `tool`, `arguments` (their
hash), `status`, `text`, `seconds`. After a resume a stand-alone tool is not asked again for what stands here. Methods of
environments are run again, for they change what the next call finds; what they return is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from covey.errors import warn
from covey.types import CallStatus

Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """The outcome of a call, noted before the run stopped."""

    tool: str
    arguments: str
    """Their hash."""
    status: CallStatus
    text: str
    seconds: float


class CallJournal:
    """The journal of one process of a run.

    Args:
        path: its file; made where there is none.
        since: the step that the run goes on from, as in the places of its calls: what was noted from there on is replayed. None:
            the run begins: nothing is, and what another run noted there is forgotten.
        tell: is told once that results differ from those noted; by default a warning is given.
    """

    def __init__(
        self, path: str | os.PathLike[str], since: Place | None = None, tell: Callable[[str], None] = warn
    ) -> None:
        self._path, self._tell, self._has_told = Path(path), tell, False
        self._noted = {} if since is None else read_journal(self._path, since)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        end_last_line(self._path)
        self._file = open(self._path, "w" if since is None else "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run

    def noted(self, place: Place, tool: str, arguments: Mapping[str, Any]) -> Noted | None:
        """Return what a call came to before the run stopped; None where it is not known, or was another call."""
        found = self._noted.get(place)
        if found is not None and (found.tool, found.arguments) != (tool, hash_of(arguments)):
            self._differs(place, f"{tool} is called, and {found.tool} was, or with other arguments")
            return None
        return found

    def note(
        self,
        place: Place,
        tool: str,
        arguments: Mapping[str, Any],
        status: CallStatus,
        text: str,
        seconds: float,
    ) -> None:
        """Note what a call came to; the line is with the operating system when this returns."""
        made = Noted(tool, hash_of(arguments), status, text, seconds)
        found = self._noted.pop(place, None)
        if found is not None:
            if (found.tool, found.arguments, found.status, found.text) == (
                tool,
                made.arguments,
                status,
                text,
            ):
                return
            self._differs(place, f"{tool} returned something else")
        entry = {"place": place, "tool": tool, "arguments": made.arguments}
        line = json.dumps({**entry, "status": status, "text": text, "seconds": seconds}, ensure_ascii=False)
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _differs(self, place: Place, what: str) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell(
                f"Results of tools differ from those before the stop: {what} (place {place}). The run goes on, and is another one "
                "from here."
            )


def read_journal(path: Path, since: Place) -> dict[Place, Noted]:
    """Return what was noted from a step on; of two notes of one place the later. A line that cannot be read is passed over."""
    noted: dict[Place, Noted] = {}
    if not path.exists():
        return noted
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
                place = tuple(int(n) for n in entry["place"])
                made = Noted(
                    str(entry["tool"]), str(entry["arguments"]), entry["status"], str(entry["text"]), float(entry["seconds"])
                )  # fmt: skip
            except (ValueError, KeyError, TypeError):  # a process was killed in the middle of a line
                continue
            if place[: len(since)] >= since and place[0] == since[0] and made.status in get_args(CallStatus):
                noted[place] = made
    return noted


def end_last_line(path: Path) -> None:
    """End a line that a killed process left half written, so that the next stands on its own."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def hash_of(arguments: Mapping[str, Any]) -> str:
    """Return a short hash of arguments, the same for equal ones."""
    text = json.dumps(arguments, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
