"""One run of a study of learning: a library trains the policy, and every so many sampled tokens the held-out problems are asked.

It is started by `learning.py` with the interpreter of the library. Any library will do that has GRPOConfig and GRPOTrainer: tokens
are counted where rewards are asked, and problems are sampled by Covey's engine, the same for all.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learning_numbers import falls_behind

from covey.tasks import assets, quickstart_run
from covey.tasks.code import code_reward, code_rows
from covey.tasks.countdown import countdown_reward, countdown_rows
from covey.tasks.mixed import COLUMNS

Row = dict[str, Any]
Clock = tuple[float, ...]
"""Seconds on the wall, and of this process's processor time: the second hold where others use the machine too."""
LEVELS = ("easy", "medium", "hard")
VERDICTS = {"countdown": countdown_reward, "code": code_reward}
OF_COVEY = ("log_completions", "num_generations_eval")
"""Settings of the quickstart that other libraries read differently, or not."""


# --- tasks ----------------------------------------------------------------------------------------------------------------


def shuffled(rows: list[Row], seed: int) -> list[Row]:
    """Return rows with the columns of all tasks, in an order of the seed."""
    from random import Random

    Random(f"study {seed}").shuffle(rows)
    return [{name: row.get(name) for name in COLUMNS} | {"level": row.get("level", "")} for row in rows]


def leveled(count: int, seed: int, split: str) -> list[Row]:
    """Return countdown and code of all three levels in equal shares."""
    each, rows = max(1, count // 6), list[Row]()
    for make in (countdown_rows, code_rows):
        for level in LEVELS:
            drawn: list[Row] = make(each, seed=seed, split=split, level=level)  # type: ignore[operator]
            rows += [row | {"level": f"{row['task']} {level}"} for row in drawn]
    return shuffled(rows, seed)


def single(make: Callable[..., list[Row]]) -> Callable[[int, int, str], list[Row]]:
    """Return what draws rows of one task at its default level."""
    return lambda count, seed, split: shuffled(make(count, seed=seed, split=split), seed)


def mixed(count: int, seed: int, split: str) -> list[Row]:
    """Return countdown and code in the quickstart's shares."""
    of_code = round(count * 0.4)
    rows = countdown_rows(count - of_code, seed=seed, split=split) + code_rows(
        of_code, seed=seed, split=split
    )
    return shuffled(rows, seed)


def quickstart(count: int, seed: int, split: str) -> list[Row]:
    """Return the quickstart's own rows; of the held-out ones those that have a verdict."""
    if split == "held_out":
        return mixed(count, seed, split)
    steps = -(-count // sum(quickstart_run.PROMPTS_PER_STEP.values()))
    return [row | {"level": ""} for row in quickstart_run.train_rows(seed, steps)][:count]


TASKS: dict[str, Callable[[int, int, str], list[Row]]] = {
    "quickstart": quickstart,
    "mixed": mixed,
    "countdown": single(countdown_rows),
    "code": single(code_rows),
    "levels": leveled,
}
"""Rows by task: how many, the seed, the split."""


class Rewards:
    """The rewards of a run, which count what is sampled."""

    def __init__(self, names: set[str]) -> None:
        self.tokens = 0
        first, *others = [VERDICTS[name] for name in VERDICTS if name in names]
        self.functions: list[Any] = [self.counted(first), *others]
        if "text" in names:
            from covey.rewards.neural.reward_model import load_reward_model

            judge = load_reward_model(str(assets.REWARD_MODEL))

            def text_reward(prompts: Any, completions: Any, task: Any, **columns: Any) -> list[float | None]:
                own = [n for n, name in enumerate(task) if name == "text"]
                values: list[float | None] = [None] * len(task)
                if own:
                    given = judge(
                        prompts=[prompts[n] for n in own], completions=[completions[n] for n in own]
                    )
                    for n, value in zip(own, given, strict=True):
                        values[n] = value
                return values

            self.functions.append(text_reward)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a reward that counts the tokens of the completions that it is asked about."""

        def asked(completions: Any, completion_ids: Any, **columns: Any) -> Any:
            self.tokens += sum(len(ids) for ids in completion_ids)
            return function(completions=completions, **columns)

        functools.update_wrapper(asked, function)
        del asked.__wrapped__  # its own signature asks for the ids
        return asked


def clock() -> Clock:
    """Return what the time is."""
    return time.perf_counter(), time.process_time()


# --- the held-out problems ----------------------------------------------------------------------------------------------------


@dataclass
class Exam:
    """Held-out problems, and how they are asked: sampled as in training, with the same random numbers each time."""

    rows: Sequence[Row]
    tokenizer: Any
    max_new_tokens: int

    def success(self, policy: Any) -> tuple[dict[str, float], dict[str, int]]:
        """Return the share of problems that the policy solves, and how many there are, by task."""
        from covey.sample.chat import decode_text, stop_ids
        from covey.sample.engine import in_order
        from covey.sample.native.engine import NativeEngine
        from covey.sample.prompts import PromptReader
        from covey.sample.sampling import Sampling

        ends = tuple(stop_ids(self.tokenizer, policy.generation_config))
        unsaid = frozenset((*ends, self.tokenizer.pad_token_id))
        engine = NativeEngine(lambda ids: decode_text(self.tokenizer, ids, unsaid, False))
        engine.load(policy)
        reader = PromptReader(self.tokenizer)
        prompts = [reader.read(row, number, (number, 0)) for number, row in enumerate(self.rows)]
        sampling = Sampling(max_new_tokens=self.max_new_tokens, stop_ids=ends, seed=0, step=(1,))
        found: dict[str, list[float]] = {}
        for start in range(0, len(prompts), 128):
            part = prompts[start : start + 128]
            for group in in_order(part, engine.generate(part, 1, sampling)):
                columns = {name: [value] for name, value in group.prompt.columns.items()}
                verdict = VERDICTS[group.prompt.columns["task"]]
                value = verdict(completions=group.contents(), **columns)[0]
                name = group.prompt.columns["level"] or group.prompt.columns["task"]
                found.setdefault(name, []).append(float(value or 0.0))
        engine.sleep()
        named = dict(sorted(found.items()))
        return {n: sum(v) / len(v) for n, v in named.items()}, {n: len(v) for n, v in named.items()}


@dataclass
class Watch:
    """What is noted of a run: points at every so many sampled tokens, and whether it ended early."""

    exam: Exam
    rewards: Rewards
    every: int
    base: Sequence[Mapping[str, Any]]
    """Points of the same seed of the base; none: the run goes to its end."""
    points: list[dict[str, Any]] = field(default_factory=list)
    is_stopped: bool = False
    asked: Clock = (0.0, 0.0)
    """What the problems took: not training's."""
    start: Clock = field(default_factory=lambda: clock())

    def note(self, policy: Any, step: int) -> None:
        """Ask the problems."""
        began = clock()
        success, count = self.exam.success(policy)
        seconds, processor = (b - s - a for b, s, a in zip(began, self.start, self.asked, strict=True))
        self.asked = tuple(a + n - b for a, n, b in zip(self.asked, clock(), began, strict=True))
        point = {
            "tokens": self.rewards.tokens,
            "seconds": round(seconds, 2),
            "processor": round(processor, 2),
        }
        point |= {"step": step}
        self.points.append(point | {"success": success, "count": count})
        shown = ", ".join(f"{task} {value:.3f}" for task, value in success.items())
        print(f"step {step:4d} {self.rewards.tokens:9d} tokens {seconds:7.1f} s  {shown}", flush=True)

    def due(self) -> bool:
        """Return whether the next point has come."""
        return self.rewards.tokens >= self.every * len(self.points)

    def gives_up(self) -> bool:
        """Return whether the run is hopeless beside the base."""
        self.is_stopped = bool(self.base) and falls_behind(self.points, self.base)
        return self.is_stopped


def settings_of(case: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the arguments of GRPOConfig: the quickstart's, under those of the study and the arm."""
    own = quickstart_run.settings(case["seed"], case["steps"])
    is_covey = case["library"] == "covey"
    base = {name: value for name, value in own.items() if is_covey or name not in OF_COVEY}
    return {**base, "log_completions": False, "logging_steps": 10, **case["settings"], "output_dir": folder}


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    """Train one arm with one seed; return its points and how it ended."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    library, make = importlib.import_module(case["library"]), TASKS[case["task"]]
    per_step = sum(quickstart_run.PROMPTS_PER_STEP.values())
    rows = make(case["rows"] or case["steps"] * per_step, case["seed"], "train")
    exam_rows = make(case["held_out"], quickstart_run.HELD_OUT_SEED, "held_out")
    model = case["model"] or str(assets.POLICY)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rewards = Rewards({str(row["task"]) for row in rows})
    with tempfile.TemporaryDirectory() as folder:
        arguments = settings_of(case, folder)
        exam = Exam(exam_rows, tokenizer, arguments["max_completion_length"])
        args = library.GRPOConfig(**arguments)
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        trainer = library.GRPOTrainer(
            policy, rewards.functions, args, Dataset.from_list(rows), processing_class=tokenizer
        )
        watch = Watch(exam, rewards, case["every"], case["base"])

        class Points(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.start = clock()
                watch.note(policy, 0)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if watch.due() or state.global_step == state.max_steps:
                    watch.note(policy, state.global_step)
                    control.should_training_stop |= watch.gives_up()

        trainer.add_callback(Points())
        trainer.train()
    return {"points": watch.points, "stopped": watch.is_stopped}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    found = run(given)
    part = Path(sys.argv[2]).with_suffix(".part")
    part.write_text(json.dumps(found, indent=1))
    part.replace(sys.argv[2])
