"""Whether a run fits a GPU of a given size, by the sum of `covey.forecast.memory`, and what would fit if it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from covey.errors import CoveyError
from covey.forecast.memory import Demand, Sizes, peak, phases
from covey.forecast.sizes import PromptLengths, demand_of, sizes_of
from covey.plan import Plan
from covey.recipes import Recipe
from covey.sample.native.memory_budget import SHARE

RESERVE = 2**30
"""Bytes of a GPU that CUDA, its kernels and the allocator's gaps take beside the tensors."""

Values = Mapping[str, Mapping[str, object]]
LORA: Values = {"model": {"use_peft": True, "lora_target_modules": "all-linear"}}
FOUR_BITS: Values = {"model": {**LORA["model"], "load_in_4bit": True, "use_bnb_nested_quant": True}}
FROZEN: Values = {"train": {"freeze_vision_tower": True, "freeze_projector": True}}
ONE: Values = {"train": {"per_device_train_batch_size": 1}}
CHANGES: Mapping[str, Values] = {
    "a LoRA adapter": LORA,
    "bf16 weights and 8-bit Adam": {"model": {"dtype": "bfloat16"}, "train": {"optim": "adamw_8bit"}},
    "one completion per forward pass": ONE,
    "a LoRA adapter on a 4-bit model": FOUR_BITS,
    "a LoRA adapter on a 4-bit model, one completion per forward pass": {**FOUR_BITS, **ONE},
}
"""What makes a run smaller, from what changes least: values by section of the recipe."""


@dataclass(frozen=True)
class Fit:
    """The need of one process beside the size of a GPU, in bytes."""

    needed: float
    """With what CUDA takes."""
    size: float
    instead: Mapping[str, float]
    """What the changes would come to, by name; nothing where the run fits as it is."""

    @property
    def fits(self) -> bool:
        return self.needed <= self.size


def fit(recipe: Recipe, plan: Plan, lengths: PromptLengths | int, size: float) -> Fit:
    """Return whether a recipe fits a GPU of `size` bytes; where it does not, what each of `changes_for` would come to.

    Raises:
        CoveyError: the model's config cannot be read.
    """
    need = needed(recipe, plan, lengths, size)
    instead = {}
    for name, (values, then) in changes_for(lengths).items() if need > size else ():
        try:
            instead[name] = needed(recipe.replaced(**values), plan, then, size)
        except CoveyError:  # a change that this recipe cannot have
            continue
    return Fit(need, size, {name: bytes for name, bytes in instead.items() if bytes < need})


def changes_for(lengths: PromptLengths | int) -> dict[str, tuple[Values, PromptLengths | int]]:
    """Return what makes a run smaller, by name: values by section of the recipe, and the lengths of the prompts then."""
    changes: dict[str, tuple[Values, PromptLengths | int]] = {n: (v, lengths) for n, v in CHANGES.items()}
    if isinstance(lengths, int) or lengths.pictures is None:
        return changes
    changes["a frozen tower and projector"] = FROZEN, lengths
    if (smaller := lengths.with_smaller_pictures()) is not None:
        limit, then = smaller
        changes[f"max_pixels={limit}"] = {"train": {"max_pixels": limit}}, then
    return changes


def needed(recipe: Recipe, plan: Plan, lengths: PromptLengths | int, size: float) -> float:
    """Return the bytes that a recipe comes to on a GPU of `size` bytes, CUDA's included."""
    return on_gpu(sizes_of(recipe), demand_of(recipe, plan, lengths), size)


def on_gpu(sizes: Sizes, demand: Demand, size: float) -> float:
    """Return the bytes that a step comes to on a GPU of `size` bytes, CUDA's included: it fits where they are no more.

    The cache of keys and values takes its share of what the weights and the optimizer leave, as in a run.
    """
    there = replace(demand, is_cpu=False)
    held = sum(phases(sizes, replace(there, budget=0))["always"].values())
    budget = int(max(0.0, SHARE * (size - RESERVE - held)))
    return peak(sizes, replace(there, budget=budget)) + RESERVE
