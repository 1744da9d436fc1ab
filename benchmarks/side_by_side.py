"""Shared parts of benchmarks that run rivals in processes of their own, and the comparison of two checkouts of Covey.

git worktree add ../before REVISION
python benchmarks/side_by_side.py --against ../before        processor seconds per step of both, and their ratio
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def clock(kind: str) -> Callable[[], float]:
    """Return a clock: seconds on the wall, or of this process's processor time."""
    return time.process_time if kind == "cpu" else time.perf_counter


def forget_peak() -> None:
    """Let `peak` begin anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """Return the most resident memory since `forget_peak`, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def environment(threads: int, **more: str) -> dict[str, str]:
    """Return the environment of a worker."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", **more}


def add_options(
    parser: argparse.ArgumentParser, cases: list[str], dtypes: list[str], rounds: int, workers: Iterable[str]
) -> None:
    """Options that every such benchmark has; `--worker` and `--dtype` are for its own processes."""
    parser.add_argument("--cases", nargs="+", default=cases)
    parser.add_argument("--dtypes", nargs="+", default=dtypes, help="compute")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="`cpu` counts processor seconds: for a machine that others use too, with --threads 1",
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", help="write the rows there too, each as soon as it is measured")
    parser.add_argument("--worker", choices=list(workers), help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default=dtypes[0], help=argparse.SUPPRESS)


def report(rows: Iterable[dict[str, Any]], show: Callable[[dict[str, Any]], None], path: str | None) -> None:
    """Show each row as soon as it is measured, and write all that there are to `path`."""
    seen = []
    for row in rows:
        show(row)
        seen.append(row)
        if path:
            Path(path).write_text(json.dumps(seen, indent=1))


Steps = dict[str, list[float]]
"""Seconds, memory and whatever else a worker counts, step by step."""


def steps_of(script: str, name: str, args: argparse.Namespace, case: str, dtype: str, *more: str) -> Steps:
    """Return the steps of TRL, Covey or another worker of a benchmark, in a process of its own, the first left out.

    Args:
        script: the benchmark; it writes them to its `--json`.
        more: options of its own.
    """
    out = Path(tempfile.mkdtemp()) / "out.json"
    python = args.trl_python if name == "trl" else sys.executable
    command = [python, script, "--worker", name, "--model", args.model, "--cases", case, "--dtype", dtype]
    command += ["--steps", str(args.steps), "--threads", str(args.threads), "--json", str(out), *more]
    names = environment(
        args.threads, PYTHONPATH="" if name == "trl" else str(Path(__file__).resolve().parents[1])
    )
    done = subprocess.run(command, env=names, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} has failed on {case} in {dtype}:\n{done.stderr[-2000:]}")
    return {key: values[1:] for key, values in json.loads(out.read_text()).items()}


def in_turns(names: Iterable[str], rounds: int, measure: Callable[[str], Steps]) -> dict[str, list[Steps]]:
    """Return what each worker took in every round; they take turns."""
    found: dict[str, list[Steps]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, own in found.items():
            own.append(measure(name))
    return found


# --- two checkouts of Covey, step by step ---------------------------------------------------------------------------------

MARK = "seconds per step: "
PAIRS = [
    ("red apple", "green pear"),
    ("old book", "new song"),
    ("big dog", "small cat"),
    ("warm sun", "cold moon"),
]


def train_steps(model: str, folder: str, steps: int, threads: int) -> list[float]:
    """Train the policy for some steps by Covey's public names alone; return the seconds of each step."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback

    from covey import GRPOConfig, GRPOTrainer

    torch.set_num_threads(threads)
    moments: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            moments.append(time.process_time())

        def on_train_end(self, *_: Any, **__: Any) -> None:
            moments.append(time.process_time())

    def brief(completions: list[Any], **_: Any) -> list[float]:
        return [-len(str(c)) / 1000 for c in completions]

    text = "Write one friendly sentence about a {} and a {}."
    prompts = [[{"role": "user", "content": text.format(*PAIRS[i % 4])}] for i in range(12 * steps)]
    args = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        num_generations=8,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=3,
        max_completion_length=96,
        learning_rate=1e-6,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(model, brief, args, Dataset.from_list([{"prompt": p} for p in prompts]))
    trainer.add_callback(Clock())
    trainer.train()
    return [b - a for a, b in itertools.pairwise(moments)]


def compare(here: Path, against: Path, model: str, steps: int, rounds: int, threads: int) -> None:
    """Print the seconds per step of two checkouts, called in turn, and the ratio of their medians."""
    seconds: dict[Path, list[float]] = {here: [], against: []}
    for number in range(rounds):
        for checkout in (here, against) if number % 2 == 0 else (against, here):
            command = [
                sys.executable,
                __file__,
                "--steps",
                str(steps),
                "--threads",
                str(threads),
                "--model",
                model,
            ]
            done = subprocess.run(
                [*command, "--train"],
                env=environment(threads, PYTHONPATH=str(checkout)),
                capture_output=True,
                text=True,
                check=True,
            )
            (line,) = [x for x in done.stdout.splitlines() if x.startswith(MARK)]
            seconds[checkout] += json.loads(line[len(MARK) :])[1:]  # the first one warms up
    medians = {checkout: statistics.median(found) for checkout, found in seconds.items()}
    for checkout, found in seconds.items():
        print(f"{medians[checkout]:8.3f} s per step, {len(found)} steps  {checkout}")
    print(f"{medians[here] / medians[against]:8.3f} times the other checkout's")


def main() -> None:
    """Compare this checkout with another one, in processor seconds per optimizer step."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--against", type=Path, help="another checkout of Covey, for instance a git worktree")
    parser.add_argument("--model", default=str(here / "covey" / "assets" / "policy"))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        with tempfile.TemporaryDirectory() as folder:
            print(MARK + json.dumps(train_steps(given.model, folder, given.steps, given.threads)))
    elif given.against is None:
        parser.error("--against names the checkout to compare with")
    else:
        compare(here, given.against.resolve(), given.model, given.steps, given.rounds, given.threads)


if __name__ == "__main__":
    main()
