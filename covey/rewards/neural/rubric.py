"""A rubric: the questions to a judge, and the worth of its verdict."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import RewardError


@dataclass(frozen=True)
class Criterion:
    """One question with its possible verdicts, from worst to best."""

    name: str
    question: str
    choices: tuple[str, ...] = ("no", "yes")
    weight: float = 1.0


@dataclass(frozen=True)
class Rubric:
    """Criteria, and the instructions that come before them. As a TOML file:

    instructions = "You judge the answers of a physics tutor."

    [[criteria]]
    name = "correct"
    question = "Is the final answer right?"
    choices = ["no", "partly", "yes"]
    weight = 2
    """

    criteria: tuple[Criterion, ...]
    instructions: str = "You judge answers."

    @classmethod
    def read(cls, source: str | Path | Mapping[str, object]) -> Rubric:
        """Read a rubric from a TOML or JSON file, or from the content of such a file.

        Raises:
            RewardError: it cannot be read, or is no rubric.
        """
        content: Mapping[str, Any] = source if isinstance(source, Mapping) else _content(Path(source))
        try:
            criteria = tuple(_criterion(**part) for part in content["criteria"])
            rubric = cls(criteria, str(content.get("instructions", cls.instructions)))
            rubric._check()
        except (KeyError, TypeError, ValueError) as error:
            raise RewardError(
                f"The rubric {'given' if isinstance(source, Mapping) else source} is none: {error}. It has `criteria`, each "
                "with `name` and `question`, and, where they are not no and yes, two or more `choices` from worst to best."
            ) from None
        return rubric

    def score(self, verdict: Mapping[str, object]) -> float | None:
        """Return the weighted mean of a verdict, in [0, 1]; None where it does not answer every question with a choice.

        A choice counts by its place between the worst, 0, and the best, 1.
        """
        total = 0.0
        for criterion in self.criteria:
            choice = verdict.get(criterion.name)
            if not isinstance(choice, str) or choice not in criterion.choices:
                return None
            total += criterion.weight * (criterion.choices.index(choice) / (len(criterion.choices) - 1))
        return total / sum(criterion.weight for criterion in self.criteria)

    def _check(self) -> None:
        names = [criterion.name for criterion in self.criteria]
        if not names or len(set(names)) != len(names) or "id" in names:
            raise ValueError("names of criteria are different, at least one, and none is `id`")
        for criterion in self.criteria:
            if len(set(criterion.choices)) < 2 or len(set(criterion.choices)) != len(criterion.choices):
                raise ValueError(f"criterion {criterion.name!r} has no two different choices")
            if criterion.weight <= 0:
                raise ValueError(f"criterion {criterion.name!r} has weight {criterion.weight}")


def _criterion(
    name: str, question: str, choices: Iterable[object] = ("no", "yes"), weight: float = 1.0
) -> Criterion:
    """Build a criterion from what a file holds: lists, and perhaps numbers for choices."""
    return Criterion(str(name), str(question), tuple(map(str, choices)), float(weight))


def _content(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise RewardError(f"The rubric {path} cannot be read: {error}.") from None
    if not isinstance(content, Mapping):
        raise RewardError(f"The rubric {path} is none: it holds {type(content).__name__}.")
    return content
