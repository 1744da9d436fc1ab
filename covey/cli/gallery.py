"""Pictures in a terminal, with what a policy says of them before a run and after it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

from covey.rewards.text import text_of
from covey.text.foreign import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from covey.trainer.evaluation import Evaluation

COLUMNS, LINES = 16, 8
"""Of the terminal for a picture; a line shows two rows of it."""


class Gallery:
    """The first picture of each quarter of an evaluation. As `compute_metrics` it hears what is said of them, and adds no number.

    Args:
        rows: of the evaluation, as `covey.tasks.disc_rows` makes them. Nobody has seen yet what is said of them.
    """

    def __init__(self, rows: Sequence[Mapping[str, object]]) -> None:
        answers = [str(row["answer"]) for row in rows]
        first = {answer[1]: place for place, answer in reversed(list(enumerate(answers)))}
        self.right = {first[quarter]: answers[first[quarter]] for quarter in sorted(first)}
        """By place among the rows."""
        self.pictures = [cast(bytes, rows[place]["image"]) for place in self.right]
        self.said: list[dict[int, str]] = []
        """By evaluation and place."""

    def __call__(self, evaluation: Evaluation) -> dict[str, float]:
        """Note what is said of each picture first."""
        found = {place: evaluation.group_ids.index(place) for place in self.right}
        self.said.append({place: text_of(evaluation.completions[i]) for place, i in found.items()})
        return {}

    def show(self, console: Console) -> None:
        """Print the pictures beside each other, and under each what was said of it in the first and the last evaluation."""
        from rich.table import Table
        from rich.text import Text

        table, styles = Table.grid(padding=(0, 2)), {"right": "green", "wrong": "red"}
        if console.color_system and not console.no_color and not console.options.ascii_only:
            table.add_row("", *map(drawn, self.pictures))
            table.add_row()
        table.add_row("  right", *self.right.values())
        for when, said in (("  before", self.said[0]), ("  after", self.said[-1])):
            words = [(said[i], "right" if said[i] == right else "wrong") for i, right in self.right.items()]
            table.add_row(
                when, *(Text(f"{visible(word)}  {verdict}", styles[verdict]) for word, verdict in words)
            )
        console.print(
            f"{len(self.pictures)} of the pictures that it never trained on, and what it said of them:\n"
        )
        console.print(table)
        console.print()


def drawn(picture: bytes) -> Text:
    """Draw a picture with half blocks: each has the colour of one pixel, and that of the one below as its ground."""
    from PIL import Image
    from rich.text import Text

    with Image.open(io.BytesIO(picture)) as image:
        values = image.convert("RGB").resize((COLUMNS, 2 * LINES), Image.Resampling.BOX).tobytes()
    styles = [f"rgb({r},{g},{b})" for r, g, b in zip(*[iter(values)] * 3, strict=True)]
    rows = [styles[first : first + COLUMNS] for first in range(0, len(styles), COLUMNS)]
    lines = []
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        runs = ((pair, len(list(run))) for pair, run in groupby(zip(upper, lower, strict=True)))
        lines.append(Text.assemble(*(("▀" * length, f"{a} on {b}") for (a, b), length in runs)))
    return Text("\n").join(lines)
