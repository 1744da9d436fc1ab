"""Datasets of a recipe: by file, by name, or made by a generator; and how their rows become prompts.

data:
  file: problems.jsonl              # .json, .jsonl, .csv, .parquet; one, or a list
  prompt: question                  # the column with the prompts

data:
  - name: openai/gsm8k              # as `datasets.load_dataset` takes it
    config: main
    shape: gsm8k
  - generator: countdown            # bundled, or MODULE:FUNCTION
    arguments: {count: 2000, seed: 1}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from covey.errors import ConfigError, CoveyError, DatasetError
from covey.recipes.nodes import Node, shown
from covey.recipes.objects import Function, bound, called, named_object
from covey.recipes.rows import ROW_KEYS, RowMaker
from covey.sample.given_data import is_map_style

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

    Data: TypeAlias = "Dataset | IterableDataset"

SOURCES = ("file", "name", "generator")
KEYS = {
    "file": ("file", "arguments", "streaming", "limit", *ROW_KEYS),
    "name": ("name", "config", "split", "revision", "arguments", "streaming", "limit", *ROW_KEYS),
    "generator": ("generator", "arguments", "streaming", "limit", *ROW_KEYS),
}
"""Keys of a dataset, by its source."""

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def check_data_node(node: Node) -> None:
    """Check the form of one dataset, or of a list of them; nothing is loaded.

    Raises:
        ConfigError: an unknown key, or no source, or two.
    """
    for item in node.items("a dataset"):
        if not isinstance(item.value, dict):
            raise item.error(
                f"a dataset is {shown(item.value)}; it must be a mapping with one of {', '.join(SOURCES)}."
            )
        entries = item.entries("a dataset")
        given = [source for source in SOURCES if source in entries]
        if len(given) != 1:
            raise item.error(
                f"a dataset has one of {', '.join(SOURCES)}; this one has {' and '.join(given) or 'none'}."
            )
        item.entries(f"a dataset by {given[0]}", KEYS[given[0]])
        RowMaker.of(entries)


def section_of(
    name: str,
    split: str | None = None,
    rows: int | None = None,
    prompt: str | None = None,
    held_out: bool = False,
) -> dict[str, object]:
    """Return the section of a recipe for a dataset that a command line names.

    Args:
        name: a file, a bundled generator, `module:function`, or a dataset's name.
        split: of a bundled generator or a dataset by name.
        rows: how many to take.
        prompt: the column with the prompts.
        held_out: without a split, take what is kept for evaluation: `held_out` of a generator, `test` of a dataset.

    Raises:
        ConfigError: a split of something that has only one.
    """
    more: dict[str, object] = {} if prompt is None else {"prompt": prompt}
    if name in bundled_generators() and not Path(name).exists():
        split = split or ("held_out" if held_out else "train")
        return {"generator": name, "arguments": {"count": rows or 200, "split": split}, **more}
    if rows is not None:
        more["limit"] = rows
    is_file, is_function = _suffix(name) in FORMATS, ":" in name and "://" not in name
    if (is_file or is_function) and split is not None:
        raise ConfigError(f"a split has no effect on {name!r}, which has one only. Leave --split out.")
    if is_file:
        return {"file": name, **more}
    if is_function:
        return {"generator": name, **more}
    return {"name": name, "split": split or ("test" if held_out else "train"), **more}


def is_one_dataset(node: Node) -> bool:
    """Return whether this describes a dataset, rather than several by name."""
    if not isinstance(node.value, dict):
        return True
    return any(s in node.value and not isinstance(node.value[s].value, dict) for s in SOURCES)


def load_data(node: Node) -> Data:
    """Load the dataset that a recipe describes; several in a list are put together, with None where a column is missing.

    Raises:
        ConfigError, DatasetError: with the line that is wrong.
    """
    items = node.items("a dataset")
    parts = [_load(item) for item in items]
    if len(parts) == 1:
        return parts[0]
    for part, item in zip(parts, items, strict=True):
        if not is_map_style(part):
            said = "a stream cannot be put together with others: leave 'streaming' out."
            raise item.error(said, DatasetError)
    from datasets import concatenate_datasets

    try:
        return concatenate_datasets(parts)
    except (ValueError, TypeError) as error:  # columns of different kinds; Arrow's errors are ValueErrors
        raise node.error(f"the datasets cannot be put together: {error}", DatasetError) from error


def bundled_generators() -> dict[str, Function]:
    """Return the generators of `covey.tasks` by name."""
    from covey.tasks.calculator import calculator_rows
    from covey.tasks.discs import disc_rows
    from covey.tasks.mixed import GENERATORS, mixed_rows
    from covey.tasks.reasoning_gym_rows import reasoning_gym_rows

    return {
        **GENERATORS,
        "calculator": calculator_rows,
        "discs": disc_rows,
        "mixed": mixed_rows,
        "reasoning_gym": reasoning_gym_rows,
    }


def _load(item: Node) -> Data:
    """Load one dataset, take its first rows where there is a limit, and make its rows."""
    entries = item.entries("a dataset")
    streaming = "streaming" in entries and entries["streaming"].flag("streaming")
    if "generator" in entries:
        rows = _from_generator(entries, streaming)
    elif "file" in entries:
        rows = _from_files(entries, streaming)
    else:
        options: dict[str, object] = {"split": "train"}
        for key in ("config", "split", "revision"):
            if key in entries:
                options["name" if key == "config" else key] = entries[key].text(key)
        rows = _from_hub(entries, entries["name"], streaming, entries["name"].text("name"), options)
    if "limit" in entries:
        limit = entries["limit"].value
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise entries["limit"].error(f"limit is {shown(limit)}; it must be a number of rows, at least 1.")
        rows = rows.take(min(limit, len(rows)) if is_map_style(rows) else limit)
    return RowMaker.of(entries).applied(rows, item)


def _from_files(entries: Mapping[str, Node], streaming: bool) -> Data:
    node = entries["file"]
    paths = [path.text("file") for path in node.items("file")]
    formats = {FORMATS.get(_suffix(path)) for path in paths}
    if None in formats or len(formats) != 1:
        raise node.error(
            f"{', '.join(paths)}: the files of a dataset are all {', '.join(FORMATS)}, or all of one other of them.",
            DatasetError,
        )
    for path in paths:
        if "://" not in path and not Path(path).exists():
            raise node.error(
                f"there is no file {path!r}; looked in {Path.cwd()}, the working directory.", DatasetError
            )
    return _from_hub(entries, node, streaming, formats.pop(), {"data_files": paths, "split": "train"})


def _from_hub(
    entries: Mapping[str, Node], source: Node, streaming: bool, path: str | None, keywords: dict[str, object]
) -> Data:
    """Call `datasets.load_dataset`, which also reads files."""
    from datasets import load_dataset

    arguments = entries.get("arguments")
    more = {} if arguments is None else arguments.entries("arguments of load_dataset")
    keywords = keywords | {key: entry.plain() for key, entry in more.items()}
    try:
        return load_dataset(path, streaming=streaming, **keywords)
    except Exception as error:  # whatever a loader raises, the recipe names something that cannot be loaded
        message = f"{source.plain()} cannot be loaded: {type(error).__name__}: {error}"
        raise source.error(message, DatasetError) from error


def _from_generator(entries: Mapping[str, Node], streaming: bool) -> Data:
    """Call a function that gives rows: a list or an iterable of rows, or a dataset."""
    from datasets import Dataset, IterableDataset

    node, arguments, generators = entries["generator"], entries.get("arguments"), bundled_generators()
    function = named_object(node, "generator", generators, generators.__getitem__)
    name = node.text("generator")
    positional, keywords = bound(function, arguments, name)
    if streaming and not inspect.isgeneratorfunction(function):
        raise entries["streaming"].error(f"{name} cannot be streamed: it is no function that yields rows.")
    if streaming:
        return IterableDataset.from_generator(function, gen_kwargs=keywords or None)
    rows: Any = called(function, positional, keywords, arguments or node, name)
    if hasattr(rows, "column_names"):
        return rows
    try:
        return Dataset.from_list([dict(row) for row in rows])
    except (TypeError, ValueError) as error:  # Arrow's errors are ValueErrors and TypeErrors
        kind = type(error) if isinstance(error, CoveyError) else DatasetError
        raise node.error(f"{name} gives rows that make no dataset: {error}", kind) from error


def _suffix(path: str) -> str:
    """Return the suffix that names the format, without that of a compression."""
    suffixes = Path(path.partition("?")[0]).suffixes
    kept = [s for s in suffixes if s not in (".gz", ".bz2", ".xz", ".zst")]
    return kept[-1].lower() if kept else ""
