"""How the rows of a dataset become rows that Covey trains on: their prompt, their task, the names of their columns.

prompt: question                 the column with the prompts
template: "{question} Think."    prompts made from columns, in place of `prompt`
system: "You solve puzzles."     said before every prompt; makes it a chat
chat: true                       text prompts as messages of the user
shape: gsm8k                     rows shaped like GSM8K, MBPP or HumanEval (see covey.tasks.datasets)
instruction: "Be brief."         with `shape`: what is said after each question
rename: {solution: answer}       other names for columns
task: math                       the column `task`, for every row
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from covey.errors import DatasetError
from covey.recipes.nodes import Node, nearest, shown
from covey.trainer.data import column_names, is_map_style

ROW_KEYS = ("prompt", "template", "system", "chat", "shape", "instruction", "rename", "task")

SHAPES = ("gsm8k", "mbpp", "humaneval")


@dataclass(frozen=True)
class RowMaker:
    """What is done to each row."""

    prompt: Node | None = None
    template: Node | None = None
    system: str | None = None
    chat: bool = False
    shape: str | None = None
    instruction: str | None = None
    rename: Mapping[str, Node] = field(default_factory=dict)
    task: str | None = None

    @classmethod
    def of(cls, entries: Mapping[str, Node]) -> RowMaker:
        """What the entries of a dataset say about its rows.

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
        said = ("prompt", "template", "system", "shape", "instruction", "task")
        texts = {key: entries[key].text(key) for key in said if key in entries}
        if "template" in texts:
            _fields(entries["template"])
        if texts.get("shape", SHAPES[0]) not in SHAPES:
            raise entries["shape"].error(
                f"there is no shape {texts['shape']!r}.{nearest(texts['shape'], SHAPES)} It is one of {', '.join(SHAPES)}."
            )
        chat = entries["chat"].value if "chat" in entries else False
        if not isinstance(chat, bool):
            raise entries["chat"].error(f"chat is {shown(chat)}; it must be true or false.")
        rename = entries["rename"].entries("rename") if "rename" in entries else {}
        for name in rename.values():
            name.text("a column's new name")
        places = {"prompt": entries.get("prompt"), "template": entries.get("template")}
        return cls(chat=chat, rename=rename, **{**texts, **places})  # type: ignore[arg-type]

    def applied(self, rows: Any, node: Node) -> Any:
        """The dataset with these rows, each with a prompt.

        Raises:
            DatasetError: a column that is not there, or rows of another shape.
        """
        self._check_columns(rows, node)
        for old, new in self.rename.items():
            rows = rows.rename_column(old, new.value)
        if self.shape is not None:
            rows = self._shaped(rows, node)
        elif self.prompt is not None and self.prompt.value != "prompt":
            rows = rows.rename_column(self.prompt.value, "prompt")
        if self.template is not None or self.system is not None or self.chat:
            rows = rows.map(self._with_prompt, **_quiet(rows))
        if self.task is not None:
            rows = rows.map(self._with_task, **_quiet(rows))
        self._check_prompt(rows, node)
        return rows

    def _with_prompt(self, row: Mapping[str, Any]) -> dict[str, Any]:
        prompt = self.template.value.format(**row) if self.template is not None else row["prompt"]
        if isinstance(prompt, str) and (self.chat or self.system is not None):
            prompt = [{"role": "user", "content": prompt}]
        if self.system is not None:
            prompt = [{"role": "system", "content": self.system}, *prompt]
        return {"prompt": prompt}

    def _with_task(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"task": self.task}

    def _shaped(self, rows: Any, node: Node) -> Any:
        from covey.tasks.datasets import as_rows

        shape: Any = self.shape
        options = {} if self.instruction is None else {"instruction": self.instruction}
        try:
            return rows.map(
                lambda row: as_rows([row], shape, **options)[0],
                remove_columns=column_names(rows),
                **_quiet(rows),
            )
        except DatasetError as error:
            raise node.value["shape"].error(str(error), DatasetError) from error

    def _check_columns(self, rows: Any, node: Node) -> None:
        columns = column_names(rows)
        if columns is None:  # a stream that does not say before it is read
            return
        renamed = [self.rename[c].value if c in self.rename else c for c in columns]
        for name, place in self.rename.items():
            _check_column(name, columns, place)
        if self.prompt is not None:
            _check_column(self.prompt.value, renamed, self.prompt)
        if self.template is not None:
            for name in _fields(self.template):
                _check_column(name, renamed, self.template)

    def _check_prompt(self, rows: Any, node: Node) -> None:
        columns = column_names(rows)
        if columns is not None and "prompt" not in columns:
            raise node.error(
                f"the dataset has no column 'prompt'; it has {', '.join(columns)}. Say which one holds the prompts "
                "(prompt: COLUMN), or make them from columns (template: TEXT).",
                DatasetError,
            )


def _fields(template: Node) -> list[str]:
    """The columns that a template names.

    Raises:
        ConfigError: something else than plain names in braces.
    """
    try:
        names = [name for _, name, _, _ in Formatter().parse(template.value) if name is not None]
    except ValueError as error:
        raise template.error(
            f"the template cannot be read: {error}. A brace that is meant is doubled."
        ) from error
    for name in names:
        if not name.isidentifier():
            raise template.error(
                f"the template has {{{name}}}; in braces stands the name of a column, and nothing else."
            )
    return names


def _check_column(name: str, columns: list[str], place: Node) -> None:
    if name not in columns:
        raise place.error(
            f"the dataset has no column {name!r}; it has {', '.join(columns)}.{nearest(name, columns)}",
            DatasetError,
        )


def _quiet(rows: Any) -> dict[str, Any]:
    """Arguments that keep `map` from writing cache files for what costs less than reading them."""
    return {"load_from_cache_file": False, "keep_in_memory": True} if is_map_style(rows) else {}
