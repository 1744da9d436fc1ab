"""Weights of a checkpoint under other names than the policy has for them.

transformers writes some architectures as their makers published them (vision-language models, mixtures of experts), and translates when
a model is loaded by `from_pretrained`. Its Trainer reads the file without that when a run goes on: it would leave those weights at their
start, with a line in the log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from covey.errors import CheckpointError


def load_renamed(folder: Path, policy: Any) -> bool:
    """Load the weights of a checkpoint into a policy, where they have other names there.

    Returns:
        False where the names are the same, or no whole model is in the folder: nothing was loaded.

    Raises:
        CheckpointError: the checkpoint has not all of the weights.
    """
    if not isinstance(policy, PreTrainedModel) or names_in(folder) <= set(policy.state_dict()):
        return False
    saved: Any = type(policy)
    whole, told = saved.from_pretrained(folder, dtype="auto", output_loading_info=True)
    if told["missing_keys"]:
        raise CheckpointError(
            f"{folder} lacks weights of the policy, such as {min(told['missing_keys'])}. Resume from another checkpoint, or with the "
            "release of transformers that wrote it."
        )
    policy.load_state_dict(whole.state_dict())
    return True


def names_in(folder: Path) -> set[str]:
    """Return the names of the weights in a folder; empty where there are none of a whole model."""
    index, single = folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_NAME
    if index.exists():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    if not single.exists():
        return set()
    with safe_open(single, "pt") as file:
        return set(file.keys())
