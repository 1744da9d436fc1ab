"""The blocks of a source inside a page: compressed, bounded in size."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from covey.runs.record import segments
from covey.runs.record.json_text import Json
from covey.runs.record.picture_files import read_thumbnail
from covey.runs.report.columns import HAS_TEXT, LEFT_OUT
from covey.runs.report.source import CHUNK, CompletionSource, as_json
from covey.vision.marks import is_digest

SAMPLE_BYTES = 1 << 20
"""Of text, to find out how well it compresses."""


@dataclass(frozen=True)
class Blobs:
    """The compressed blocks of a source by name, as base64."""

    blocks: dict[str, str]
    left_out: int
    """Completions whose texts are recorded and not in this page, for its size."""

    @property
    def size(self) -> int:
        return sum(map(len, self.blocks.values()))


def embed(source: CompletionSource, max_bytes: int) -> Blobs:
    """Return the completions of a source in at most about `max_bytes`.

    Where all of them would take more, the texts of evenly spread steps are kept, whole groups; numbers are always kept.
    """
    steps = np.unique(source.columns["step"][1]).tolist()
    share = min(1.0, max_bytes / max(1.0, _compressed_text_bytes(source)))
    while True:
        blobs = _embed(source, spread(steps, share))
        too_large = blobs.size / max_bytes
        if too_large <= 1 or share * len(steps) <= 1:
            return blobs
        share *= 0.95 / too_large


def embedded_pictures(sources: Sequence[CompletionSource], max_bytes: int) -> dict[str, str]:
    """Return the small pictures of a run as base64, by the names of their blocks, until one does not fit; those shown first come first."""
    blocks: dict[str, str] = {}
    entries = [entry for source in sources for entry in source.index.entries if "pictures" in entry]
    shown = (p["digest"] for entry in entries for p in cast(list[Json], entry["pictures"]))
    for digest in filter(is_digest, dict.fromkeys(shown)):
        data = read_thumbnail(sources[0].folder, digest)
        text = "" if data is None else base64.b64encode(data).decode("ascii")
        if len(text) > max_bytes:
            break
        max_bytes -= len(text)
        blocks |= {f"picture-{digest}": text} if text else {}
    return blocks


def spread(steps: list[int], share: float) -> set[int]:
    """Return a share of the steps, evenly spread, the last one among them; at least one."""
    kept = min(len(steps), max(1, math.floor(share * len(steps))))
    return {steps[round((k + 1) * len(steps) / kept) - 1] for k in range(kept)} if steps else set()


def compress(data: bytes) -> str:
    """Return data as the page reads it: gzip, then base64. The time of compression is left out, so that equal pages are equal."""
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def _embed(source: CompletionSource, kept: Container[int]) -> Blobs:
    """Return all blocks, the texts of those steps only; completions without theirs are marked in the numbers."""
    has_text = source.columns["text"][1]
    is_kept = np.array([step in kept for step in source.columns["step"][1].tolist()], dtype=bool)
    is_left_out = (has_text == HAS_TEXT) & ~is_kept
    blocks = {"excerpts": compress(as_json(source.index.excerpts))}
    for i in range(-(-source.rows // CHUNK)):
        left_out = is_left_out[i * CHUNK : (i + 1) * CHUNK].tolist()
        texts = source.texts(i) if not all(left_out) else [{}] * len(left_out)
        blocks[f"text-{i}"] = compress(
            as_json([{} if out else text for text, out in zip(texts, left_out, strict=True)])
        )
    for i in range(-(-len(source.index.entries) // CHUNK)):
        blocks[f"prompt-{i}"] = compress(as_json(source.prompts(i)))
    marked = np.where(is_left_out, LEFT_OUT, has_text)
    blocks["numbers"] = compress(source.numbers(text=("u1", marked)))
    return Blobs(blocks, int(is_left_out.sum()))


def _compressed_text_bytes(source: CompletionSource) -> float:
    """Estimate the bytes that all texts take in the page, from a sample from the middle of the run."""
    import pyarrow.compute as pc

    size, sample = 0, b""
    for number, file in enumerate(source.files):
        rows = segments.readable_segment(file.path, ["completion", "messages", "turns"])
        if rows is None:
            continue
        size += sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in rows.columns)
        if number == len(source.files) // 2:
            texts = "\n".join(t for row in zip(*rows.to_pydict().values(), strict=True) for t in row if t)
            sample = texts.encode("utf-8", "backslashreplace")[:SAMPLE_BYTES]
    return size * len(compress(sample)) / len(sample) if sample else float(size)
