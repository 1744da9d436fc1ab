"""Whatever a dataset is given as → rows that can be read, by number or from front to back.

Taken are `datasets.Dataset` in any format, streams, lists of rows, tables (pandas, polars, pyarrow, columns by name),
functions that yield rows, generators, and splits where there is one. Anything else is refused before the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from torch.utils.data import IterableDataset

from covey.errors import DatasetError
from covey.sample.prompts import TEMPLATE_COLUMN, TOOLS_COLUMN

READ = ("prompt", TOOLS_COLUMN, TEMPLATE_COLUMN)
"""Columns that Covey reads itself: as they are without a format."""
FRAMES = ("pandas", "polars", "arrow")
"""Formats that give tables in place of rows."""
LOADERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


class MapRows(Protocol):
    """A dataset whose rows can be read by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Mapping[str, object]: ...


class Stream:
    """Rows that are read from front to back; a function of them starts over, a generator does not."""

    def __init__(self, source: Callable[[], Iterator[Any]] | Iterator[Any]) -> None:
        self.source = source
        self._ahead: list[Any] = []

    def first(self) -> Any:
        """Return the first row, which stays; None where there is none."""
        if callable(self.source):
            return next(iter(self.source()), None)
        self._ahead = self._ahead or [row for _, row in zip(range(1), self.source, strict=False)]
        return self._ahead[0] if self._ahead else None

    def __iter__(self) -> Iterator[Any]:
        if callable(self.source):
            return iter(self.source())
        ahead, self._ahead = self._ahead, []
        return chain(ahead, self.source)


def as_dataset(given: Any, name: str) -> Any:
    """Return the rows that a dataset is given as; those that can be read as they are come back as they are.

    Args:
        name: the argument, for messages.

    Raises:
        DatasetError: it is no dataset, or several.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return _of_columns(given, name) if is_columns(given) else _only_split(given, name)
    module = type(given).__module__.partition(".")[0]
    if module in ("pandas", "polars", "pyarrow"):
        return _of_frame(given, module, name)
    if isinstance(given, str | Path):
        loader = LOADERS.get(Path(given).suffix)
        arguments = f"{loader!r}, data_files={str(given)!r}" if loader else repr(str(given))
        raise DatasetError(
            f"{name} is the text {str(given)!r}. It must be the dataset itself: "
            f'datasets.load_dataset({arguments}, split="train").'
        )
    if inspect.isgeneratorfunction(given):
        return Stream(given)
    if isinstance(given, Iterator):
        return Stream(given)
    if not hasattr(given, "__iter__") and not is_map_style(given):
        raise DatasetError(
            f"{name} is {type(given).__name__} {repr(given)[:80]}, which has no rows. Give a datasets.Dataset, a list of rows "
            "{'prompt': ...}, a stream, or a function that yields rows."
        )
    return given


def as_eval_dataset(given: Any) -> Any:
    """Return the evaluation set, or sets by name; a generator is read to its end, as each evaluation reads all rows."""
    if isinstance(given, Mapping) and not is_columns(given):
        return {name: as_dataset(part, f"eval_dataset[{name!r}]") for name, part in given.items()}
    dataset = as_dataset(given, "eval_dataset")
    return list(dataset) if isinstance(dataset, Stream) and not callable(dataset.source) else dataset


def is_columns(given: Mapping[str, Any]) -> bool:
    """Return whether a mapping holds columns, rather than datasets by name: its prompts are no rows."""
    prompts = given.get("prompt")
    is_list = isinstance(prompts, list | tuple) or hasattr(prompts, "tolist")
    return is_list and not (len(prompts) and isinstance(prompts[0], Mapping))


def named_datasets(train_dataset: object, eval_dataset: object) -> dict[str, Any]:
    """Return the datasets that there are by the names that messages call them."""
    parts = eval_dataset if isinstance(eval_dataset, dict) else None
    evals = {"eval_dataset": eval_dataset} if parts is None else {}
    evals |= {f"eval_dataset[{name!r}]": part for name, part in (parts or {}).items()}
    return {n: d for n, d in {"train_dataset": train_dataset, **evals}.items() if d is not None}


def _of_columns(given: Mapping[str, Any], name: str) -> Any:
    from datasets import Dataset

    try:
        return Dataset.from_dict({column: list(values) for column, values in given.items()})
    except (TypeError, ValueError) as error:  # Arrow's errors are both
        raise DatasetError(
            f"{name} is a mapping of columns that make no table: {error}. Give lists of one length, or a list of rows."
        ) from error


def _only_split(given: Mapping[str, Any], name: str) -> Any:
    """Return the dataset of the one split that there is."""
    if len(given) == 1 and next(iter(given.values())) is not given:
        split, dataset = next(iter(given.items()))
        return as_dataset(dataset, f"{name}[{split!r}]")
    names = ", ".join(map(repr, list(given)[:20]))
    raise DatasetError(
        f"{name} is a mapping with {names or 'nothing'}. If these are splits, give one of them: {name}=dataset['train']; if "
        "they are columns, one must be called 'prompt' and hold a list."
    )


def _of_frame(given: Any, module: str, name: str) -> Any:
    """Return the table of a data frame as a dataset."""
    from datasets import Dataset

    try:
        if module == "pandas":
            return Dataset.from_pandas(given, preserve_index=False)
        return Dataset.from_polars(given) if module == "polars" else Dataset(given)
    except (
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # not a table, or one with columns of mixed kinds
        raise DatasetError(
            f"{name} is {module}'s {type(given).__name__}, which makes no table: {error}. Give a table with a column 'prompt', "
            "or a list of rows."
        ) from error


# --- rows, whatever the format ------------------------------------------------------------------------------------------


def is_map_style(rows: object) -> TypeGuard[MapRows]:
    """Return whether rows can be read by number."""
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__") and not isinstance(rows, IterableDataset)


class FormattedRows:
    """The rows of a dataset in a format: what Covey reads is as without it, what rewards see as in it."""

    def __init__(self, rows: Any, kind: str) -> None:
        self.plain = rows.with_format(None)
        self.formatted = None if kind in FRAMES else rows

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, number: int) -> Mapping[str, object]:
        row: Mapping[str, object] = self.plain[number]
        if self.formatted is None:
            return row
        return {**self.formatted[number], **{name: row[name] for name in READ if name in row}}


class PlainStream:
    """The rows of a stream, each of which is a mapping whatever its format."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return map(plain_row, self.rows)


def readable(dataset: Any) -> Any:
    """Return the rows of a dataset as mappings, whatever its format; prompts as they are without one."""
    if not is_map_style(dataset):
        return PlainStream(dataset)
    kind = format_of(dataset)
    return dataset if kind in (None, "custom", "python") else FormattedRows(dataset, kind)


def format_of(dataset: Any) -> str | None:
    """Return the name of a dataset's format, "custom" for a transform; None where it gives plain rows."""
    known = getattr(dataset, "format", None) if hasattr(dataset, "with_format") else None
    return known.get("type") if isinstance(known, Mapping) else None


def plain_row(row: Any) -> Any:
    """Return a row as a mapping: the first of a table, with arrays as lists in what Covey reads."""
    for method in ("to_pylist", "to_dicts"):  # tables of pyarrow and polars
        if hasattr(row, method):
            return getattr(row, method)()[0]
    if not isinstance(row, Mapping):
        return plain(row.to_dict("records")[0]) if hasattr(row, "iloc") else row
    return {name: plain(value) if name in READ else value for name, value in row.items()}


def plain(value: Any) -> Any:
    """Return arrays and tensors as lists and numbers, at every depth."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def first_row(dataset: Any) -> Any:
    """Return the first row of a dataset, without using it up; None where there is none."""
    if is_map_style(dataset):
        return readable(dataset)[0] if len(dataset) else None
    return plain_row(dataset.first() if isinstance(dataset, Stream) else next(iter(dataset), None))


def column_names(dataset: Any, first: Callable[[], Any] | None = None) -> list[str] | None:
    """Return the names of the columns of a row; None where the dataset does not say without being read.

    Args:
        first: returns the first row, for datasets that have to be read; by default only those that cost nothing are.
    """
    names = getattr(dataset, "column_names", None)
    if isinstance(names, list) and format_of(dataset) is None:
        return names
    row = first() if first is not None else first_row(dataset) if is_map_style(dataset) else None
    return list(row) if isinstance(row, Mapping) else None


def prompts_at_hand(dataset: Any, most: int) -> Sequence[Mapping[str, Any]]:
    """Return the first rows of a dataset, or their prompts alone, as far as it gives them away at once."""
    if isinstance(dataset, list | tuple):
        return dataset[:most]
    is_table = is_map_style(dataset) and hasattr(dataset, "select_columns") and format_of(dataset) != "custom"
    if is_table and "prompt" in dataset.column_names:
        plain_rows = dataset.with_format(None).select_columns(["prompt"])
        return plain_rows.select(range(min(len(dataset), most)))
    return ()
