"""Figures of a device: how far the fast path is from the model, tokens per second beside transformers, peak memory.

The policy has random weights and the shape of a real one: speed does not depend on what the weights are, as long as
completions all have the same length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from covey.sample.native.engine import NativeEngine, selfcheck
from covey.sample.native.weights import weights_of
from covey.sample.sampling import Sampling
from covey.types import Prompt

Measured = dict[str, float]

REAL = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""SmolLM2-135M."""

TINY = {**REAL, "vocab_size": 512, "hidden_size": 72, "intermediate_size": 192, "num_hidden_layers": 2}


def policy(device: torch.device, shape: dict[str, Any]) -> Any:
    """Build a random policy in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(max_position_embeddings=4096, **shape)
    return LlamaForCausalLM(config).eval().to(device, torch.bfloat16)


def selfcheck_gaps(model: Any) -> list[tuple[str, float]]:
    """Mean gap of log-probabilities to the model's own, for each way to store prompts and weights."""
    device = next(model.parameters()).device
    gaps = []
    for in_place in (True, False):
        weights = weights_of(model, torch.bfloat16, in_place)
        for shares in (True, False):
            gap = selfcheck.gap(model, nullcontext, weights, shares, selfcheck.first_text(weights))
            name = (
                f"prompts {'shared' if shares else 'copied'}, weights {'in place' if in_place else 'copied'}"
            )
            gaps.append((name, gap))
            assert gap <= selfcheck.BOUND[torch.bfloat16], (device, name, gap)
    return gaps


def sampling(model: Any, group: int, prompt_tokens: int, new: int) -> dict[str, Measured]:
    """Tokens per second and peak memory of transformers and of the native engine; the second of two calls counts."""
    ids = [(7919 * i + 13) % model.config.vocab_size for i in range(prompt_tokens)]
    return {
        "transformers": _timed(model, _transformers(model, ids, group, new), group * new),
        "native": _timed(model, _native(model, ids, group, new), group * new),
    }


def _transformers(model: Any, ids: list[int], group: int, new: int) -> Callable[[], Any]:
    batch = torch.tensor([ids], device=model.device)
    options = {"do_sample": True, "top_k": 0, "num_return_sequences": group, "pad_token_id": 0}
    options |= {"max_new_tokens": new, "min_new_tokens": new, "attention_mask": torch.ones_like(batch)}
    return lambda: model.generate(batch, **options)


def _native(model: Any, ids: list[int], group: int, new: int) -> Callable[[], Any]:
    engine = NativeEngine(lambda _: "", path="fast")
    prompts = [Prompt("", tuple(ids))]

    def sample() -> None:
        engine.load(model)  # as after an update
        list(engine.generate(prompts, group, Sampling(new)))

    return sample


def _timed(model: Any, work: Callable[[], Any], tokens: int) -> Measured:
    work()
    is_cuda = model.device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    work()
    if is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**20 if is_cuda else float("nan")
    return {"tokens per second": tokens / seconds, "peak MB": peak}
