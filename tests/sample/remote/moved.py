"""What tests of servers send and ask: weights that have moved, an adapter, a prompt."""

import json

from peft import LoraConfig
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from covey.types import Prompt

PROMPT = Prompt("", tuple(range(20, 40)), seed_key=(3,))
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def moved(folder, to, change=lambda name, tensor: -tensor, keep=lambda name: True):
    """A folder with the policy's weights changed; only those that are kept are in it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tensors = {n: change(n, t).contiguous() for n, t in model.state_dict().items() if keep(n)}
    to.mkdir()
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    part = any(n not in tensors for n in model.state_dict())
    (to / "manifest.json").write_text(json.dumps({"files": {}, "is_part": part}))
    return to
