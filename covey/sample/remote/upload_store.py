"""Files that are sent to a server, in folders, until it has read them. A file is there whole, as its digest says, or not at all."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from covey.sample.remote.owned_folder import OwnedFolder
from covey.text.foreign import excerpt

BLOCK = 1 << 20
"""Bytes of a file that are read at once."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.(safetensors|json)")


class Status(Exception):
    """An answer that says no, by its status in HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class UploadStore:
    """Folders of files, by the names under which they were sent.

    Args:
        above: where its own folder is made; None: where temporary files are.
        kept: folders that it keeps; an older one makes room. Of a run that was killed nobody deletes them.
        most: bytes of a folder at most; None: what there is room for.
    """

    def __init__(self, above: Path | None, kept: int, most: int | None = None) -> None:
        self._own = OwnedFolder(above or Path(tempfile.gettempdir()), "covey-uploads-")
        self.folder = self._own.path / "files"
        self.folder.mkdir()
        self.kept, self.most = kept, most
        self.folders: OrderedDict[str, Path] = OrderedDict()
        self.lock = threading.Lock()

    def take(self, path: str, digest: str, length: int, read: Callable[[int], bytes]) -> Path:
        """Write a file, and look whether it is whole; returns the folder that it lies in.

        Args:
            path: NAME/FILE.
            digest: SHA-256 of the file, in hexadecimal.
            length: bytes of the file.
            read: returns so many of its bytes, or fewer at its end.

        Raises:
            Status: a name that is none, too long, or not what the digest says.
        """
        name, _, file = path.partition("/")
        if not NAME.fullmatch(name) or not FILE.fullmatch(file):
            raise Status(
                400,
                "An upload is named by letters, digits, - and _, and a file in it ends in .safetensors or .json: "
                "PUT /covey/uploads/NAME/FILE?sha256=DIGEST.",
            )
        with self.lock:
            folder = self._room(name, file, length)
        found, left = sha256(), length
        with (folder / file).open("wb") as out:
            while left > 0 and (block := read(min(BLOCK, left))):
                left -= len(block)
                found.update(block)
                out.write(block)
        if left or found.hexdigest() != digest.lower():
            (folder / file).unlink(missing_ok=True)
            said = f"{file} came with the digest {found.hexdigest()}, not {excerpt(digest, 80)!r}. Send it again."
            raise Status(400, said)
        return folder

    def _room(self, name: str, file: str, length: int) -> Path:
        """Return the folder of an upload, with room for a file; older uploads are deleted for it."""
        folder = self.folders.setdefault(name, self.folder / name)
        folder.mkdir(exist_ok=True)
        there = sum(f.stat().st_size for f in folder.iterdir() if f.name != file)
        if self.most is not None and there + length > self.most:
            raise Status(
                413, f"The upload would have {there + length:,} bytes; {self.most:,} are enough here."
            )
        self.folders.move_to_end(name)
        while (is_full := length >= shutil.disk_usage(folder).free) or len(self.folders) > self.kept:
            if len(self.folders) == 1:
                break
            shutil.rmtree(self.folders.popitem(last=False)[1], ignore_errors=True)
        if is_full:
            raise Status(413, f"{file} has {length:,} bytes, for which there is no room in {folder}.")
        return folder

    def drop(self, name: str) -> None:
        """Delete what was sent under a name."""
        with self.lock:
            folder = self.folders.pop(name, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Delete everything."""
        self._own.close()


def seen_folder(path: str, sizes: Mapping[str, int]) -> Path:
    """Return a folder that is here, with files of these sizes: another one of the same name is not taken for it.

    Raises:
        Status: it is not here, or its path is not absolute.
    """
    folder = Path(path)
    if not folder.is_absolute():
        raise Status(400, f"folder is {excerpt(path, 200)!r}; it must be an absolute path.")
    try:
        is_here = folder.is_dir() and all((folder / n).stat().st_size == size for n, size in sizes.items())
    except (OSError, ValueError):
        is_here = False
    if not is_here:
        raise Status(
            404,
            f"{excerpt(path, 400)} is not there as this server sees it, or holds other files. Use a folder that both machines share, "
            "or send the files: PUT /covey/uploads/NAME/FILE.",
        )
    return folder
