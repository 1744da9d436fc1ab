"""`covey try MODEL RECIPE`: one row of a recipe, answered as in training, printed turn by turn with what the rewards say."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from covey.cli.arguments import add_set
from covey.errors import ConfigError
from covey.text.foreign import excerpt, show

if TYPE_CHECKING:
    from covey.recipes import Recipe
    from covey.types import Score, ScoredGroup

EXAMPLES = """
examples:
  covey try my-model recipe.yaml                     the first row of its data
  covey try my-model recipe.yaml --row 12 -n 3       three completions of another row
  covey try my-model recipe.yaml --greedy --set max_completion_length=512

What is printed is what happens in training: the prompt with its tools as the policy reads it, the policy's turns, its calls and
what they cost, results, why it ended, and what each reward says. Nothing is trained and nothing is written.

Exit status: 0 done, 2 wrong input.
"""

MAX_PROMPT = 8_000
"""Characters of a prompt that are printed; the middle of a longer one is left out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model's name or folder, a checkpoint, or an adapter")
    add("recipe", metavar="RECIPE", help="the run, in one file, or the name of a bundled one")
    add(
        "--row",
        type=int,
        default=0,
        metavar="N",
        help="of the training data, or of the eval set (default: 0)",
    )
    add("-n", "--samples", type=int, default=1, metavar="N", help="completions (default: 1)")
    add("--greedy", action="store_true", help="take the most probable token each time")
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Sample, score and print."""
    if args.samples < 1:
        raise ConfigError(f"--samples is {args.samples}; it must be at least 1.")
    from covey.recipes import Recipe

    with tempfile.TemporaryDirectory(prefix="covey-try-") as folder:
        train = {"output_dir": folder, "report_to": "none", "record": False, "push_to_hub": False}
        values = {"model": {"model_name_or_path": args.model, "use_peft": False}, "train": train}
        recipe = Recipe.load(args.recipe, args.set, values)
        for line in described(*tried(recipe, args.row, args.samples, args.greedy)):
            show(line)
    return 0


def tried(recipe: Recipe, number: int, samples: int, greedy: bool) -> tuple[ScoredGroup, list[str]]:
    """Return the scored completions of one row, and the prompt of each as the policy reads it.

    Raises:
        ConfigError: there is no such row.
    """
    trainer = recipe.trainer(eval_dataset=None, callbacks=None)
    rows: Any = trainer.train_dataset if trainer.train_dataset is not None else recipe.eval_dataset
    row = row_of(rows, number)
    prompt = trainer.prompts.reader.read(row, number, (number, 0))
    settings = replace(trainer.sampling, step=(1,), greedy=greedy)
    trainer.engine.load(trainer.model)
    with trainer.agents.evaluating(trainer) as sample:
        sampled = sample(trainer.engine, [prompt], samples, settings)
        [scored], _ = trainer.scorer.run_rewards(sampled.groups, own_columns=sampled.columns)
    shared, completions = scored.group.prompt.ids, scored.group.completions
    ids = [(*shared, *c.ids[: c.opening]) for c in completions]
    return scored, [str(trainer.processing_class.decode(i, skip_special_tokens=False)) for i in ids]


def row_of(rows: Any, number: int) -> Any:
    """Return a row of a dataset by its number, of a stream the one that comes then.

    Raises:
        ConfigError: there is no such row.
    """
    from itertools import islice

    from covey.sample.given_data import is_map_style, readable

    count = len(rows) if is_map_style(rows) else None
    if number >= 0 and (count is None or number < count):
        found = (
            readable(rows)[number] if count is not None else next(islice(readable(rows), number, None), None)
        )
        if found is not None:
            return found
    has = "the data is a stream" if count is None else f"the data has {count} rows, from 0 on"
    raise ConfigError(f"--row is {number}; {has}.")


def described(scored: ScoredGroup, prompts: Sequence[str]) -> Iterator[str]:
    """Yield the lines about a group: the prompt, and each completion with its turns, end and scores."""
    from covey.runs.record.episodes import turn_entries
    from covey.runs.transcript import plain_lines, transcript
    from covey.text.foreign import fit

    for index, completion in enumerate(scored.group.completions):
        if index == 0 or prompts[index] != prompts[index - 1]:
            yield fit(prompts[index], MAX_PROMPT)
        yield f"--- completion {index} ".ljust(60, "-")
        messages = completion.messages or ({"role": "assistant", "content": completion.text},)
        yield from plain_lines(transcript(messages, turn_entries(scored, index)))
        yield ""
        injected = len(completion.ids) - completion.opening - completion.num_written
        answered = f", {injected} that answered it" if injected else ""
        yield f"ended by {completion.finish}, {completion.num_written} tokens of the policy{answered}"
        for name, column in scored.scores.items():
            yield f"reward {name}: {score_text(column[index])}"
        total = scored.totals[index]
        yield f"total: {'none' if total is None else f'{total:g}'}\n"


def score_text(score: Score) -> str:
    """Return a score in words: its number, its parts by turn, or why there is none."""
    value = score.status.replace("_", " ") if score.value is None else f"{score.value:g}"
    parts = f" = {' + '.join(f'{part:g}' for part in score.turns)}" if score.turns else ""
    return f"{value}{parts}" + (f" ({excerpt(score.error, 300)})" if score.error else "")
