"""Bytes that each phase of a step holds, reckoned from sizes and settings. Pure; all of one process.

What a layer keeps for the backward pass was counted tensor by tensor (`tests/forecast/test_memory.py` counts again):
per token, 6 float32 numbers per hidden unit (two RMS norms and the residual stream) and, at lower precision, their cast;
2 numbers per unit of the queries (rotated, and the output) and of the keys (rotated, and the values);
4 numbers per unit of the MLP (gate, up, activation, product). With checkpointing a layer keeps its input alone, and one
layer at a time is computed again. With offloading what is kept goes to the host's memory, but for the layer at work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from covey.forecast.seeing import PictureDemand, Tower, features, on_device, tower_activations, tower_layer

LOGITS = 32 * 2**20
"""Float32 logits that meet the loss at a time; see `covey.kernels.head_logprobs`."""
KEPT = 256 * 2**20
"""What the forward pass keeps of the soft-max for the backward pass at most; see `covey.kernels.head_logprobs`."""
LEAST_OFFLOADED = 2**20
"""Bytes of the smallest tensor that is offloaded; see `covey.update.activation_offload`."""
LOGITS_COPIES = 3
"""Tensors of that size during the backward pass of a chunk."""
SLOTS = 512
"""Completions that are decoded together at most."""
LOOKED_AT = 2048
"""Tokens of pictures that the sampler's tower reads at once; see `covey.sample.native.engine`."""
DECODED_COPIES = 3
"""Float32 tensors of the size of a step's logits while tokens are drawn."""

OPTIMIZERS = {
    "adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2, "adafactor": 0, "sgd": 0, "adagrad": 4,
    "rmsprop": 4, "lion_32bit": 4, "lion_8bit": 1,
}  # fmt: skip
"""Bytes of state per trained weight of some optimizers; any other keeps two float32 numbers, as Adam does."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of a model: weights, layers and widths; of one that sees, those of its decoder."""

    weights: int
    trained: int
    quantised: int
    """Weights that are kept in 4 or 8 bits."""
    layers: int
    hidden: int
    intermediate: int
    queries: int
    """Heads times their width."""
    keys: int
    """Key heads times their width."""
    vocabulary: int
    tower: Tower | None = None
    """What looks at pictures; None: the policy is shown none."""

    @property
    def parts(self) -> tuple[Sizes | Tower, ...]:
        """The decoder, and what looks at pictures."""
        return (self,) if self.tower is None else (self, self.tower)


@dataclass(frozen=True)
class Demand:
    """Demands of a run on the memory of one process."""

    completions: int
    """Per micro-batch and process."""
    group: int
    """Completions per prompt."""
    sampled: int
    """Completions that a process samples at once; 0: servers do, elsewhere."""
    prompt_tokens: int
    completion_tokens: int
    weight_bytes: int = 4
    """Of a weight that is neither trained nor quantised."""
    trained_bytes: int = 4
    """Of a trained weight and its gradient; an adapter has float32 also over weights in bfloat16."""
    compute_bytes: int = 4
    quantised_bytes: float = 0.0
    """Of a quantised weight, its constants included."""
    optimizer_bytes: int = 8
    """Per trained weight."""
    is_checkpointed: bool = True
    has_reference: bool = False
    is_cpu: bool = False
    budget: int | None = None
    """Bytes that keys and values may take; None: as much as they need."""
    max_tokens: int | None = None
    """Tokens that a forward pass may read, see `covey.update.oom_retry`; None: a whole micro-batch."""
    is_offloaded: bool = False
    """Whether activations wait in the host's memory."""
    shown: PictureDemand | None = None
    """Pictures of the prompt with most of them; None: prompts are text."""

    @property
    def prompts_sampled(self) -> int:
        """Prompts that a process samples at once."""
        return math.ceil(self.sampled / self.group)

    @property
    def prompts_read(self) -> int:
        """Prompts of a forward pass."""
        most = max(1, (self.packed_tokens - self.completion_tokens) // self.prompt_tokens)
        return min(math.ceil(self.completions / self.group), most)

    @property
    def packed_tokens(self) -> int:
        """Tokens of a forward pass, prompts counted once per group. One completion always has its prompt."""
        written = self.completions * self.completion_tokens
        whole = math.ceil(self.completions / self.group) * self.prompt_tokens + written
        if self.max_tokens is None:
            return whole
        return min(whole, max(self.max_tokens, self.prompt_tokens + self.completion_tokens))

    @property
    def scored_tokens(self) -> int:
        """Tokens of a forward pass that meet the vocabulary."""
        return min(self.completions * self.completion_tokens, self.packed_tokens - self.prompt_tokens)


Parts = Mapping[str, float]
"""Bytes by what holds them."""


def phases(sizes: Sizes, demand: Demand) -> dict[str, Parts]:
    """Return bytes by phase and part. `always` is held in every phase and is not repeated in the others."""
    always = {
        "weights": _weights(sizes, demand),
        "optimizer": float(sizes.trained * demand.optimizer_bytes),
        "reference": float(
            sum(part.trained for part in sizes.parts) * demand.trained_bytes * demand.has_reference
        ),
    }
    sample = {"drawing tokens": min(demand.sampled, SLOTS) * sizes.vocabulary * 4.0 * DECODED_COPIES}
    update = {
        "gradients": sizes.trained * demand.trained_bytes,
        "activations": _activations(sizes, demand),
        "vocabulary": _head(sizes, demand),
        "weights at lower precision": sum(_casts(part, demand) for part in sizes.parts),
    }
    # Captured graphs keep both from step to step; without them both are given back before the update.
    held = sample if demand.is_cpu else always
    held |= {"sampler's copy of the weights": _copy(sizes, demand), "keys and values": _cache(sizes, demand)}
    found = {"always": always, "sample": sample, "update": update}
    for name, more in _seen(sizes, demand).items():
        found[name] |= more
    return {name: {part: b for part, b in parts.items() if b} for name, parts in found.items()}


def totals(parts: Mapping[str, Parts]) -> dict[str, float]:
    """Return the bytes that each phase comes to, those that are always held included."""
    always = sum(parts["always"].values())
    return {name: always + sum(held.values()) for name, held in parts.items() if name != "always"}


def peak(sizes: Sizes, demand: Demand) -> float:
    """Return the most bytes that a step comes to."""
    return max(totals(phases(sizes, demand)).values())


def layer_bytes(sizes: Sizes, compute_bytes: int) -> float:
    """Return the bytes per token that one layer keeps for the backward pass."""
    is_lowered = compute_bytes < 4
    norms = (24 + compute_bytes * is_lowered) * sizes.hidden
    attention = 2 * compute_bytes * (sizes.queries + sizes.keys)
    return norms + attention + 4 * compute_bytes * sizes.intermediate


def _seen(sizes: Sizes, demand: Demand) -> dict[str, Parts]:
    """Return what a policy that sees holds besides, by phase and part; nothing of one that reads text alone."""
    if (tower := sizes.tower) is None:
        return {}
    always = {"tower": _weights(tower, demand) + tower.trained * demand.optimizer_bytes}
    update: dict[str, float] = {"tower's gradients": tower.trained * demand.trained_bytes}
    if (shown := demand.shown) is None:
        return {"always": always, "update": update}
    if demand.is_cpu:  # elsewhere they are the host's
        always["pixels"] = float(shown.held)
    precisions, sample = (demand.weight_bytes, demand.compute_bytes), dict[str, float]()
    if demand.sampled:
        together = min(demand.prompts_sampled, max(1, LOOKED_AT // max(1, shown.tokens)))
        sample["tower's activations"] = together * tower_layer(tower, shown, *precisions)
        sample["features of pictures"] = demand.prompts_sampled * features(tower, shown, sizes.hidden, 4)
    work = tower_activations(tower, shown, *precisions, demand.is_checkpointed)
    update["tower's activations"] = demand.prompts_read * (work + on_device(shown, demand.compute_bytes))
    # Of a tower that is not trained they are made once, and kept until all passes have had them.
    kept = demand.prompts_read if tower.trained else demand.prompts_sampled
    update["features of pictures"] = kept * features(tower, shown, sizes.hidden, demand.compute_bytes)
    return {"always": always, "sample": sample, "update": update}


def _weights(sizes: Sizes | Tower, demand: Demand) -> float:
    """Return the bytes of the weights of a part of the policy."""
    frozen = sizes.weights - sizes.quantised - sizes.trained
    plain = frozen * demand.weight_bytes + sizes.trained * demand.trained_bytes
    return plain + sizes.quantised * demand.quantised_bytes


def _casts(sizes: Sizes | Tower, demand: Demand) -> float:
    """Return the bytes of the weights that autocast holds at lower precision until the forward pass is over."""
    frozen = sizes.weights - sizes.quantised - sizes.trained
    cast = frozen * (demand.compute_bytes < demand.weight_bytes)
    cast += sizes.trained * (demand.compute_bytes < demand.trained_bytes)
    return float(cast * demand.compute_bytes)


def _copy(sizes: Sizes, demand: Demand) -> float:
    """Return the bytes of the sampler's copy of the weights.

    On a GPU the sampler reads the policy's own weights where they have the precision that it computes in.
    """
    reads_in_place = not demand.is_cpu and demand.weight_bytes == demand.compute_bytes and not sizes.quantised
    adapted = sizes.trained < sizes.weights
    if reads_in_place and not adapted:
        return 0.0
    head = 0 if demand.is_cpu and demand.compute_bytes == demand.weight_bytes else sizes.vocabulary
    shared = (sizes.vocabulary - head) * sizes.hidden  # the embedding is read where it is
    return float(max(0, sizes.weights - shared) * demand.compute_bytes) if demand.sampled else 0.0


def _cache(sizes: Sizes, demand: Demand) -> float:
    """Return the bytes of keys and values, within their budget."""
    per_token = 2 * sizes.layers * sizes.keys * demand.compute_bytes
    rows = min(demand.sampled, SLOTS)
    prompts = math.ceil(rows / demand.group) if demand.is_cpu else rows  # shared by a group on a CPU
    needed = float(per_token * (prompts * demand.prompt_tokens + rows * demand.completion_tokens))
    return needed if demand.budget is None else min(needed, float(demand.budget))


def _activations(sizes: Sizes, demand: Demand) -> float:
    """Return the bytes of activations on the device: the layer at work, and those that are kept."""
    layer = demand.packed_tokens * layer_bytes(sizes, demand.compute_bytes)
    working = 2 * layer  # one layer, and its gradients
    if offloaded(sizes, demand):
        return working
    return _kept(sizes, demand) + (working if demand.is_checkpointed else 0.0)


def _kept(sizes: Sizes, demand: Demand) -> float:
    """Return the bytes that all layers keep until the backward pass."""
    residual = demand.weight_bytes * sizes.hidden  # the stream has the precision of the weights
    layer = residual if demand.is_checkpointed else layer_bytes(sizes, demand.compute_bytes)
    return float(demand.packed_tokens * layer * sizes.layers)


def offloaded(sizes: Sizes, demand: Demand) -> float:
    """Return the bytes that wait in the host's memory; 0 also where the tensors are too small to be moved."""
    stream = demand.packed_tokens * demand.weight_bytes * sizes.hidden
    if demand.is_cpu or not demand.is_offloaded or stream < LEAST_OFFLOADED:
        return 0.0
    return _kept(sizes, demand)


def _head(sizes: Sizes, demand: Demand) -> float:
    """Return the bytes of logits, of the soft-max that is kept, and of the head's gradient."""
    chunk = min(demand.scored_tokens * sizes.vocabulary * 4, max(LOGITS, 16 * sizes.vocabulary * 4))
    trains_head = sizes.trained == sizes.weights
    gradient = 4.0 * sizes.vocabulary * sizes.hidden if trains_head else 0.0
    kept = min(demand.scored_tokens * sizes.vocabulary * demand.compute_bytes, KEPT)
    return chunk * LOGITS_COPIES + kept + gradient
