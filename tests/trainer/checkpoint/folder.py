"""A small checkpoint on the disk, as a run writes one."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from covey.trainer.checkpoint.manifest import write_manifest


def written(run: Path, step: int, manifest: bool = True) -> Path:
    folder = run / f"checkpoint-{step}"
    (folder / "covey").mkdir(parents=True)
    save_file({"w": torch.arange(6.0) + step}, folder / "model.safetensors")
    torch.save({"step": step}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "covey" / "run0.json").write_text("{}")
    if manifest:
        write_manifest(folder, step)
    return folder
