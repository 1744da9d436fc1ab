"""Model → log-probability and entropy of every completion token.

The plain way: one row per completion, padded on the right, logits only where a completion is predicted. Old, new and
reference log-probabilities are all computed here, at the sampling temperature, with the soft-max in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from covey.causal import accepted_arguments
from covey.update.batch import MicroBatch


def token_logprobs(model: nn.Module, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token, and the entropy of the distribution it was drawn from.

    Args:
        model: the causal model, possibly wrapped for training.
        temperature: logits are divided by it.

    Returns:
        Two float32 tensors of shape (tokens,); the second carries no gradient.
    """
    starts = [len(p) for p in batch.prompts]
    first, last = min(starts) - 1, max(s + n for s, n in zip(starts, batch.lengths, strict=True)) - 1
    logits = _logits(model, batch, first, last)
    picked = [
        logits[i, s - 1 - first :][:n] for i, (s, n) in enumerate(zip(starts, batch.lengths, strict=True))
    ]
    logprobs = torch.log_softmax(torch.cat(picked).float() / temperature, -1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).nan_to_num().sum(-1)
    return logprobs.gather(-1, batch.targets[:, None])[:, 0], entropy


def _logits(model: nn.Module, batch: MicroBatch, first: int, last: int) -> Tensor:
    """Logits at the positions `first` to `last - 1` of every row; shape (rows, last - first, vocab)."""
    device = batch.mask.device
    ids = [[*p, *c] for p, c in zip(batch.prompts, batch.completions, strict=True)]
    width = max(map(len, ids))
    mask = torch.tensor([[1] * len(i) + [0] * (width - len(i)) for i in ids], device=device)
    arguments: dict[str, Any] = {
        "input_ids": torch.tensor([i + [0] * (width - len(i)) for i in ids], device=device),
        "attention_mask": mask,
        "use_cache": False,
    }
    accepted = accepted_arguments(model)
    if "position_ids" in accepted:
        arguments["position_ids"] = torch.arange(width, device=device).expand(len(ids), -1)
    if "logits_to_keep" in accepted:
        arguments["logits_to_keep"] = torch.arange(first, last, device=device)
        kept: Tensor = model(**arguments).logits
        return kept
    every: Tensor = model(**arguments).logits
    return every[:, first:last]
