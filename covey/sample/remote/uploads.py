"""Folders of weights, brought to where a server sees them: they are sent where it does not see the trainer's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from covey.errors import EngineError
from covey.sample.remote.client import Client, Refused
from covey.sample.remote.publish import digest

UPLOADS = "/covey/uploads"


def sent_files(folder: Path) -> dict[str, int]:
    """Return the files of a folder that servers read, and their sizes."""
    files = sorted(f for f in folder.iterdir() if f.suffix in (".safetensors", ".json") and f.is_file())
    return {file.name: file.stat().st_size for file in files}


def send_folder(client: Client, folder: Path) -> tuple[str, str | None]:
    """Send the files of a folder; return the name of the upload, and the folder that an agent says it lies in."""
    upload, place = secrets.token_hex(16), None
    for name in sent_files(folder):
        path = folder / name
        said = client.ask("PUT", f"{UPLOADS}/{upload}/{quote(name)}?sha256={digest(path)}", path)
        place = said.get("folder") if isinstance(said, dict) else None
    return upload, place


def brought(client: Client, folder: Path) -> tuple[str, str | None]:
    """Return where a server sees a folder, and the name of the upload; None: it sees the folder itself.

    Only the agent of Covey, `covey serve --engine vllm`, takes files. Of another server it is not known what it sees.

    Raises:
        EngineError: the files do not get there.
    """
    try:
        client.ask("GET", "/covey/agent")
    except Refused as error:
        if error.status != 404:
            raise
        return str(folder), None
    try:
        client.ask("POST", "/covey/folder", {"folder": str(folder), "sizes": sent_files(folder)})
    except Refused as error:
        if error.status != 404:
            raise
        upload, place = send_folder(client, folder)
        if place is None:
            raise EngineError(f"{client.url} does not say where the files of {folder} lie.") from None
        return place, upload
    return str(folder), None


def forget(client: Client, upload: str | None) -> None:
    """Have an agent delete what was sent."""
    if upload is not None:
        with suppress(EngineError):
            client.ask("DELETE", f"{UPLOADS}/{upload}")


@contextmanager
def folder_at(client: Client, folder: Path) -> Iterator[str]:
    """Give the place where a server sees a folder, for as long as it reads it. A name on the hub stays what it is."""
    place, upload = brought(client, folder) if folder.is_dir() else (str(folder), None)
    try:
        yield place
    finally:
        forget(client, upload)
