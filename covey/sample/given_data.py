"""Anything that a dataset is given as → rows that can be read, by number or from front to back.

Taken are `datasets.Dataset` in any format, streams, lists of rows, tables (pandas, polars, pyarrow, columns by name),
functions that yield rows, generators, and splits where there is one. Anything else is refused before the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from torch.utils.data import IterableDataset

from covey.errors import DatasetError
from covey.sample.messages import described
from covey.sample.prompts import TEMPLATE_COLUMN, TOOLS_COLUMN
from covey.sample.stored_pictures import StoredRows, stored_rows, stored_stream

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
    if isinstance(given, Mapping) and not is_columns(given):
        return _only_split(given, name)
    module = type(given).__module__.partition(".")[0]
    if isinstance(given, Mapping) or module in ("pandas", "polars", "pyarrow"):
        return _of_table(given, module, name)
    if inspect.isgeneratorfunction(given) or isinstance(given, Iterator):
        return Stream(given)
    if isinstance(given, str | Path) or not (hasattr(given, "__iter__") or is_map_style(given)):
        loader = LOADERS.get(Path(given).suffix) if isinstance(given, str | Path) else None
        arguments = f"{loader!r}, data_files={str(given)!r}" if loader else repr(str(given)[:80])
        load = f'. A file or a name is loaded first: datasets.load_dataset({arguments}, split="train")'
        raise DatasetError(
            f"{name} is {described(given)}, which has no rows. Give a datasets.Dataset, a list of rows {{'prompt': ...}}, a "
            f"stream, or a function that yields rows{load if isinstance(given, str | Path) else ''}."
        )
    return given


def as_eval_dataset(given: Any) -> Any:
    """Return the evaluation set, or sets by name; a generator is read to its end, as each evaluation reads all rows."""
    if isinstance(given, Mapping) and not is_columns(given):
        return {name: as_dataset(part, f"eval_dataset[{name!r}]") for name, part in given.items()}
    dataset = as_dataset(given, "eval_dataset")
    is_used_up = isinstance(dataset, Stream) and not callable(dataset.source)
    return list(rows_of_stream(dataset)) if is_used_up else dataset


def is_columns(given: Mapping[str, Any]) -> bool:
    """Return whether a mapping holds columns, rather than datasets by name: its prompts are no rows."""
    prompts: Any = given.get("prompt")
    is_list = isinstance(prompts, list | tuple) or hasattr(prompts, "tolist")
    return is_list and not (len(prompts) and isinstance(prompts[0], Mapping))


@dataclass(frozen=True)
class GivenData:
    """The datasets of a run, as they can be read, and the first row of each."""

    train: Any
    evals: Any
    """One, or several by name; None for none."""
    named: Mapping[str, Any]
    """Those that there are, by the names that messages call them."""
    firsts: Mapping[str, Any]
    """The first row of each of them; None where it has none."""

    @classmethod
    def of(cls, train_dataset: Any, eval_dataset: Any) -> GivenData:
        """Read what the datasets are and their first rows.

        Raises:
            DatasetError: one of them is no dataset, or its first row cannot be read.
        """
        train, evals = as_dataset(train_dataset, "train_dataset"), as_eval_dataset(eval_dataset)
        by_name = isinstance(evals, dict)
        parts = {f"eval_dataset[{n!r}]": d for n, d in evals.items()} if by_name else {"eval_dataset": evals}
        named = {name: d for name, d in {"train_dataset": train, **parts}.items() if d is not None}
        firsts = {}
        for name, dataset in named.items():
            try:
                firsts[name] = first_row(dataset)
            except DatasetError as error:
                raise DatasetError(f"{name}: {error}") from error
        return cls(train, evals, named, firsts)


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


def _of_table(given: Any, module: str, name: str) -> Any:
    """Return columns by name, or the table of a data frame, as a dataset."""
    from datasets import Dataset

    try:
        if isinstance(given, Mapping):
            return Dataset.from_dict({column: list(values) for column, values in given.items()})
        if module == "pandas":
            return Dataset.from_pandas(given, preserve_index=False)
        return Dataset.from_polars(given) if module == "polars" else Dataset(given)
    except (
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # no table, or one with columns of mixed kinds or lengths
        raise DatasetError(
            f"{name} is {type(given).__name__}, whose columns make no table: {error}. Give a table with a column 'prompt', or a "
            "list of rows."
        ) from error


# --- rows, whatever the format ------------------------------------------------------------------------------------------


def is_map_style(rows: object) -> TypeGuard[MapRows]:
    """Return whether rows can be read by number."""
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__") and not isinstance(rows, IterableDataset)


class FormattedRows:
    """The rows of a dataset in a format: what Covey reads is as without it, and so are pictures; what else rewards see as in it."""

    def __init__(self, rows: Any, kind: str) -> None:
        plain = rows.with_format(None)
        self.plain = stored_rows(plain)
        pictures = self.plain.pictures if isinstance(self.plain, StoredRows) else {}
        self.read = dict.fromkeys((*READ, *pictures))
        if pictures and kind not in FRAMES:  # they are not decoded for nothing
            known, others = rows.format, [name for name in rows.format["columns"] if name not in pictures]
            rows = rows.with_format(kind, columns=others, **known["format_kwargs"])
        self.formatted = None if kind in FRAMES else rows

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, number: int) -> Mapping[str, object]:
        row: Mapping[str, object] = self.plain[number]
        if self.formatted is None:
            return row
        return {**self.formatted[number], **{name: row[name] for name in self.read if name in row}}


class NamedRows:
    """Rows by number; where one cannot be read, the error names it."""

    def __init__(self, rows: MapRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Mapping[str, object]:
        try:
            return self.rows[number]
        except Exception as error:  # whatever somebody else's dataset, or a transform of it, raises
            raise unreadable(number, error) from error

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        return (self[number] for number in range(len(self)))


def rows_of_stream(rows: Any, start: int = 0) -> Iterator[Any]:
    """Yield the rows of a stream as mappings.

    Args:
        start: the number of the first of them.

    Raises:
        DatasetError: one cannot be read; the error names it.
    """
    number = start
    try:
        for row in stored_stream(rows):
            yield plain_row(row)
            number += 1
    except Exception as error:  # as above; what the reader of the rows raises does not come here
        raise unreadable(number, error) from error


def unreadable(number: int, error: Exception) -> DatasetError:
    """Return the error of a row that the dataset does not give."""
    if isinstance(error, DatasetError):
        return error
    return DatasetError(
        f"Row {number}: reading it raised {type(error).__name__}: {error}. Mend the row, or what the dataset does to it, or leave "
        "it out."
    )


def readable(dataset: Any) -> Any:
    """Return the rows of a dataset as mappings, whatever its format; prompts as they are without one.

    Reading one that the dataset cannot give raises a DatasetError with its number.
    """
    if not is_map_style(dataset):
        return Stream(lambda: rows_of_stream(dataset))
    if isinstance(dataset, list | tuple):
        return dataset
    kind = format_of(dataset)
    if kind in (None, "python"):
        return NamedRows(stored_rows(dataset))
    return NamedRows(dataset if kind == "custom" else FormattedRows(dataset, kind))


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
    if not isinstance(dataset, Stream):
        return next(rows_of_stream(dataset), None)
    try:
        return plain_row(dataset.first())
    except Exception as error:  # as above
        raise unreadable(0, error) from error


def column_names(dataset: Any, first: Any = None) -> list[str] | None:
    """Return the names of the columns of a row; None where the dataset does not say without being read.

    Args:
        first: the first row, where it is known.
    """
    names = getattr(dataset, "column_names", None)
    if isinstance(names, list) and format_of(dataset) is None:
        return names
    row = first_row(dataset) if first is None and is_map_style(dataset) else first
    return list(row) if isinstance(row, Mapping) else None


def prompts_at_hand(dataset: Any, most: int) -> Sequence[Mapping[str, Any]]:
    """Return the first rows of a dataset, or their prompts alone, as far as it gives them away at once."""
    if isinstance(dataset, list | tuple):
        return dataset[:most]
    is_table = is_map_style(dataset) and hasattr(dataset, "select_columns") and format_of(dataset) != "custom"
    if is_table and "prompt" in dataset.column_names:
        plain_rows = dataset.with_format(None).select_columns(["prompt"])
        return stored_rows(plain_rows.select(range(min(len(dataset), most))))
    return ()
