"""Tokens per second of the sampler by number of threads, on a quiet machine and beside processes that keep cores busy.

    python benchmarks/threads.py                      the bundled policy
    python benchmarks/threads.py --model FOLDER --busy 0 1 2

Shows what `covey.config.threads` decides on: from how many weights on a second thread pays, and what it costs where cores are
shared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch

from covey.cli.engines import engine_of
from covey.models.loading import load_policy, load_tokenizer
from covey.sample.prompts import PromptReader
from covey.sample.sampling import Sampling
from covey.tasks import assets

BUSY = "while True: pass"


def tokens_per_second(model: str, prompts: int, size: int, tokens: int, threads: int) -> float:
    """Return the best of three rounds: prompts × size completions of so many tokens."""
    policy = load_policy(model)
    tokenizer = load_tokenizer(None, model, False)
    engine, _ = engine_of(policy, tokenizer)
    torch.set_num_threads(threads)
    reader = PromptReader(tokenizer, context=4 * tokens + 64, reserved=tokens)
    asked = [reader.read({"prompt": f"Numbers: {n} 4 7. Target: 11."}, n, (n, 0)) for n in range(prompts)]
    seconds = []
    for seed in range(3):
        start = time.perf_counter()
        list(engine.generate(asked, size, Sampling(max_new_tokens=tokens, seed=seed)))
        seconds.append(time.perf_counter() - start)
    return prompts * size * tokens / min(seconds)


def main() -> None:
    """Print one line per number of busy processes and threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(assets.POLICY))
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    for busy in args.busy:
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        try:
            for threads in args.threads:
                speed = tokens_per_second(args.model, args.prompts, args.size, args.tokens, threads)
                print(f"{busy} busy processes, {threads} threads: {speed:,.0f} tokens/s", flush=True)
        finally:
            for other in others:
                other.kill()
                other.wait()


if __name__ == "__main__":
    main()
