"""How long a recipe's prompts are, in tokens."""

from __future__ import annotations

from dataclasses import dataclass

from covey.errors import CoveyError
from covey.recipes import Recipe
from covey.trainer.data import is_map_style, kept_rows

MOST_ROWS = 256
"""Rows that are looked at, spread evenly over the dataset."""


@dataclass(frozen=True)
class Lengths:
    """Tokens per prompt."""

    mean: float
    longest: int
    rows: int
    """How many were looked at; 0: none could be, and the two are the limit."""

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.longest} at most, the limit"
        return f"{self.mean:.0f} on average, {self.longest} at most, in {self.rows} rows"


def prompt_lengths(recipe: Recipe, loads_data: bool = True) -> Lengths:
    """Lengths of the training prompts as they will be sampled from, cut where the settings cut them.

    Raises:
        CoveyError: neither the data nor a limit says it.
    """
    from covey.models import loading
    from covey.trainer.parts import prompt_reader

    args = recipe.config
    if not loads_data or recipe.train_dataset is None or not is_map_style(recipe.train_dataset):
        return _limit(args.max_prompt_length)
    tokenizer = loading.load_tokenizer(recipe.tokenizer(), recipe.model_config, args.trust_remote_code)
    reader = prompt_reader(args, tokenizer, None)
    numbers = kept_rows(recipe.train_dataset, reader) or []
    step = max(1, len(numbers) // MOST_ROWS)
    seen = [len(reader.read(recipe.train_dataset[n], n, (n, 0)).ids) for n in numbers[::step][:MOST_ROWS]]
    return Lengths(sum(seen) / len(seen), max(seen), len(seen))


def _limit(limit: int | None) -> Lengths:
    if limit is None:
        raise CoveyError(
            "the lengths of the prompts are not known: no data is loaded, and max_prompt_length is not set"
        )
    return Lengths(limit, limit, 0)
