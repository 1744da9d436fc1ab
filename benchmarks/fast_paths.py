"""Learning is unharmed: the quickstart's run with all fast paths on, and with all off, over several seeds.

    python benchmarks/fast_paths.py --steps 10 --seeds 0           a glance
    python benchmarks/fast_paths.py --results fast_paths.jsonl     the study: three seeds, 110 steps

Both ways train the bundled policy on the quickstart's rows with its settings, and are measured on its held-out puzzles.

    on    the engine's own forward pass in its own weight layout, prompts shared, prompt lookup; one packed row per group, the
          prompt computed once, log-probabilities in chunks; rows of advantage 0 dropped
    off   the model's own forward pass and transformers' cache, each completion with its own copy of the prompt's keys and
          values; one padded row per completion, the model's own logits, one soft-max over all of them; every row computed

Whatever is computed in another order differs by rounding, so the ways part at the first token whose random number falls
between the two; how long they say the same is counted. Runs that are in the results file are not repeated.

The policy is small and computes in float32, so few of its matrices are large enough for the weight layout.

Two ways agree where their 95 % intervals overlap: mean reward in each tenth of the run, over the steps of all seeds, and
accuracy on the held-out puzzles, for each seed and over all (Wilson).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from transformers.utils import logging

from covey.cli.verbs.quickstart import make_trainer
from covey.runs.statistics import Interval, mean_interval, wilson_interval
from covey.sample.native.engine import NativeEngine
from covey.sample.sampling import Sampling
from covey.sample.turns import Turns
from covey.tasks import quickstart_run
from covey.types import Group, Prompt
from covey.update.forward import Forward

WAYS = ("on", "off")
TENTHS = 10


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of one run."""

    way: str
    seed: int
    steps: int
    rewards: list[float]
    """Mean reward of each optimizer step."""
    right: dict[str, int]
    """Held-out puzzles solved after training, by task."""
    puzzles: dict[str, int]
    sampled: list[str]
    """A digest of each completion's ids, in the order of training steps, prompts and samples."""
    seconds: float
    """Of training."""
    dropped: float
    """Mean share of rows that did not go through the model."""


class Noting(NativeEngine):
    """The engine, with a note of every completion."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noted: list[str] = []

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, settings: Sampling, turns: Turns | None = None
    ) -> Iterator[Group]:
        places = {id(prompt): place for place, prompt in enumerate(prompts)}
        said: dict[int, list[str]] = {}
        for group in super().generate(prompts, group_size, settings, turns):
            said[places[id(group.prompt)]] = [_digest(c.ids) for c in group.completions]
            yield group
        self.noted += [digest for place in sorted(said) for digest in said[place]]


def _digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(json.dumps(list(ids)).encode(), digest_size=4).hexdigest()


def set_way(trainer: Any, way: str) -> Noting:
    """Switch every fast path on or off; returns the engine."""
    decode, autocast = trainer.engine.decode, trainer.engine.autocast
    if way == "on":
        engine = Noting(decode, autocast, path="fast", shares_prompts=True, prompt_lookup=True)
    else:
        engine = Noting(decode, autocast, path="general")
        trainer.updater.forward = Forward(trainer.model, trainer.args.temperature, fast=False)
        # A plain function has no `needs_every_row = False`, so that no row is left out.
        objective = trainer.updater.objective
        trainer.updater.objective = dataclasses.replace(objective, loss=lambda terms: objective.loss(terms))
    trainer.engine = engine
    return engine


def train(way: str, seed: int, steps: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, seed, steps, display="plain", log_completions=False, record=False)
        engine = set_way(trainer, way)
        begin = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - begin
        sampled = list(engine.noted)
        metrics = trainer.evaluate()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert trainer.updater.forward.is_fast == (way == "on"), "the packed forward pass gave up"
    counts = dict(quickstart_run.HELD_OUT)
    accuracy = {task: metrics[f"eval_{task}_rewards/{task}_reward/mean"] for task in counts}
    return Run(
        way=way,
        seed=seed,
        steps=steps,
        rewards=[log["reward"] for log in logs],
        right={task: round(accuracy[task] * count) for task, count in counts.items()},
        puzzles=counts,
        sampled=sampled,
        seconds=seconds,
        dropped=sum(log["update/dropped_share"] for log in logs) / len(logs),
    )


# --- what is said of them -----------------------------------------------------------------------------------------------


def tenths(rewards: Sequence[float]) -> list[Sequence[float]]:
    cuts = [round(n * len(rewards) / TENTHS) for n in range(TENTHS + 1)]
    return [rewards[a:b] for a, b in itertools.pairwise(cuts)]


def line(run: Run) -> str:
    curve = " ".join(f"{sum(part) / max(1, len(part)):.3f}" for part in tenths(run.rewards))
    held_out = "  ".join(f"{t} {wilson_interval(run.right[t], n)}" for t, n in run.puzzles.items())
    return (
        f"{run.way:3}  seed {run.seed}  {run.seconds / run.steps:5.2f} s/step  dropped {run.dropped:4.0%}  reward by tenths "
        f"{curve}   held out {held_out}"
    )


def overlap(a: Interval, b: Interval) -> bool:
    return a.low <= b.high and b.low <= a.high


def alike(on: Run, off: Run) -> str:
    """How long two runs say the same."""
    pairs = list(zip(on.sampled, off.sampled, strict=True))
    equal = [a == b for a, b in pairs]
    first = equal.index(False) if not all(equal) else None
    per_step = len(pairs) // on.steps
    where = (
        "all completions are the same"
        if first is None
        else f"the first that differs is in step {first // per_step + 1}"
    )
    steps = [sum(equal[s * per_step : (s + 1) * per_step]) / per_step for s in range(on.steps)]
    curve = " ".join(f"{sum(part) / max(1, len(part)):.2f}" for part in tenths(steps))
    return f"seed {on.seed}  {where}; share of equal completions by tenths {curve}"


def summary(runs: Sequence[Run]) -> list[str]:
    """Return the comparison, over the seeds that both ways have been run with."""
    by = {(run.way, run.seed): run for run in runs}
    seeds = [s for s in sorted({run.seed for run in runs}) if all((way, s) in by for way in WAYS)]
    if not seeds:
        return []
    sides = {way: [by[way, seed] for seed in seeds] for way in WAYS}
    said = ["", *(alike(by["on", s], by["off", s]) for s in seeds), "", f"Over {len(seeds)} seed(s)"]
    verdicts = []
    for number in range(TENTHS):
        values = {way: [r for run in sides[way] for r in tenths(run.rewards)[number]] for way in WAYS}
        if min(map(len, values.values())) < 2:
            continue
        intervals = {way: _mean(values[way]) for way in WAYS}
        verdicts.append(overlap(intervals["on"], intervals["off"]))
        said.append(f"  reward, tenth {number + 1:2}   " + _beside(intervals, verdicts[-1]))
    for task in sides["on"][0].puzzles:
        for some in [[s] for s in seeds] + ([seeds] if len(seeds) > 1 else []):
            intervals = {way: _accuracy([by[way, s] for s in some], task) for way in WAYS}
            verdicts.append(overlap(intervals["on"], intervals["off"]))
            name = f"seed {some[0]}" if len(some) == 1 else "all seeds"
            said.append(f"  {task}, {name}   " + _beside(intervals, verdicts[-1]))
    times = {way: sum(run.seconds for run in sides[way]) for way in WAYS}
    said.append(f"  training took {times['off'] / times['on']:.1f} × as long with everything off")
    said.append(
        f"On and off {'agree' if all(verdicts) else 'DO NOT agree'}: {sum(verdicts)} of {len(verdicts)} intervals."
    )
    return said


def _mean(values: Sequence[float]) -> Interval:
    return mean_interval(mean(values), stdev(values) / len(values) ** 0.5, len(values))


def _accuracy(runs: Sequence[Run], task: str) -> Interval:
    return wilson_interval(sum(r.right[task] for r in runs), sum(r.puzzles[task] for r in runs))


def _beside(intervals: dict[str, Interval], agree: bool) -> str:
    sides = "   ".join(f"{way} {intervals[way]}" for way in WAYS)
    return f"{sides}   {'agree' if agree else 'DO NOT agree'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=quickstart_run.STEPS)
    parser.add_argument("--results", type=Path, help="file to which each run is appended as it ends")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    runs = known(arguments.results, arguments.steps)
    for seed in arguments.seeds:
        for way in WAYS:
            if any(r.way == way and r.seed == seed for r in runs):
                continue
            runs.append(train(way, seed, arguments.steps))
            print(line(runs[-1]), flush=True)
            if arguments.results is not None:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(runs[-1])) + "\n")
    print("\n".join(summary([r for r in runs if r.seed in arguments.seeds])), flush=True)


def known(file: Path | None, steps: int) -> list[Run]:
    """Return the runs of this length that a results file has."""
    if file is None or not file.exists():
        return []
    return [run for text in file.read_text().splitlines() if (run := Run(**json.loads(text))).steps == steps]


if __name__ == "__main__":
    main()
