"""The completions of a run as blobs inside a page: compressed, in chunks, bounded in size."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.runs.record import segments
from covey.runs.report.columns import (
    CHUNK,
    HAS_TEXT,
    LEFT_OUT,
    Index,
    chunks,
    concatenate,
    number_columns,
    pack,
    prompt_rows,
    text_rows,
)
from covey.runs.report.texts import source_paths

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_BYTES = 1 << 20
"""Of text, to find out how well it compresses."""


@dataclass
class Blobs:
    """The completions of one source: compressed blocks as base64, and the facts that the page needs to read them."""

    numbers: str = ""
    excerpts: str = ""
    prompts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rows: int = 0
    left_out: int = 0
    """Completions whose texts are recorded and not in this page, for its size."""

    @property
    def size(self) -> int:
        return (
            len(self.numbers) + len(self.excerpts) + sum(map(len, self.prompts)) + sum(map(len, self.texts))
        )

    def facts(self) -> dict[str, Any]:
        return {
            "rows": self.rows, "textChunks": len(self.texts), "promptChunks": len(self.prompts),
            "leftOut": self.left_out, "chunk": CHUNK,
        }  # fmt: skip


def embed(folder: Path, source: str, rewards: list[str], max_bytes: int) -> Blobs:
    """The completions of a source in at most about `max_bytes`.

    Where all of them would take more, the texts of evenly spread steps are kept, whole groups; numbers are always kept.
    """
    paths = source_paths(folder, source)
    steps, text_bytes = _steps_and_bytes(paths)
    share = min(1.0, max_bytes / max(1.0, _compression(paths) * text_bytes))
    while True:
        blobs = _embed(paths, rewards, spread(steps, share))
        too_large = blobs.size / max_bytes
        if too_large <= 1 or share * len(steps) <= 1:
            return blobs
        share *= 0.95 / too_large


def spread(steps: list[int], share: float) -> set[int]:
    """A share of the steps, evenly spread, the last one among them; at least one."""
    kept = min(len(steps), max(1, math.floor(share * len(steps))))
    return {steps[round((k + 1) * len(steps) / kept) - 1] for k in range(kept)} if steps else set()


def compress(data: bytes) -> str:
    """As the page reads it: gzip, then base64. The time of compression is left out, so that equal pages are equal."""
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


def _embed(paths: list[Path], rewards: list[str], kept: Container[int]) -> Blobs:
    index, blobs = Index(rewards), Blobs()
    parts: list[dict[str, Any]] = []
    prompts: list[dict[str, Any]] = []

    def texts() -> Iterator[dict[str, Any]]:
        for path in paths:
            rows = segments.read_segment(path)
            known = len(index.prompts)
            columns = number_columns(rows, index)
            prompts.extend(prompt_rows(rows, index, known))
            yield from _kept_texts(rows, columns, rewards, kept, blobs)
            parts.append(columns)

    blobs.texts = [compress(as_json(chunk)) for chunk in chunks(texts())]
    blobs.prompts = [compress(as_json(chunk)) for chunk in chunks(prompts)]
    blobs.excerpts = compress(as_json(index.excerpts))
    blobs.numbers = compress(
        pack(concatenate(parts), rows=blobs.rows, tasks=list(index.tasks), rewards=rewards)
    )
    return blobs


def _kept_texts(
    rows: pa.Table, columns: dict[str, Any], rewards: list[str], kept: Container[int], blobs: Blobs
) -> Iterable[dict[str, Any]]:
    """The texts of the steps that are kept, nothing for the others, which are marked in the columns."""
    has_text = columns["text"][1]
    blobs.rows += rows.num_rows
    for i, (step, entry) in enumerate(zip(rows["step"].to_pylist(), text_rows(rows, rewards), strict=True)):
        if step in kept or has_text[i] != HAS_TEXT:
            yield entry
        else:
            has_text[i] = LEFT_OUT
            blobs.left_out += 1
            yield {}


def _compression(paths: list[Path]) -> float:
    """Bytes in the page per byte of text, measured on a sample from the middle of the run."""
    if not paths:
        return 1.0
    texts = segments.read_segment(paths[len(paths) // 2], ["completion"])["completion"].to_pylist()
    sample = "\n".join(t for t in texts if t).encode("utf-8", "backslashreplace")[:SAMPLE_BYTES]
    return len(compress(sample)) / len(sample) if sample else 1.0


def _steps_and_bytes(paths: list[Path]) -> tuple[list[int], int]:
    import pyarrow.compute as pc

    steps: set[int] = set()
    size = 0
    for path in paths:
        rows = segments.read_segment(path, ["step", "completion"])
        steps.update(pc.unique(rows["step"]).to_pylist())
        size += pc.sum(pc.binary_length(rows["completion"])).as_py() or 0
    return sorted(steps), size
