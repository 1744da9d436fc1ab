"""What the record costs: milliseconds per step, and the share of a step of one second.

    python benchmarks/record.py

Steps of a synthetic run are written with every text recorded; sealing of segments is part of the time. The numbers are
the mean over all steps, which is what a run pays, and the worst single step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from random import Random

from covey.runs import RunWriter
from covey.types import Completion, Group, Prompt, Score, ScoredGroup

WORDS = [
    "so",
    "the",
    "sum",
    "of",
    "these",
    "two",
    "numbers",
    "gives",
    "a",
    "result",
    "which",
    "is",
    "close",
    "to",
    "what",
    "we",
    "need",
    "and",
    "then",
]


def step_groups(prompts: int, size: int, tokens: int, random: Random) -> list[ScoredGroup]:
    groups = []
    for row in range(prompts):
        completions = []
        for _ in range(size):
            ids = tuple(random.randrange(50_000) for _ in range(tokens))
            text = " ".join(random.choice(WORDS) for _ in ids)
            completions.append(Completion(ids, tuple(-random.random() for _ in ids), text, "stop"))
        scores = {
            name: tuple(Score(random.random()) for _ in range(size))
            for name in ("accuracy", "format", "style")
        }
        prompt = Prompt("a prompt of some length " * 10, tuple(range(80)), {"task": "t", "answer": "42"}, row)
        advantages = tuple(random.gauss(0, 1) for _ in range(size))
        groups.append(ScoredGroup(Group(prompt, tuple(completions)), scores, advantages, advantages))
    return groups


def measure(prompts: int, size: int, tokens: int, steps: int) -> tuple[float, float, int]:
    random = Random(0)
    batches = [step_groups(prompts, size, tokens, random) for _ in range(8)]
    metrics = {f"metric/{i}": random.random() for i in range(60)}
    times = []
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter.open(
            Path(folder) / "record", settings={}, rewards={"accuracy": 1.0}, git={}, environment={}
        )
        for step in range(1, steps + 1):
            begin = time.perf_counter()
            writer.groups(step, batches[step % 8])
            writer.step(step, metrics, {"sample": 0.5, "score": 0.1, "update": 0.4})
            times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        writer.close()
        times.append(time.perf_counter() - begin)
        size_on_disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    return sum(times) / steps, max(times), size_on_disk


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    print(f"{'completions × tokens':>22}  {'ms/step':>8}  {'worst ms':>8}  {'of 1 s':>7}  {'kB/step':>8}")
    for prompts, size, tokens in ((1, 4, 16), (4, 8, 128), (8, 8, 512), (16, 16, 1024)):
        steps = arguments.steps if prompts < 16 else arguments.steps // 4
        mean, worst, disk = measure(prompts, size, tokens, steps)
        label = f"{prompts * size} × {tokens}"
        print(f"{label:>22}  {mean * 1e3:8.2f}  {worst * 1e3:8.1f}  {mean:7.2%}  {disk / steps / 1e3:8.1f}")


if __name__ == "__main__":
    main()
