"""Lives of a run: each is a process that trains a tiny policy until it is killed or done.

A server imports everything once and forks a process per life, so that a life costs what its steps cost.

    python -m tests.trainer.checkpoint.lives        requests and answers are lines of JSON on stdin and stdout
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.errors import CoveyWarning

ROOT = Path(__file__).parents[3]
CLOCKS = ("time/", "step_time", "memory/", "train_runtime", "train_samples", "train_steps", "/seconds")
STEPS = 6


class Server:
    """The test's side: `live` runs one life and says how it ended."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.checkpoint.lives"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def live(self, variant: str, policy: str, out: Path, kill: dict[str, Any] | None) -> int:
        """Wait status of the life: 0 where it came to its end, the signal's number where it was killed."""
        request = {"variant": variant, "policy": policy, "out": str(out), "kill": kill}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the server is gone"
        return int(json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=300)


# --- what is trained ----------------------------------------------------------------------------------------------------


def by_ids(completion_ids: Any) -> list[float]:
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


class Counting:
    """A reward with a memory: what it gives depends on how many completions it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, completions: Any) -> list[float]:
        self.seen += len(completions)
        return [float((self.seen + i) % 3) for i in range(len(completions))]

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def noise(completions: Any) -> list[float]:
    """A reward that draws from the generators that everybody uses."""
    import numpy as np
    import torch

    return [random.random() + float(np.random.random()) + float(torch.rand(())) for _ in completions]


def first_letter(completions: Any) -> list[float]:
    return [float(len(text) % 4) for text in completions]


def rarely(completion_ids: Any) -> list[float]:
    """A reward that many groups have no spread in, so that dynamic sampling has something to replace."""
    return [float(sum(ids) % 7 == 0) for ids in completion_ids]


def mixture() -> Any:
    from covey.rewards import Linear, Mixture, reward

    return Mixture(
        reward(by_ids, weight=Linear(1.0, 0.1)),
        Counting(),
        reward(noise, weight=0.3),
        reward(first_letter, pure=True),
        cache=True,
    )


def variants() -> dict[str, dict[str, Any]]:
    from peft import LoraConfig
    from transformers import EarlyStoppingCallback

    evaluated = {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 1}
    return {
        "plain": {**evaluated, "save_steps": 2, "eval_on_start": True},
        "inside a round": {
            "per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "save_steps": 1,
            "peft_config": LoraConfig(r=4, target_modules=["q_proj"]), "beta": 0.05,
        },
        "mixture": {"rewards": mixture, "save_steps": 1, "logging_steps": 4, "save_total_limit": 2},
        "stream": {"stream": True, "save_steps": 2, "logging_steps": 3, "sync_ref_model": True, "beta": 0.05,
                   "ref_model_sync_steps": 1},
        "dynamic sampling": {
            "stream": True, "rows": 40, "rewards": lambda: rarely, "dynamic_sampling": True,
            "dynamic_sampling_rounds": 2, "per_device_train_batch_size": 4, "steps_per_generation": 2,
            "num_iterations": 2, "save_steps": 1,
        },
        "epochs": {
            "max_steps": -1, "num_train_epochs": 2, "rows": 6, "eval_strategy": "epoch", "save_steps": 3,
            "logging_strategy": "epoch", "rewards": mixture,
        },
        "best": {
            **evaluated, "save_steps": 2, "save_total_limit": 1, "load_best_model_at_end": True,
            "use_adaptive_entropy": True, "entropy_target": 4.0,
            "callbacks": [EarlyStoppingCallback(early_stopping_patience=2)],
        },
        "pictures": {
            "data": pictures, "per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "save_steps": 1,
            "beta": 0.05, "learning_rate": 1e-3,
        },
        "tools": {"save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
    }  # fmt: skip


def pictures(policy: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows with pictures as files, bytes, images in the prompt and none; and settings. The files are drawn where they are not there."""
    import io

    from tests.vision.tiny_eyes import asked, drawn

    folder = Path(policy) / "pictures"
    if not folder.exists():
        folder.mkdir()
        for number, colour in enumerate(("red", "green", "blue", "gold")):
            drawn(colour, (32 + 8 * number, 32), number).save(folder / f"{number}.png")
    png = io.BytesIO()
    drawn("gold", (56, 30), 9).save(png, "PNG")
    block = [{"type": "image", "image": drawn("blue", (40, 40), 7)}, {"type": "text", "text": "Which?"}]
    given: list[Any] = [[f"{i}.png"] for i in range(4)] + [
        ["0.png", {"bytes": png.getvalue(), "path": None}],
        [],
    ]
    rows = [{"prompt": asked(f"What {n}?"), "images": images} for n, images in enumerate(given)]
    return [*rows, {"prompt": [{"role": "user", "content": block}]}], {"image_root": str(folder)}


def with_tools(out: Path, settings: dict[str, Any]) -> Any:
    """A trainer whose scripted policy calls a tool that takes its time, in threads, and an environment."""
    from covey.tools import tool
    from tests.trainer.scripted import chats, counter, made

    @tool(where="thread")
    def add(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        time.sleep(0.01)
        return str(a + b)

    class Rooms(counter([], lambda self, row: f" in room {len(row['prompt'][0]['content'])}")):  # type: ignore[misc]
        add = None

    def reward(completion_ids: Any, environments: Any) -> list[float]:
        return [float((sum(ids) + e.count) % 5) for ids, e in zip(completion_ids, environments, strict=True)]

    return made(
        out, reward, data=chats(16), tools=[add], environment_factory=Rooms, eval_dataset=chats(3), **settings
    )


def run(variant: str, policy: str, out: Path, kill: dict[str, Any] | None, began: Callable[[], None]) -> None:
    """Train to the end, from the last checkpoint if there is one, and leave what came of it in `end.json`."""
    from tests.trainer.harness import make, rows

    given = dict(variants()[variant])
    rewards, count = given.pop("rewards", lambda: by_ids)(), given.pop("rows", 16)
    dataset: Any = rows(count)
    if "data" in given:
        dataset, more = given.pop("data")(policy)
        given |= more
    if given.pop("stream", False):
        dataset = dataset.to_iterable_dataset()
    settings = {
        "learning_rate": 1e-2, "optim": "adamw_torch", "lr_scheduler_type": "cosine", "max_steps": STEPS,
        "max_completion_length": 6, "save_strategy": "steps", "log_completions": True,
        "resume_from_checkpoint": "auto", **given,
    }  # fmt: skip
    if variant == "tools":
        trainer = with_tools(out / "run", {**settings, "max_completion_length": 400})
    else:
        if "eval_strategy" in settings:
            settings["eval_dataset"] = rows(3)
        trainer = make(policy, out / "run", rewards, dataset, **settings)
    counts = watch(trainer, kill or {})
    began()
    start = time.monotonic()
    trainer.train()
    end = {"end": end_of(trainer, out / "run"), "points": counts, "seconds": time.monotonic() - start}
    (out / "end.json").write_text(json.dumps(end))


def end_of(trainer: Any, folder: Path) -> dict[str, Any]:
    """All that two runs must have in common: weights, logged numbers, the record, completions."""
    import hashlib

    import covey.runs
    from covey.runs.record.jsonl import read_lines

    weights = hashlib.sha256()
    for name, parameter in trainer.model.named_parameters():
        weights.update(name.encode() + parameter.detach().numpy().tobytes())
    record = folder / "record"
    return {
        "weights": weights.hexdigest(),
        "step": trainer.state.global_step,
        "best": [trainer.state.best_metric, trainer.state.best_global_step],
        "log": [timeless(entry) for entry in trainer.state.log_history],
        "steps": [[line["step"], timeless(line["metrics"])] for line in read_lines(record / "steps.jsonl")],
        "evaluations": [timeless(line["metrics"]) for line in read_lines(record / "evaluations.jsonl")],
        "groups": [
            {name: without_seconds(value) for name, value in row.items()}
            for table in covey.runs.open(folder).group_tables()
            for row in table.to_pylist()
        ],
        "completions": without_seconds((folder / "completions.jsonl").read_text()),
        "checkpoints": sorted(p.name for p in folder.glob("checkpoint-*")),
        "left over": sorted(p.name for p in folder.iterdir() if p.name.startswith("_")),
    }


def without_seconds(value: Any) -> Any:
    """A value without the time that calls of tools took."""
    return re.sub(r'"seconds": ?[0-9.e-]+', "", value) if isinstance(value, str) else value


def timeless(numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in numbers.items()
        if not any(clock in name for clock in CLOCKS) and not name.endswith(("runtime", "per_second"))
    }


# --- how it is killed -----------------------------------------------------------------------------------------------------

POINTS = (
    "sample", "score", "evaluate", "forward", "optimizer", "write", "sync", "move", "delete", "record", "full disk",
    "load", "tool",
)  # fmt: skip


def watch(trainer: Any, kill: dict[str, Any]) -> dict[str, int]:
    """Count how often the process comes to each point, and let it be killed the `count`-th time at `point`."""
    import shutil

    import torch

    from covey.runs.record.jsonl import JsonLines
    from covey.tools.calling import Caller
    from covey.trainer.checkpoint import folders, manifest
    from covey.trainer.checkpoint.saving import CheckpointedTrainer

    places: dict[str, tuple[Any, str]] = {
        "sample": (trainer.engine, "generate"),
        "score": (trainer.scorer, "run_rewards"),
        "evaluate": (trainer, "_evaluate_one"),
        "forward": (trainer, "compute_loss"),
        "optimizer": (torch.optim.AdamW, "step"),
        "write": (torch, "save"),
        "sync": (manifest, "sync"),
        "move": (folders.os, "rename"),
        "delete": (shutil, "rmtree"),
        "record": (JsonLines, "append"),
        "full disk": (CheckpointedTrainer, "_save_checkpoint"),
        "load": (trainer, "_load_optimizer_and_scheduler"),
        "tool": (Caller, "start"),
    }
    counts = dict.fromkeys(places, 0)
    for point, (owner, name) in places.items():
        setattr(owner, name, watched(getattr(owner, name), point, counts, kill))
    return counts


def watched(original: Any, point: str, counts: dict[str, int], kill: dict[str, Any]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[point] += 1
        if kill.get("point") == point and counts[point] == kill["count"]:
            if kill.get("goes_on"):
                return half_done(point, original, args, kwargs)
            if "signals" not in kill:
                half_done(point, original, args, kwargs)
            for number in kill.get("signals", [signal.SIGKILL]):
                os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    return call


def half_done(point: str, original: Any, args: Any, kwargs: Any) -> None:
    """Do a part of what a point is about to do."""
    if point == "sample":
        next(iter(original(*args, **kwargs)), None)
    elif point == "write":
        original(*args, **kwargs)
        if isinstance(args[1], str | Path):
            os.truncate(args[1], os.path.getsize(args[1]) // 2)
    elif point == "delete":
        files = sorted(p for p in Path(args[0]).rglob("*") if p.is_file())
        for path in files[: len(files) // 2]:
            path.unlink()
    elif point == "full disk":
        with full_disk():
            original(*args, **kwargs)
    elif point in ("score", "evaluate", "optimizer", "tool"):
        original(*args, **kwargs)


@contextmanager
def full_disk(limit: int = 60_000) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes: what is written fails as it does on a full disk.

    The log of the life is such a file: its warnings have to fit.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


# --- the server -----------------------------------------------------------------------------------------------------------


def serve() -> None:
    import pyarrow.parquet  # noqa: F401
    import torch
    import transformers  # noqa: F401

    import covey.cli  # noqa: F401
    import tests.trainer.scripted  # noqa: F401

    torch.set_num_threads(1)
    variants()
    gc.freeze()  # a collection in a child would look through, and so copy, all that was imported
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(one_life(request)), flush=True)


def one_life(request: dict[str, Any]) -> int:
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    kill = request["kill"]
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        log = os.open(out / "life.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        code = 1
        try:
            signal.signal(
                signal.SIGINT, signal.default_int_handler
            )  # it is ignored in a job in the background
            warnings.simplefilter("ignore")
            warnings.filterwarnings("always", category=CoveyWarning)
            run(request["variant"], request["policy"], out, kill, lambda: os.write(says, b"!"))
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(says)
    if kill and "seconds" in kill:
        select.select([heard], [], [], 600)
        time.sleep(kill["seconds"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(heard)
    return (
        -os.waitstatus_to_exitcode(status)
        if os.WIFSIGNALED(status)
        else os.waitstatus_to_exitcode(status) << 8
    )


if __name__ == "__main__":
    serve()
