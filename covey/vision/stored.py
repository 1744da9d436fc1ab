"""Pictures in a checkpoint's JSON: each once, under its digest.

{"<digest>": {"size": [56, 84], "path": "/data/a.png"}}     a file, which must be the same when the run goes on
{"<digest>": {"size": [56, 84], "bytes": "<base64>"}}       encoded bytes
{"<digest>": {"size": [56, 84], "pixels": "<base64>"}}      an image or array of the dataset, as PNG
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.errors import CheckpointError
from covey.types import Picture
from covey.vision.pictures import NO_LIMITS, open_picture


def stored(pictures: Iterable[Picture]) -> dict[str, dict[str, Any]]:
    """Return what JSON holds of pictures, by digest."""
    return {
        p.digest: {"size": list(p.size), **_source(p.source)}
        for p in {p.digest: p for p in pictures}.values()
    }


def restored(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Picture]:
    """Return the pictures that `stored` wrote, by digest.

    Raises:
        CheckpointError: a file is missing, or holds something else than when the checkpoint was written; names it.
    """
    found = {}
    for digest, entry in table.items():
        width, height = entry["size"]
        found[digest] = Picture(_opened(digest, entry), digest, (int(width), int(height)))
    return found


def _source(source: Any) -> dict[str, str]:
    if isinstance(source, str):
        return {"path": source}
    if isinstance(source, bytes):
        return {"bytes": base64.b64encode(source).decode("ascii")}
    png = io.BytesIO()
    open_picture(source, limits=NO_LIMITS).save(png, "PNG")
    return {"pixels": base64.b64encode(png.getvalue()).decode("ascii")}


def _opened(digest: str, entry: Mapping[str, Any]) -> Any:
    if "bytes" in entry:
        return base64.b64decode(entry["bytes"])
    if "pixels" in entry:
        return open_picture(base64.b64decode(entry["pixels"]), limits=NO_LIMITS)
    path = Path(entry["path"])
    try:
        is_same = hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint stopped inside a round of sampling whose prompts show {path}, which cannot be read ({error.strerror}). "
            "Put the picture back, or resume from a checkpoint between two rounds."
        ) from error
    if not is_same:
        raise CheckpointError(
            f"The checkpoint stopped inside a round of sampling whose prompts show {path}, and the picture has changed since. Put the "
            "former one back, or resume from a checkpoint between two rounds."
        )
    return str(path)
