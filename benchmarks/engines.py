#!/usr/bin/env python
"""Engines outside the process: seconds of a sync, tokens per second, and what sampling ahead gains.

    python benchmarks/engines.py                                              covey serve beside the native engine
    python benchmarks/engines.py --model FOLDER --vllm-python ENV/bin/python    vLLM too
    python benchmarks/engines.py --cases overlap --engines native

sync       the policy's weights to a server: gather, write, load. Beside it the limit: as many bytes written and read once.
sampling   prompts x group x prompt tokens x new tokens through each engine; the limit is that of `benchmarks/sampler.py`.
overlap    steps with a reward that takes as long as the sampling, without and with async_lag=1: seconds of a step, and their
           ratio. The limit is the longest of sampling, reward and update over their sum.

Servers are children on this machine and share its cores; engines take turns, and medians are printed. Ratios are what to quote.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from sampler import Case, end_ids, limit, machine, prompt_ids
from side_by_side import add_options, report

HERE = Path(__file__).resolve().parents[1]
CASES = ["sync", "sampling", "overlap"]
ENGINES = ("native", "covey", "vllm")
SAMPLED = "4x8x40x64"
"""Prompts x group x prompt tokens x new tokens."""
STEPS, DROPPED = 8, 2
"""Steps of a run of the overlap, and how many of them at its beginning and at its end are not counted."""


# --- servers ----------------------------------------------------------------------------------------------------------


@contextmanager
def server(kind: str, args: argparse.Namespace, dtype: str) -> Iterator[Any]:
    """Start a server as a child, and end it."""
    from covey.sample.remote.child_command import ChildOrder
    from covey.sample.remote.client import Client
    from covey.sample.remote.launch import ChildServer
    from covey.sample.remote.served import CoveyServer
    from covey.sample.remote.vllm import VllmServer

    python = args.vllm_python if kind == "vllm" else sys.executable
    order = ChildOrder(kind, args.model, python, dtype=dtype, max_length=1024)
    make: Callable[[str], Any] = VllmServer if kind == "vllm" else lambda url: CoveyServer(Client(url, 240.0))
    with tempfile.TemporaryDirectory() as folder:
        child = ChildServer(order, make, Path(folder) / f"{kind}.log", 300.0)
        child.start()
        try:
            yield child.server
        finally:
            child.stop()


class NoChecks:
    """Stands for the proofs of an engine, which are no part of what is measured."""

    gap = None

    def start(self, policy: Any, servers: Any) -> None: ...

    def probe(self, policy: Any, servers: Any) -> None: ...


def alone(value: Any) -> list[Any]:
    return [value]


@contextmanager
def engine(kind: str, args: argparse.Namespace, dtype: str) -> Iterator[Any]:
    """Make an engine, native or on one server."""
    from covey.sample.native.engine import NativeEngine
    from covey.sample.remote.engine import RemoteEngine
    from covey.sample.remote.weight_sync import WeightSync

    if kind == "native":
        yield NativeEngine(lambda ids: "")
        return
    with server(kind, args, dtype) as one, tempfile.TemporaryDirectory() as folder:
        sync = WeightSync("benchmark", folder, alone)
        made = RemoteEngine([one], sync, NoChecks(), lambda ids: "", run="benchmark", gather=alone)
        try:
            yield made
        finally:
            made.close()
            sync.close()


def policy_of(args: argparse.Namespace, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, dtype)).eval()


# --- what is measured ---------------------------------------------------------------------------------------------------


def sync_rows(args: argparse.Namespace, dtype: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of server: medians of the parts of a sync, and what the bytes alone would take."""
    policy = policy_of(args, dtype)
    size = sum(p.numel() * p.element_size() for p in policy.parameters())
    for kind in (k for k in args.engines if k != "native"):
        found: list[dict[str, float]] = []
        with engine(kind, args, dtype) as made:
            for version in range(args.rounds + 1):
                made.load(policy, version)
                found.append(dict(made.sync.seconds))
            root = made.sync.folders.root
            least = min(seconds_of_bytes(root, size) for _ in range(3))
        parts = {part: statistics.median(f[part] for f in found[1:]) for part in found[0]}
        whole = statistics.median(sum(f.values()) for f in found[1:])
        yield {"case": "sync", "dtype": dtype, "engine": kind, "MB": size / 1e6, **parts, "whole": whole,
               "limit": least}  # fmt: skip


def seconds_of_bytes(folder: Path, size: int) -> float:
    """Write so many bytes into a file of the folder and read them; return the seconds that both took."""
    block, path = os.urandom(1 << 22), folder / "bytes"
    start = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(size >> 22):
            file.write(block)
        file.write(block[: size & ((1 << 22) - 1)])
    with path.open("rb", buffering=0) as file:
        while file.readinto(bytearray(1 << 22)):
            pass
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def sampling_rows(args: argparse.Namespace, dtype: str) -> Iterator[dict[str, Any]]:
    """Yield one row: tokens per second of each engine."""
    from covey.sample.sampling import Sampling
    from covey.types import Prompt

    policy, case = policy_of(args, dtype), Case.of(args.sampled)
    ids, stops = prompt_ids(args.model, case), tuple(end_ids(policy)) if case.natural else ()
    prompts = [Prompt("", tuple(p), {}, n, (n, 0)) for n, p in enumerate(ids)]
    speeds: dict[str, list[float]] = {}
    for kind in args.engines:
        with engine(kind, args, dtype) as made:
            made.load(policy, 0)
            for call in range(args.rounds + 1):
                start = time.perf_counter()
                groups = made.generate(prompts, case.group, Sampling(case.new, stop_ids=stops, seed=call))
                tokens = sum(len(c.ids) for group in groups for c in group.completions)
                speeds.setdefault(kind, []).append(tokens / (time.perf_counter() - start))
    row = {kind: statistics.median(found[1:]) for kind, found in speeds.items()}
    most = limit(args.model, dtype, case, machine(dtype))
    yield {"case": "sampling", "dtype": dtype, "what": args.sampled, **row, "limit": most}


def overlap_rows(args: argparse.Namespace, dtype: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine: seconds of a step at lag 0 and at lag 1."""
    for kind in args.engines:
        if kind == "native":
            yield overlap(kind, None, args, dtype)
        else:
            with server(kind, args, dtype) as one:
                yield overlap(kind, one.url, args, dtype)


def overlap(kind: str, url: str | None, args: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Train with a reward that waits as long as a round is sampled; lags take turns."""
    quick = train(0, 0.0, url, kind, args, dtype)
    sampling, update = (statistics.median(quick[n]) for n in ("sample", "update"))
    steps: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(args.rounds):
        for lag, found in steps.items():
            found += train(lag, sampling, url, kind, args, dtype)["step"]
    zero, one = (statistics.median(found) for found in steps.values())
    longest, total = max(sampling, update), 2 * sampling + update
    return {"case": "overlap", "dtype": dtype, "engine": kind, "sampling": sampling, "update": update, "lag 0": zero,
            "lag 1": one, "ratio": one / zero, "limit": longest / total}  # fmt: skip


def train(
    lag: int, wait: float, url: str | None, kind: str, args: argparse.Namespace, dtype: str
) -> dict[str, list[float]]:
    """Take some steps; return the seconds of those in the middle, and of their sampling and updates."""
    from datasets import Dataset
    from transformers import TrainerCallback

    from covey import GRPOConfig, GRPOTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    def patient(completions: list[Any], **_: Any) -> list[float]:
        time.sleep(wait)
        return [-len(str(c)) / 1000 for c in completions]

    case = Case.of(args.sampled)
    rows = [{"prompt": f"{n} + {n + 1} ="} for n in range(case.prompts * (STEPS + 2))]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, max_steps=STEPS, num_generations=case.group, logging_steps=1, display="plain", record=False,
            per_device_train_batch_size=case.sequences, max_completion_length=case.new, learning_rate=1e-6, bf16=dtype == "bfloat16",
            use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, async_lag=lag,
            **({"engine": kind, "engine_urls": url, "engine_canary": False} if url else {}),
        )  # fmt: skip
        trainer = GRPOTrainer(args.model, patient, settings, Dataset.from_list(rows))
        trainer.add_callback(Clock())
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each run takes the server over from the one before
            trainer.train()
    logged = [entry for entry in trainer.state.log_history if "time/sample" in entry]
    middle = slice(DROPPED, -DROPPED)
    seconds = {name: [e[f"time/{name}"] for e in logged[middle]] for name in ("sample", "update")}
    return {**seconds, "step": [b - a for a, b in itertools.pairwise(ends)][middle]}


# --- the table --------------------------------------------------------------------------------------------------------


def show(row: dict[str, Any]) -> None:
    head = f"{row['dtype']:9} {row['case']:9}"
    if row["case"] == "sync":
        parts = "  ".join(f"{part} {row[part]:.3f}" for part in ("gather", "write", "load"))
        text = (
            f"{row['engine']:7} {row['MB']:7.0f} MB: {row['whole']:.3f} s ({parts})  limit {row['limit']:.3f}"
        )
    elif row["case"] == "sampling":
        speeds = "  ".join(f"{k} {row[k]:7.0f}" for k in ENGINES if k in row)
        ratios = "  ".join(
            f"{row[k] / row['native']:.2f} {k}" for k in ENGINES[1:] if k in row and "native" in row
        )
        text = f"{row['what']} tok/s: {speeds}  limit {row['limit']:.0f}   over native: {ratios}"
    else:
        parts = f"sampling {row['sampling']:.3f}  reward as long  update {row['update']:.3f}"
        text = f"{row['engine']:7} {parts}: a step {row['lag 0']:.3f} s, with lag 1 {row['lag 1']:.3f} s"
        text += f"  ratio {row['ratio']:.2f}  limit {row['limit']:.2f}"
    print(head, text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=str(HERE / "covey" / "assets" / "policy"), help="folder of the model"
    )
    add_options(parser, CASES, ["float32"], 3, ENGINES)
    parser.add_argument("--vllm-python", help="the Python of an environment with vLLM")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sampled", default=SAMPLED, help="prompts x group x prompt tokens x new tokens")
    args = parser.parse_args()
    if args.vllm_python is None:
        args.engines = [kind for kind in args.engines if kind != "vllm"]
    sys.path.insert(0, str(HERE))
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(HERE)}
    import torch

    torch.set_num_threads(args.threads)
    measures = {"sync": sync_rows, "sampling": sampling_rows, "overlap": overlap_rows}
    rows = (row for dtype in args.dtypes for case in args.cases for row in measures[case](args, dtype))
    report(rows, show, args.json)


if __name__ == "__main__":
    main()
