"""Write docs/hardware.md: which model trains on which GPU, by the forecast that `covey plan` makes.

    python tools/hardware_page.py

tests/docs/test_hardware_page.py holds the page against the forecast.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hardware.md"
sys.path.insert(0, str(ROOT))

from covey.forecast.fitting import RESERVE, on_gpu  # noqa: E402
from covey.forecast.memory import Demand, Sizes  # noqa: E402

GIB = 2**30
CARDS = (8, 12, 16, 24, 40, 48, 80)
"""GiB of cards that are sold."""
ENDLESS = 2**20
"""GiB of a card that bounds nothing, for what no card holds."""
RANK = 16


class Shape(NamedTuple):
    """Widths of a model, from its published config."""

    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool


SHAPES = {
    "SmolLM2-135M": Shape(30, 576, 1536, 576, 192, 49152, True),
    "Qwen2.5-0.5B": Shape(24, 896, 4864, 896, 128, 151936, True),
    "Qwen2.5-1.5B": Shape(28, 1536, 8960, 1536, 256, 151936, True),
    "Qwen2.5-3B": Shape(36, 2048, 11008, 2048, 256, 151936, True),
    "Qwen3-4B": Shape(36, 2560, 9728, 4096, 1024, 151936, True),
    "Qwen2.5-7B": Shape(28, 3584, 18944, 3584, 512, 152064, False),
    "Llama-3.1-8B": Shape(32, 4096, 14336, 4096, 1024, 128256, False),
    "Qwen2.5-14B": Shape(48, 5120, 13824, 5120, 1024, 152064, False),
    "Qwen2.5-32B": Shape(64, 5120, 27648, 5120, 1024, 152064, False),
}

DEMAND = Demand(completions=8, group=8, sampled=64, prompt_tokens=256, completion_tokens=512, compute_bytes=2)

METHODS = {
    "full": replace(DEMAND),
    "full, bf16 weights, 8-bit Adam": replace(DEMAND, weight_bytes=2, trained_bytes=2, optimizer_bytes=2),
    "LoRA, bf16 weights": replace(DEMAND, weight_bytes=2),
    "QLoRA, 4 bits": replace(DEMAND, quantised_bytes=0.516),
}

HEAD = """\
# Which model on which GPU

GiB of one GPU at the fullest moment of a step, by the forecast that `covey plan` makes, and the smallest card (of {cards} GiB) that
holds it; {reserved} GiB for CUDA itself is among it. One process; 8 completions per forward pass and 64 sampled at once, prompts of 256
and completions of 512 tokens, `gradient_checkpointing`, no reference (`beta=0`).

"""

FOOT = """
**full**: float32 weights, AdamW, `bf16=True`; the sampler has a copy of the weights in bfloat16. **LoRA**: rank {rank} on all linear layers.
**QLoRA**: the same over 4-bit weights; needs `pip install 'covey[quantization]'`.

These are sums, not measurements. Ask for your own run, nothing is loaded for it:

    covey plan recipe.yaml --gpu 24        # fits or not, by how much, and what would fit

What lowers it: a smaller `per_device_train_batch_size` or `max_tokens_per_forward`, shorter completions, fewer completions sampled at
once, an adapter, 4-bit weights; several GPUs with FSDP2 or ZeRO-3 ([Several processes](distributed.md)). [Memory](memory.md) says what each part is.

Without a GPU: the bundled policy, and models up to some 500 million weights with patience. SmolLM2-135M takes 8 s a step on two cores
([figures](memory.md#figures)).

This page is made from the forecast: `python tools/hardware_page.py`.
"""


def sizes(shape: Shape, method: str) -> Sizes:
    """Return the sizes of a model that is trained by a method."""
    linear = {
        "q": (shape.hidden, shape.queries), "k": (shape.hidden, shape.keys), "v": (shape.hidden, shape.keys),
        "o": (shape.queries, shape.hidden), "gate": (shape.hidden, shape.intermediate),
        "up": (shape.hidden, shape.intermediate), "down": (shape.intermediate, shape.hidden),
    }  # fmt: skip
    in_layers = shape.layers * sum(a * b for a, b in linear.values())
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    adapter = shape.layers * RANK * sum(a + b for a, b in linear.values()) if "LoRA" in method else 0
    weights = in_layers + embeddings + adapter
    return Sizes(
        weights=weights,
        trained=adapter or weights,
        quantised=in_layers if "4 bits" in method else 0,
        layers=shape.layers,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        queries=shape.queries,
        keys=shape.keys,
        vocabulary=shape.vocabulary,
    )


def cell(shape: Shape, method: str) -> str:
    """Return GiB on the smallest card that holds them, and that card."""
    for card in (*CARDS, ENDLESS):
        needed = on_gpu(sizes(shape, method), METHODS[method], card * GIB) / GIB
        if needed <= card < ENDLESS:
            return f"{needed:.1f} → {card} GiB"
    return f"{needed:.0f} → several"


def page() -> str:
    """Return the whole page."""
    lines = [f"| | {' | '.join(METHODS)} |", "| --- " * (len(METHODS) + 1) + "|"]
    for name, shape in SHAPES.items():
        lines.append(f"| {name} | " + " | ".join(cell(shape, method) for method in METHODS) + " |")
    head = HEAD.format(cards=", ".join(map(str, CARDS)), reserved=RESERVE // GIB)
    return head + "\n".join(lines) + "\n" + FOOT.format(rank=RANK)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
