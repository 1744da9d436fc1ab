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
Row = dict[str, object]
Source = Mapping[str, Any]
"""A row of the dataset; its values have the types that the dataset's shape says."""

COLUMNS = ("prompt", "task", "answer", "tests", "entry_point", "test_setup_code", "solution")

ANSWER_INSTRUCTION = "Think first, between <think> and </think>. Then give the final answer, and nothing else, between <answer> and </answer>."
CODE_INSTRUCTION = "Give the whole program in one ```python block."


def as_rows(dataset: Iterable[Source], shape: Shape | None = None, **options: object) -> list[Row]:
    """Convert a dataset to rows; `options` are those of the shape's own function.

    Args:
        shape: of the dataset; by default found from its columns.

    Raises:
        DatasetError: columns of none of the shapes.
    """
    rows = []
    for row in dataset:
        shapes = {name: known for name, known in _SHAPES.items() if shape in (None, name)}
        maker = next((maker for columns, maker in shapes.values() if columns <= set(row)), None)
        if maker is None:
            wanted = {name: sorted(columns) for name, (columns, _) in shapes.items()}
            raise DatasetError(
                f"A row has the columns {', '.join(sorted(row))}; expected {wanted or f'a known shape, not {shape!r}'}."
            )
        rows.append(maker(row, **options))
    return rows


def gsm8k_row(row: Source, *, instruction: str = ANSWER_INSTRUCTION, task: str = "gsm8k") -> Row:
    """Build the row of a word problem; `answer` is the number after `####`."""
    final = str(row["answer"]).rpartition("####")[2].strip().replace(",", "")
    return _row(row["question"], instruction, task=task, answer=final, solution=row["answer"])


def mbpp_row(
    row: Source, *, instruction: str = CODE_INSTRUCTION, num_shown: int = 1, task: str = "mbpp"
) -> Row:
    """Build the row of a function to write, with assertions.

    Args:
        num_shown: assertions that the prompt shows, so that the function's name is known. An assertion that is shown
            can be written down as the answer; the others are for the reward alone.
    """
    question = row.get("text") or row["prompt"]
    tests = list(row["test_list"])
    shown = "\n".join(tests[:num_shown])
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    text = f"{question}\nYour code should pass tests like this one:\n{shown}" if shown else question
    return _row(
        text, instruction, task=task, tests=tests, test_setup_code=setup or None, solution=row["code"]
    )


def humaneval_row(row: Source, *, instruction: str = CODE_INSTRUCTION, task: str = "humaneval") -> Row:
    """Build the row of a function to complete, with a `check(candidate)` of assertions."""
    return _row(
        f"Complete this function.\n```python\n{row['prompt'].rstrip()}\n```",
        instruction,
        task=task,
        tests=[f"{row['test']}\ncheck(candidate)"],
        entry_point=row["entry_point"],
        solution=row["prompt"] + row["canonical_solution"],
    )


_SHAPES: dict[Shape, tuple[frozenset[str], Callable[..., Row]]] = {
    "humaneval": (frozenset({"prompt", "entry_point", "canonical_solution", "test"}), humaneval_row),
    "mbpp": (frozenset({"code", "test_list"}), mbpp_row),
    "gsm8k": (frozenset({"question", "answer"}), gsm8k_row),
}


def _row(text: str, instruction: str, **columns: object) -> Row:
    prompt = [{"role": "user", "content": f"{text}\n\n{instruction}".strip()}]
    return dict.fromkeys(COLUMNS) | {"prompt": prompt} | columns
