"""Rows of a dataset → rows that Covey trains on: their prompt, their task, the names of their columns.

prompt: question                 the column with the prompts
template: "{question} Think."    prompts made from columns, in place of `prompt`
system: "You solve puzzles."     put before every prompt; makes it a chat
chat: true                       text prompts as messages of the user
shape: gsm8k                     rows shaped like GSM8K, MBPP or HumanEval (see covey.tasks.datasets)
instruction: "Be brief."         with `shape`: put after each question
rename: {solution: answer}       other names for columns
task: math                       the column `task`, for every row
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import TYPE_CHECKING, Any

from covey.errors import DatasetError
from covey.recipes.nodes import Node, nearest
from covey.sample.given_data import column_names, is_map_style

if TYPE_CHECKING:
    from covey.recipes.sources import Data

ROW_KEYS = ("prompt", "template", "system", "chat", "shape", "instruction", "rename", "task")

SHAPES = ("gsm8k", "mbpp", "humaneval")


@dataclass(frozen=True)
class RowMaker:
    """Changes of each row of a dataset."""

    prompt: Node | None = None
    template: Node | None = None
    system: str | None = None
    chat: bool = False
    shape: Node | None = None
    instruction: str | None = None
    rename: Mapping[str, Node] = field(default_factory=dict)
    task: str | None = None

    @classmethod
    def of(cls, entries: Mapping[str, Node]) -> RowMaker:
        """Read the entries of a dataset that concern its rows.

        Raises:
            ConfigError: a value of the wrong kind, or two that exclude one another.
        """
        for first, second in (("prompt", "template"), ("prompt", "shape"), ("template", "shape")):
            if first in entries and second in entries:
                raise entries[second].error(
                    f"{second!r} and {first!r} both say where the prompt is. Give one."
                )
        if "instruction" in entries and "shape" not in entries:
            raise entries["instruction"].error(
                "'instruction' has no effect without 'shape'. Put it into a template."
            )
        keys = ("prompt", "template", "system", "shape", "instruction", "task")
        texts = {key: entries[key].text(key) for key in keys if key in entries}
        if "template" in texts:
            template_columns(entries["template"])
        if texts.get("shape", SHAPES[0]) not in SHAPES:
            raise entries["shape"].error(
                f"there is no shape {texts['shape']!r}.{nearest(texts['shape'], SHAPES)} It is one of {', '.join(SHAPES)}."
            )
        rename = entries["rename"].entries("rename") if "rename" in entries else {}
        for name in rename.values():
            name.text("a column's new name")
        return cls(
            prompt=entries.get("prompt"),
            template=entries.get("template"),
            system=texts.get("system"),
            chat="chat" in entries and entries["chat"].flag("chat"),
            shape=entries.get("shape"),
            instruction=texts.get("instruction"),
            rename=rename,
            task=texts.get("task"),
        )

    def applied(self, rows: Data, node: Node) -> Data:
        """Return the dataset with these rows, each with a prompt.

        Raises:
            DatasetError: a column that is not there, or rows of another shape.
        """
        self._check_columns(column_names(rows))
        # `map` would write cache files for what costs less than reading them; streams have none.
        quiet = {"load_from_cache_file": False, "keep_in_memory": True} if is_map_style(rows) else {}
        for old, new in self.rename.items():
            rows = rows.rename_column(old, new.value)
        if self.shape is not None:
            from covey.tasks.datasets import as_rows

            shape: Any = self.shape.value
            options = {} if self.instruction is None else {"instruction": self.instruction}
            try:
                rows = rows.map(
                    lambda row: as_rows([row], shape, **options)[0],
                    remove_columns=column_names(rows),
                    **quiet,
                )
            except DatasetError as error:
                raise self.shape.error(str(error), DatasetError) from error
        elif self.prompt is not None and self.prompt.value != "prompt":
            rows = rows.rename_column(self.prompt.value, "prompt")
        if self.template is not None or self.system is not None or self.chat:
            rows = rows.map(self._with_prompt, **quiet)
        if self.task is not None:
            rows = rows.map(lambda row: {"task": self.task}, **quiet)
        columns = column_names(rows)
        if columns is not None and "prompt" not in columns:
            raise node.error(
                f"the dataset has no column 'prompt'; it has {', '.join(columns)}. Say which one holds the prompts "
                "(prompt: COLUMN), or make them from columns (template: TEXT).",
                DatasetError,
            )
        return rows

    def _check_columns(self, columns: list[str] | None) -> None:
        """Raise where a column is named that is not there; a stream may not say before it is read."""
        if columns is None:
            return
        wanted = [(name, columns, place) for name, place in self.rename.items()]
        renamed = [self.rename[c].text("rename") if c in self.rename else c for c in columns]
        if self.prompt is not None:
            wanted.append((self.prompt.text("prompt"), renamed, self.prompt))
        if self.template is not None:
            wanted += [(name, renamed, self.template) for name in template_columns(self.template)]
        for name, present, place in wanted:
            if name not in present:
                raise place.error(
                    f"the dataset has no column {name!r}; it has {', '.join(present)}.{nearest(name, present)}",
                    DatasetError,
                )

    def _with_prompt(self, row: Mapping[str, object]) -> dict[str, object]:
        """Return the prompt of a row, from the template, as a chat, and behind the system's message."""
        prompt: Any = row["prompt"] if self.template is None else self.template.text("template").format(**row)
        if isinstance(prompt, str) and (self.chat or self.system is not None):
            prompt = [{"role": "user", "content": prompt}]
        if self.system is not None:
            prompt = [{"role": "system", "content": self.system}, *prompt]
        return {"prompt": prompt}


def template_columns(template: Node) -> list[str]:
    """Return the columns that a template names.

    Raises:
        ConfigError: something else than plain names in braces.
    """
    try:
        parts = list(Formatter().parse(template.text("template")))
    except ValueError as error:
        raise template.error(
            f"the template cannot be read: {error}. A brace that is meant is doubled."
        ) from error
    shown_fields = [
        f"{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}"
        for _, name, form, conversion in parts
        if name is not None
    ]
    for shown in shown_fields:
        if not shown.isidentifier():
            raise template.error(
                f"the template has {{{shown}}}; in braces stands the name of a column, and nothing else."
            )
    return shown_fields
