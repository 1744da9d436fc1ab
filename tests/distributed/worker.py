"""Runs on every process of `accelerate launch`: trains a tiny policy and leaves what it did.

worker.py FOLDER OUT JSON-SETTINGS
"""

import json
import sys
from pathlib import Path

import torch

from tests.trainer.harness import Recorder, make, rows


def by_ids(completion_ids):
    return [float((sum(ids) + len(ids)) % 5) for ids in completion_ids]


def work(folder: str, out: Path, settings: dict) -> None:
    recorder = Recorder(by_ids)
    adapter = settings.pop("lora", None)
    if adapter:
        from peft import LoraConfig

        settings["peft_config"] = LoraConfig(r=4, target_modules=["q_proj"])
    resume = settings.pop("resume", None)
    trainer = make(folder, out / "run", recorder, rows(16), **settings)
    trainer.train(resume_from_checkpoint=resume)
    rank = trainer.args.process_index
    if trainer.is_world_process_zero():
        torch.save({n: p.detach() for n, p in trainer.model.named_parameters()}, out / "weights.pt")
        (out / "log.json").write_text(json.dumps(trainer.state.log_history))
    calls = [{"prompts": c["prompts"], "ids": c["ids"]} for c in recorder.calls]
    (out / f"calls{rank}.json").write_text(json.dumps(calls))


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
