"""Settings that runs have learned with: ours and published ones, by kind of training and number of weights. Values and comparisons, no torch.

Nothing here changes a setting: `covey plan` shows what is far from all that was measured, hints quote it where a run shows the symptoms.
Clip bounds hang on what the ratio is of, not on the size of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["full", "adapter"]

LIKE = 10.0
"""Models are alike in size where one has at most so many times the weights of the other."""
FAR = 5.0
"""A setting is far from the evidence at so many times the most that was measured, or at this part of the least."""
COMPARED = ("learning_rate", "num_generations", "max_completion_length")
"""Settings that a study has, by the names of GRPOConfig."""


@dataclass(frozen=True, slots=True)
class Study:
    """A run that has learned: its settings, what came of it, and where that stands."""

    model: str
    kind: Kind
    weights: float
    learning_rate: float
    """At its highest, of Adam."""
    num_generations: int
    max_completion_length: int
    """Tokens."""
    result: str
    source: str
    """A page or a file of this repository, `arXiv:…`, or the repository of a library and a file in it."""

    def __str__(self) -> str:
        size = (
            f"{self.weights / 1e9:.3g} billion"
            if self.weights >= 1e9
            else f"{self.weights / 1e6:.3g} million"
        )
        kind = "full training" if self.kind == "full" else "an adapter"
        return f"{self.model} ({size} weights, {kind}): {self.result} ({self.source})"


@dataclass(frozen=True, slots=True)
class ClipBounds:
    """Clip bounds of a paper: `epsilon` below, `epsilon_high` above."""

    low: float
    high: float
    source: str


STUDIES = (
    Study(
        "bundled_discs", "full", 292_416, 1e-3, 8, 4,
        "from a third of the pictures to 96 % in 180 steps", "docs/tasks.md",
    ),
    Study(
        "bundled_calculator", "full", 545_536, 2e-4, 8, 64,
        "from 22 % of the stories to 90 % in 60 steps", "docs/tasks.md",
    ),
    Study(
        "bundled", "full", 1_144_576, 3e-4, 8, 112,
        "from 22 % of the puzzles to 65 % in 110 steps", "docs/tasks.md",
    ),
    Study(
        "SmolLM2-135M-Instruct", "full", 134.5e6, 2e-5, 8, 64,
        "the whole format in 48 steps", "examples/countdown_smollm2.py",
    ),
    Study(
        "Qwen2.5-3B", "full", 3.09e9, 1e-6, 4, 1024,
        "about 60 % of countdown puzzles", "nano-aha-moment: README.md",
    ),
    Study(
        "DeepSeekMath-Instruct 7B", "full", 7e9, 1e-6, 64, 1024,
        "GSM8K from 82.9 % to 88.2 %", "arXiv:2402.03300",
    ),
    Study(
        "Qwen2.5-32B", "full", 32.8e9, 1e-6, 16, 20_480,
        "AIME 2024 to 50 %", "arXiv:2503.14476",
    ),
    Study(
        "Qwen2.5-Coder-0.5B-Instruct", "adapter", 494e6, 1e-4, 8, 48,
        "sums from 0.22 to 0.80 in 40 steps", "docs/hyperparameters.md",
    ),
    Study(
        "Qwen2.5-3B-Instruct", "adapter", 3.09e9, 3e-6, 5, 1024,
        "GSM8K to 86.1 %", "verl: examples/grpo_trainer/run_qwen2_5-3b_gsm8k_grpo_lora.sh",
    ),
)  # fmt: skip
"""From small to large; docs/hyperparameters.md shows them as a table."""

SEQUENCE = ClipBounds(3e-4, 4e-4, "arXiv:2507.18071")
CLIPS = {
    "token": ClipBounds(0.2, 0.28, "arXiv:2503.14476"),
    "sequence": SEQUENCE,
    "sequence_token": SEQUENCE,
}
"""By `importance_sampling_level`."""
CLIPPED = frozenset({"grpo", "dr_grpo", "dapo", "bnpo", "prompt_mean"})
"""Loss types whose `epsilon` is the bound of a ratio of that level."""


@dataclass(frozen=True, slots=True)
class Distance:
    """A setting beside the least and the most that was measured."""

    setting: str
    value: float
    low: float
    high: float
    start: float
    """What the study that is nearest in size has."""
    source: str
    """That study, or the paper."""

    @property
    def times(self) -> float:
        """Return how many times the most it is, or which part of the least; 1 in between."""
        return max(1.0, self.value / self.high) * min(1.0, self.value / self.low)

    @property
    def is_far(self) -> bool:
        return not 1 / FAR < self.times < FAR

    def __str__(self) -> str:
        above, factor = self.times > 1, max(self.times, 1 / self.times)
        times = f"{factor:,.{0 if factor >= 10 else 1}f} times"
        place = f"{times} the most" if above else f"{times} less than the least"
        bound, start = (f"{number:g}" for number in (self.high if above else self.low, self.start))
        return f"{self.value:g} is {place} that was measured, {bound}. A start: {start}, as {self.source}."


def alike(kind: Kind, weights: float) -> list[Study]:
    """Return the studies of a kind on models of a like size, the nearest first; where there is none, the nearest alone."""

    def distance(study: Study) -> float:
        return abs(math.log(study.weights / weights))

    own = sorted((s for s in STUDIES if s.kind == kind), key=distance)
    return [s for s in own if distance(s) <= math.log(LIKE)] or own[:1]


def distances(settings: Mapping[str, object], weights: float, trained: float) -> list[Distance]:
    """Return settings of a run beside what was measured, `COMPARED` and the clip bound; without those that are not known.

    Args:
        settings: by the names of GRPOConfig.
        weights: of the policy, the frozen ones among them; 0 where they are not known.
        trained: how many of them; a fifth or less is an adapter.
    """
    studies = alike("adapter" if 5 * trained <= weights else "full", weights) if weights > 0 else []
    found = []
    for name in COMPARED if studies else ():
        measured = [float(getattr(study, name)) for study in studies]
        if (value := _compared(settings, name)) is not None:
            near = measured[0], str(studies[0])
            found.append(Distance(name, value, min(measured), max(measured), *near))
    clip = CLIPS.get(str(settings.get("importance_sampling_level", "token")))
    if clip is not None and (epsilon := _compared(settings, "epsilon")) is not None:
        found.append(Distance("epsilon", epsilon, clip.low, clip.high, clip.low, clip.source))
    return found


def _compared(settings: Mapping[str, object], name: str) -> float | None:
    """Return a setting as a number; None: it is not known, or studies say nothing of it."""
    optimizer = str(getattr(settings.get("optim"), "value", settings.get("optim", "adam")))
    if name == "learning_rate" and "adam" not in optimizer:
        return None  # other optimizers take other steps
    if name == "epsilon" and (settings.get("loss_type") not in CLIPPED or serves_one_update(settings)):
        return None  # it bounds something else, or nothing
    value = settings.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def serves_one_update(settings: Mapping[str, object]) -> bool:
    """Return whether each sample serves one update only, so that every ratio is 1; not known counts as no."""
    if settings.get("num_iterations") != 1 or settings.get("generation_batch_size") is not None:
        return False
    per_generation = settings.get("steps_per_generation")
    return per_generation is None or per_generation == settings.get("gradient_accumulation_steps")
