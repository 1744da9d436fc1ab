"""Rows of a dataset with Image columns, whose pictures stay as they are stored: encoded bytes, or the path of a file.

The library `datasets` decodes all pictures of a row whenever the row is read. Here none is: whoever needs pixels opens a picture
when it is needed. Of other columns that hold pictures (masks, depths) rewards get what the library makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from covey.vision.blocks import COLUMNS, is_stored
from covey.vision.pictures import ColumnPath

READ = (*COLUMNS, "prompt")
"""Columns whose pictures Covey opens itself."""
SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
STREAMED = frozenset(("hf", "file", "zip", "tar", "gzip", "bz2", "xz", "zstd", "lz4"))
"""How `datasets` names the files of a dataset that it streams. The path may be that of a stranger too, so it leads nowhere else."""


class StoredRows:
    """Rows by number of a `datasets.Dataset` without a format, given the features that `undecoded` found in it."""

    def __init__(self, rows: Any, pictures: Mapping[str, object]) -> None:
        columns = None if rows.format["output_all_columns"] else rows.format["columns"]
        self.raw, self.pictures = rows.with_format("arrow", columns=columns), pictures
        self.features = type(rows.features)({**rows.features, **pictures})

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, number: int) -> Mapping[str, object]:
        [row] = self.raw[number].to_pylist()
        row = self.features.decode_example(row)
        return {n: _located(v) if n in self.pictures else v for n, v in row.items()}

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        return (self[number] for number in range(len(self)))


def stored_rows(rows: Any) -> Any:
    """Return the rows of a dataset without a format, pictures as they are stored; any other rows as they are."""
    pictures = undecoded(rows)
    return StoredRows(rows, pictures) if pictures else rows


def stored_stream(rows: Any) -> Iterator[Any]:
    """Yield the rows of a stream, pictures of Image columns as they are stored."""
    pictures, stream = undecoded(rows), rows
    for name, feature in pictures.items():
        stream = stream.cast_column(name, feature)
    if pictures and hasattr(rows, "epoch"):  # a cast stream counts epochs anew
        stream.set_epoch(rows.epoch)
    for row in stream:
        whole = not pictures or not isinstance(row, Mapping)
        yield row if whole else {n: _located(v) if n in pictures else v for n, v in row.items()}


def undecoded(rows: object) -> dict[str, object]:
    """Return the features, without decoding, of the columns that Covey reads pictures from and the library would decode."""
    known = getattr(rows, "features", None)
    if not isinstance(known, Mapping) or not hasattr(rows, "with_format"):
        return {}
    features = {name: _undecoded(known[name]) for name in READ if name in known}
    return {name: feature for name, feature in features.items() if feature != known[name]}


def _undecoded(feature: Any) -> object:
    """Return a feature without decoding of pictures, at every depth."""
    if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
        return replace(feature, decode=False)
    if isinstance(feature, Mapping):
        return {name: _undecoded(part) for name, part in feature.items()}
    if isinstance(feature, list):
        return [_undecoded(part) for part in feature]
    return replace(feature, feature=_undecoded(feature.feature)) if hasattr(feature, "feature") else feature


def _located(value: object) -> object:
    """Return stored pictures: a file's path as the column's own; one in an archive or on the hub opened by `datasets`; one at another
    address as it is, for the limits of pictures to refuse or fetch."""
    if isinstance(value, list | tuple):
        return [_located(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if not is_stored(value):
        return {name: _located(part) for name, part in value.items()}
    if value["bytes"] is not None or value["path"] is None:
        return value
    if "://" not in value["path"]:
        return {"bytes": None, "path": ColumnPath(value["path"])}
    if not STREAMED.issuperset(SCHEME.findall(value["path"].lower())):
        return value
    from datasets import Image

    return Image().decode_example(dict(value))
