"""Where an environment began the members of a group differently, every reader sees the prompt that a completion answered."""

import io
import json
from collections.abc import Callable, Sequence

import pytest
from rich.console import Console

import covey.runs
from covey.rewards.batch import RewardBatch
from covey.runs.export import Export
from covey.runs.record.completions_jsonl import completion_rows
from covey.runs.record.regroup import regroup
from covey.runs.report.source import CompletionSource
from covey.runs.terminal.display import Display
from covey.trainer.evaluation import Evaluation
from covey.types import ScoredGroup
from tests.runs.episodes import QUESTION, answered, episodes, stumbling, write_episodes

CELLAR = stumbling().own_prompt


def drawn(group: ScoredGroup, folder: object) -> Sequence[object]:
    """The prompt over the best completion: here that of the second."""
    display = Display("", 10, console=Console(width=200, height=30, file=io.StringIO()))
    display.update(1, {"reward": 1.0}, [group])
    out = Console(width=200, height=30, file=io.StringIO())
    out.print(display.render(200, 30))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    return [QUESTION, CELLAR if "You are in the cellar." in shown else QUESTION]


def on_the_page(group, folder):
    source = CompletionSource(write_episodes(folder, [group]), "training", ["accuracy"])
    source.refresh()
    return [entry.get("prompt", source.prompts(0)[0]["prompt"]) for entry in source.texts(0)]


def regrouped(group, folder):
    (table,) = covey.runs.open(write_episodes(folder, [group])).group_tables()
    return RewardBatch.of_groups(regroup(table)).prompts


READERS: dict[str, Callable[..., Sequence[object]]] = {
    "rewards": lambda group, folder: RewardBatch.of_groups([group.group]).prompts,
    "compute_metrics": lambda group, folder: Evaluation.of([group]).prompts,
    "completions.jsonl": lambda group, folder: [row["prompt"] for row in completion_rows(1, [group])],
    "display": drawn,
    "page": on_the_page,
    "changed rewards": regrouped,
    "export": lambda group, folder: [
        line["prompt"] for line in Export(covey.runs.open(write_episodes(folder, [group])), "prompt_completion")
    ],
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_each_completion_stands_under_its_own_prompt(reader, tmp_path):
    seen = READERS[reader](episodes([answered(), stumbling()], [0.0, 1.0]), tmp_path)
    assert json.loads(json.dumps(list(seen))) == [QUESTION, CELLAR]
