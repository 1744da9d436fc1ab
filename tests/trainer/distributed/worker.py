"""Runs on every process of `accelerate launch`: trains a tiny policy and leaves what it did.

worker.py FOLDER OUT JSON-SETTINGS    one run
worker.py JOBS                        run after run, as files appear in a folder: starting takes longer than a run
"""

import contextlib
import gc
import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
from accelerate import PartialState

from covey.config import resolving
from covey.errors import EngineError
from covey.rewards import reward
from covey.trainer import failure_watch
from covey.trainer.distributed import end_processes
from covey.types import Completion
from tests.trainer.elsewhere import Elsewhere
from tests.trainer.harness import Recorder, make, rows

PF_EXITING = 4
"""Linux's flag of a task that ends."""


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


def tokens(completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]


def failing(function, error, rank, call):
    """The same function, but for one call in which it fails on one process."""
    calls = []

    def failing_once(*arguments):
        calls.append(None)
        if PartialState().process_index == rank and len(calls) == call:
            raise error(f"this is the call {call}")
        return function(*arguments)

    return failing_once


def shard_on_cpu() -> None:
    """Let accelerate shard (FSDP2) over gloo: it offers that for GPUs only, and the code behind it does not care."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    original = getattr(AcceleratorState.__init__, "original", AcceleratorState.__init__)

    def patched(self, *args, **kwargs):
        original(self, *args, **kwargs)
        plugin = kwargs.get("fsdp_plugin") or self.__dict__.get("fsdp_plugin")
        if plugin is not None:  # also where an instance takes over the shared state
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin
            if self._mixed_precision != "no":
                plugin.set_mixed_precision(self._mixed_precision)

    patched.original = original
    AcceleratorState.__init__ = patched


def meet() -> None:
    """Let processes that use DeepSpeed know of each other before the policy is loaded: accelerate does that for GPUs only."""
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter on every process, whether it was sharded or not."""
    if hasattr(parameter, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    full = parameter.detach()
    return full.full_tensor() if hasattr(full, "full_tensor") else full


def count_passes(model: torch.nn.Module) -> list[None]:
    """Grows by one with each forward pass that has a backward pass."""
    passes: list[None] = []
    model.register_forward_pre_hook(lambda *_: passes.append(None) if torch.is_grad_enabled() else None)
    return passes


def count_received() -> list[None]:
    """Grows by one with each completion that another process, or this one, has sent here."""
    received: list[None] = []
    original = Completion.__setstate__

    def counting(self, state):
        received.append(None)
        original(self, state)

    Completion.__setstate__ = counting
    return received


def runs_out_of_memory(trainer, when: list) -> None:
    """Let one process find no memory, once: `[process, "forward" or "backward", number of the pass that trains]`."""
    rank, where, number = when
    passes = []

    def before(*_):
        passes.append(None)
        if where == "forward" and len(passes) == number:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def after(gradient):
        if where == "backward" and len(passes) == number:
            passes.append(None)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    if trainer.args.process_index == rank:
        layer = trainer.model.model.layers[-1]  # some layers are behind, and some ahead
        layer.mlp.register_forward_pre_hook(lambda *_: before() if torch.is_grad_enabled() else None)
        layer.mlp.down_proj.register_full_backward_hook(lambda *_: after(_))


def work(folder: str, out: Path, settings: dict) -> int:
    """Train, write what was seen; gives the number of this process."""
    for name in [n for n in os.environ if n.startswith("FSDP_") or n == "ACCELERATE_USE_FSDP"]:
        del os.environ[name]  # of an earlier run
    if settings.get("fsdp"):
        shard_on_cpu()
    if settings.get("deepspeed"):
        meet()
    part, *when = settings.pop("failing", [None])
    recorder = Recorder(failing(by_ids, ZeroDivisionError, *when) if part == "reward" else by_ids)
    adapter = settings.pop("lora", None)
    if adapter:
        from peft import LoraConfig

        settings["peft_config"] = LoraConfig(r=4, target_modules=["q_proj"])
    if stays := settings.pop("stays", False):
        failure_watch.POLL_SECONDS = failure_watch.GRACE_SECONDS = 0.5
    resume, memory = settings.pop("resume", None), settings.pop("out_of_memory", None)
    delay = settings.pop("elsewhere", None)
    bound = settings.pop("tokens", None)
    rewards = recorder if bound is None else [recorder, reward(tokens, **bound)]
    dataset = rows(16, **settings.pop("columns", {}))
    trainer = make(folder, out / "run", rewards, dataset, **settings)
    if delay is not None:
        trainer.engine = Elsewhere(trainer.engine, delay, seed=trainer.args.process_index)
    if part == "engine":
        trainer.engine.generate = failing(trainer.engine.generate, EngineError, *when)
    passes, received = count_passes(trainer.model), count_received()
    if memory:
        runs_out_of_memory(trainer, memory)
    rank = trainer.args.process_index
    try:
        trainer.train(resume_from_checkpoint=resume)
    except Exception as error:
        (out / f"error{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        if stays:  # as a process does that waits for something of its own while it ends
            time.sleep(600)
        raise
    weights = {n: whole(p) for n, p in trainer.model.named_parameters()}
    if trainer.is_world_process_zero():
        torch.save(weights, out / "weights.pt")
        (out / "log.json").write_text(json.dumps(trainer.state.log_history))
    calls = [{"prompts": c["prompts"], "ids": c["ids"]} for c in recorder.calls]
    (out / f"calls{rank}.json").write_text(json.dumps(calls))
    (out / f"passes{rank}.json").write_text(json.dumps(len(passes)))
    (out / f"received{rank}.json").write_text(json.dumps(len(received)))
    (out / f"packs{rank}.json").write_text(json.dumps(trainer.updater.forward.is_fast))
    return rank


def threads() -> list[str]:
    """The names of this process's threads; Linux only. It lists one for a moment after another thread has seen it end."""
    names = []
    for task in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            head, _, numbers = task.read_text().rpartition(")")
            if not int(numbers.split()[6]) & PF_EXITING:
                names.append(head.partition("(")[2])
    return names


def work_for_ever(jobs: Path) -> None:
    """Take `JOBS/0.json`, `JOBS/1.json`, …, and leave beside each what went wrong on this process, or nothing."""
    (jobs / f"worker.{os.getpid()}.pid").touch()
    gc.freeze()  # each training ends with a collection, which would look through all that was imported
    for number in itertools.count():
        job = jobs / f"{number}.json"
        while not job.exists():
            time.sleep(0.01)
        folder, out, settings = json.loads(job.read_text())
        fault = ""
        try:
            work(folder, Path(out), settings)
        except BaseException:
            fault = traceback.format_exc()
        done = jobs / f"{number}.rank{PartialState().process_index}"
        draft = done.with_name(f"{done.name}.part")  # each process its own
        draft.write_text(fault)
        draft.rename(done)


if __name__ == "__main__":
    resolving.computes_bf16 = lambda on_cpu: True  # emulated where the processor has none
    if len(sys.argv) == 2:
        work_for_ever(Path(sys.argv[1]))
    rank = work(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
    collected: list[list[str]] = []
    gc.callbacks.append(lambda phase, _: collected.append(threads()) if phase == "stop" else None)
    end_processes()
    gc.callbacks.clear()
    (Path(sys.argv[2]) / f"threads{rank}.json").write_text(json.dumps([collected[-1], threads()]))
    # FSDP2 keeps its groups, and one of gloo's threads that lets go of a tensor late aborts an interpreter that ends.
    os._exit(0)
