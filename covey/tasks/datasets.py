"""Datasets shaped like GSM8K, MBPP or HumanEval, as rows that the bundled rewards score.

    gsm8k      question, answer ("... #### 18")              → SameAnswer or NumberMatch on `answer`
    mbpp       text or prompt, code, test_list               → AssertTests on `tests`
    humaneval  prompt, entry_point, canonical_solution, test → AssertTests on `tests` and `entry_point`

All rows have the same columns, with None where they do not apply, so that several datasets can be put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from covey.errors import DatasetError

Shape = Literal["gsm8k", "mbpp", "humaneval"]
Row = dict[str, Any]

COLUMNS = ("prompt", "task", "answer", "tests", "entry_point", "test_setup_code", "solution")

ANSWER_INSTRUCTION = "Think first, between <think> and </think>. Then give the final answer, and nothing else, between <answer> and </answer>."
CODE_INSTRUCTION = "Give the whole program in one ```python block."


def as_rows(dataset: Iterable[Mapping[str, Any]], shape: Shape | None = None, **options: Any) -> list[Row]:
    """Rows of a dataset.

    Args:
        shape: what the dataset looks like; by default what its columns say.
        options: those of the shape's own function.

    Raises:
        DatasetError: columns of none of the shapes.
    """
    return [_maker(row, shape)(row, **options) for row in dataset]


def gsm8k_row(row: Mapping[str, Any], *, instruction: str = ANSWER_INSTRUCTION, task: str = "gsm8k") -> Row:
    """A word problem; `answer` is the number after `####`."""
    final = str(row["answer"]).rpartition("####")[2].strip().replace(",", "")
    return _row(_chat(row["question"], instruction), task, answer=final, solution=row["answer"])


def mbpp_row(
    row: Mapping[str, Any], *, instruction: str = CODE_INSTRUCTION, num_shown: int = 1, task: str = "mbpp"
) -> Row:
    """A function to write, with assertions.

    Args:
        num_shown: assertions that the prompt shows, so that the function's name is known. What is shown can be written
            down as the answer; the others are for the reward alone.
    """
    question = row.get("text") or row["prompt"]
    tests = list(row["test_list"])
    shown = "\n".join(tests[:num_shown])
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    text = f"{question}\nYour code should pass tests like this one:\n{shown}" if shown else question
    return _row(
        _chat(text, instruction), task, tests=tests, test_setup_code=setup or None, solution=row["code"]
    )


def humaneval_row(
    row: Mapping[str, Any], *, instruction: str = CODE_INSTRUCTION, task: str = "humaneval"
) -> Row:
    """A function to complete, with a `check(candidate)` of assertions."""
    text = f"Complete this function.\n```python\n{row['prompt'].rstrip()}\n```"
    return _row(
        _chat(text, instruction),
        task,
        tests=[f"{row['test']}\ncheck(candidate)"],
        entry_point=row["entry_point"],
        solution=row["prompt"] + row["canonical_solution"],
    )


_SHAPES: dict[Shape, tuple[frozenset[str], Callable[..., Row]]] = {
    "humaneval": (frozenset({"prompt", "entry_point", "canonical_solution", "test"}), humaneval_row),
    "mbpp": (frozenset({"code", "test_list"}), mbpp_row),
    "gsm8k": (frozenset({"question", "answer"}), gsm8k_row),
}


def _maker(row: Mapping[str, Any], shape: Shape | None) -> Callable[..., Row]:
    for name, (columns, maker) in _SHAPES.items():
        if columns <= set(row) and shape in (None, name):
            return maker
    wanted = {name: sorted(columns) for name, (columns, _) in _SHAPES.items() if shape in (None, name)}
    raise DatasetError(
        f"A row has the columns {', '.join(sorted(row))}; expected {wanted or f'a known shape, not {shape!r}'}."
    )


def _chat(text: str, instruction: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{text}\n\n{instruction}".strip()}]


def _row(prompt: Any, task: str, **columns: Any) -> Row:
    return dict.fromkeys(COLUMNS) | {"prompt": prompt, "task": task} | columns
