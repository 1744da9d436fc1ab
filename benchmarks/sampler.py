#!/usr/bin/env python
"""Tokens per second of sampling: transformers `generate`, the native engine on both of its paths, and vLLM's CPU build.

    python benchmarks/sampler.py --model FOLDER
    python benchmarks/sampler.py --model FOLDER --vllm-python ENV/bin/python --cases 1x8x76x128 1x64x512x128n
    python benchmarks/sampler.py --model FOLDER --against CHECKOUT        also the native engine of another checkout

A case is prompts x group size x prompt tokens x new tokens; with an `n` at the end completions end where the model ends
them, else all have the same length. "general" is the native engine's path for models that its fast path does not know. Each engine has a process of its own; they take turns, round after round, so that
what else the machine does meets all of them, and medians over rounds are printed. The limit beside them is what one
step needs at least: weights and cache over the measured memory bandwidth, or floating-point operations over the
measured peak, whichever takes longer. Ratios are what to quote; seconds drift.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import add_options, clock, environment, forget_peak, peak, report

HERE = Path(__file__).resolve().parents[1]
CASES = ["1x8x76x128", "1x32x76x128", "1x64x76x128", "1x8x512x128n", "1x32x512x128n", "1x64x512x128n"]


CHECKED = 5
"""Calls before the first that is measured: the fast path is compared with the model in the 1st, 2nd, 3rd, 5th, 9th, ... of a run."""


@dataclass(frozen=True)
class Case:
    prompts: int
    group: int
    prompt_tokens: int
    new: int
    natural: bool

    @classmethod
    def of(cls, text: str) -> Case:
        prompts, group, prompt_tokens, new = (int(part) for part in text.rstrip("n").split("x"))
        return cls(prompts, group, prompt_tokens, new, text.endswith("n"))

    @property
    def sequences(self) -> int:
        return self.prompts * self.group


# --- engines, each in a process of its own ----------------------------------------------------------------------------


def prompt_ids(model: str, case: Case) -> list[list[int]]:
    """Prompts of exactly so many tokens that end like a chat's question, one per number."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    result = []
    for number in range(case.prompts):
        question = f"Using the numbers {number + 2}, 5 and 7, write an equation that equals {number + 19}."
        filler = " Think carefully, step by step, and check the result."
        if tokenizer.chat_template:
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        else:
            ids = tokenizer(question)["input_ids"]
        extra = tokenizer(filler * case.prompt_tokens)["input_ids"]
        ids = list(ids)[-case.prompt_tokens :]
        middle = max(1, len(ids) // 2)
        result.append(ids[:middle] + extra[: case.prompt_tokens - len(ids)] + ids[middle:])
    return result


def end_ids(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    return list(ends) if isinstance(ends, list) else [] if ends is None else [ends]


def load(model: str, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()


def run_transformers(args: argparse.Namespace) -> Any:
    import torch

    model = load(args.model, args.dtype)
    ends = end_ids(model)

    def sample(case: Case, ids: list[list[int]]) -> int:
        batch = torch.tensor(ids)
        out = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=True,
            top_k=0,
            temperature=1.0,
            num_return_sequences=case.group,
            max_new_tokens=case.new,
            min_new_tokens=None if case.natural else case.new,
            pad_token_id=ends[0] if ends else 0,
        )[:, batch.shape[1] :]
        if not case.natural:
            return out.numel()
        is_end = torch.isin(out, torch.tensor(ends))
        lengths = torch.where(is_end.any(1), is_end.float().argmax(1) + 1, out.shape[1])
        return int(lengths.sum())

    return sample


def run_native(args: argparse.Namespace, path: str = "fast") -> Any:
    sys.path.insert(0, args.checkout)
    from covey.sample.native.engine import NativeEngine
    from covey.sample.sampling import Sampling
    from covey.types import Prompt

    model = load(args.model, args.dtype)
    engine = NativeEngine(lambda ids: "", path=path)
    ends = tuple(end_ids(model))
    calls = [0]

    def sample(case: Case, ids: list[list[int]]) -> int:
        calls[0] += 1
        engine.load(model)  # as after an update: weights are packed again
        prompts = [Prompt("", tuple(p), {}, n, (n, 0)) for n, p in enumerate(ids)]
        settings = Sampling(case.new, stop_ids=ends if case.natural else (), seed=calls[0])
        groups = engine.generate(prompts, case.group, settings)
        return sum(len(c.ids) for group in groups for c in group.completions)

    return sample


def run_general(args: argparse.Namespace) -> Any:
    return run_native(args, "general")


def run_before(args: argparse.Namespace) -> Any:
    """Sample as the other checkout does by itself: on its general path where its fast path does not know the model."""
    return run_native(args, "auto")


def run_vllm(args: argparse.Namespace) -> Any:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams

    llm = LLM(model=args.model, dtype=args.dtype, max_model_len=2048, enforce_eager=args.eager)

    def sample(case: Case, ids: list[list[int]]) -> int:
        llm.reset_prefix_cache()
        settings = SamplingParams(
            n=case.group, temperature=1.0, max_tokens=case.new, ignore_eos=not case.natural
        )
        outs = llm.generate([{"prompt_token_ids": p} for p in ids], settings, use_tqdm=False)
        return sum(len(c.token_ids) for out in outs for c in out.outputs)

    return sample


ENGINES = {
    "transformers": run_transformers,
    "general": run_general,
    "before": run_before,
    "vllm": run_vllm,
    "native": run_native,
}


def work(args: argparse.Namespace) -> None:
    """Read cases and prompts from stdin, sample, and answer with one line of JSON each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    import torch

    torch.set_num_threads(args.threads)
    sample = ENGINES[args.worker](args)
    warm_up = Case(1, 2, 24, 2, False)
    for _ in range(CHECKED):
        sample(warm_up, prompt_ids(args.model, warm_up))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        forget_peak()
        now = clock(args.clock)
        start = now()
        tokens = sample(Case(*order["case"]), order["ids"])
        seconds = now() - start
        print(json.dumps({"tokens": tokens, "seconds": seconds, "peak": peak()}), file=answers, flush=True)


class Worker:
    """An engine in a process of its own, which is stopped while others measure: idle threads may spin."""

    def __init__(self, name: str, python: str, args: argparse.Namespace, dtype: str) -> None:
        checkout = args.against if name == "before" else str(HERE)
        command = [python, __file__, "--worker", name, "--model", args.model, "--dtype", dtype]
        command += ["--checkout", checkout, "--threads", str(args.threads), "--clock", args.clock]
        command += ["--eager"] if args.eager else []
        self.log = Path(tempfile.mkdtemp()) / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(args.threads),
            )
        self._answer()
        self.process.send_signal(signal.SIGSTOP)

    def ask(self, case: Case, ids: list[list[int]]) -> dict[str, float]:
        assert self.process.stdin is not None
        order = {"case": list(vars(case).values()), "ids": ids}
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps(order), file=self.process.stdin, flush=True)
        answer = self._answer()
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"A worker has died; see {self.log}")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


# --- the limit --------------------------------------------------------------------------------------------------------


def machine(dtype: str) -> tuple[float, float]:
    """Measured bytes and floating-point operations per second."""
    import torch

    from covey.kernels.linear import projection

    big = torch.ones(1 << 27)
    bandwidth = max(big.numel() * 4 / seconds_of(lambda: big.sum()) for _ in range(5))
    kind = getattr(torch, dtype)
    with torch.inference_mode():
        rows = torch.randn(256, 2048).to(kind)
        product = projection(torch.randn(4096, 2048), None, kind, may_pack=True)
        product(rows)
        peak = max(2 * 256 * 2048 * 4096 / seconds_of(lambda: product(rows)) for _ in range(10))
    return bandwidth, peak


def seconds_of(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def limit(model: str, dtype: str, case: Case, speeds: tuple[float, float]) -> float:
    """Tokens per second that no sampler can exceed on this machine, prefill left out.

    Every weight is read once in a step, but for an embedding that is not the head too.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    kv_heads = config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    is_apart = built.get_input_embeddings().weight is not built.get_output_embeddings().weight
    weights = sum(p.numel() for p in built.parameters())
    weights -= built.get_input_embeddings().weight.numel() if is_apart else 0
    size = 2 if dtype == "bfloat16" else 4
    cached = case.prompts * case.prompt_tokens + case.sequences * case.new / 2
    cache = 2 * config.num_hidden_layers * kv_heads * dim * cached
    read = size * (weights + cache) / speeds[0]
    computed = 2 * weights * case.sequences / speeds[1]
    return case.sequences / max(read, computed)


# --- the table --------------------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, dtype: str, speeds: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """One row per case, as soon as it is measured."""
    import random

    missing = {"before"} if args.against is None else set()
    missing |= {"vllm"} if args.vllm_python is None else set()
    workers: dict[str, Worker] = {}
    try:
        for name in [name for name in args.engines if name not in missing]:
            workers[name] = Worker(name, args.vllm_python if name == "vllm" else sys.executable, args, dtype)
        for text in args.cases:
            case = Case.of(text)
            ids = prompt_ids(args.model, case)
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
            for round_ in range(args.rounds + args.warm_up):
                for name in random.sample(list(workers), len(workers)):
                    answer = workers[name].ask(case, ids)
                    if round_ >= args.warm_up:
                        runs[name].append(answer)
            yield summary(text, dtype, runs, limit(args.model, dtype, case, speeds))
    finally:
        for worker in workers.values():
            worker.close()


def summary(text: str, dtype: str, runs: dict[str, list[dict[str, float]]], most: float) -> dict[str, Any]:
    row: dict[str, Any] = {"case": text, "dtype": dtype, "limit": most}
    for name, answers in runs.items():
        row[name] = statistics.median(a["tokens"] / a["seconds"] for a in answers)
        row[f"{name} MB"] = max(a["peak"] for a in answers)
    for other in [name for name in runs if name != "native"]:
        ratios = [
            (n["tokens"] / n["seconds"]) / (o["tokens"] / o["seconds"])
            for n, o in zip(runs["native"], runs[other], strict=True)
        ]
        row[f"over {other}"] = statistics.median(ratios)
    return row


def show(row: dict[str, Any]) -> None:
    names = [n for n in ENGINES if n in row]
    speeds = "  ".join(f"{n} {row[n]:7.0f}" for n in names)
    ratios = "  ".join(f"{row[f'over {n}']:5.2f} x {n}" for n in names if f"over {n}" in row)
    memory = " / ".join(f"{row[f'{n} MB']:.0f}" for n in names)
    print(
        f"{row['dtype']:9} {row['case']:14} tok/s: {speeds}  limit {row['limit']:6.0f} ({row['native'] / row['limit']:.0%})"
        f"   native: {ratios}   peak MB: {memory}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the model")
    add_options(parser, CASES, ["bfloat16", "float32"], 3, ENGINES)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that are not counted")
    parser.add_argument("--vllm-python", help="the Python of an environment with vLLM's CPU build")
    parser.add_argument("--eager", action="store_true", help="vLLM without compilation")
    parser.add_argument("--against", help="another checkout of Covey, for instance a git worktree")
    parser.add_argument(
        "--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES), help="besides native"
    )
    parser.add_argument("--checkout", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.engines = list(dict.fromkeys([*args.engines, "native"]))
    if args.worker:
        work(args)
        return
    sys.path.insert(0, str(HERE))
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(args.threads)
    report(measured(args), show, args.json)


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of every dtype, each behind what the machine can do."""
    for dtype in args.dtypes:
        speeds = machine(dtype)
        print(
            f"{dtype}: memory {speeds[0] / 1e9:.1f} GB/s, peak {speeds[1] / 1e9:.0f} GFLOP/s, {args.threads} threads"
        )
        yield from compare(args, dtype, speeds)


if __name__ == "__main__":
    main()
