"""Teaches a causal model to answer with log-probabilities instead of logits.

Wrappers for training (DDP, FSDP, adapters, autocast) act on the model's own `forward`. So the work is put there: called
with `scoring=`, the forward pass runs the body, picks the hidden states that predict a completion token, and takes them
through the head in chunks; called without, it is what it was. All hooks of all wrappers hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from covey.kernels.head_logprobs import chunked_logprobs
from covey.kernels.logits import Logits, chunk_rows
from covey.models.inspect import compute_dtype, innermost


@dataclass(frozen=True)
class Scoring:
    """What is asked of a forward pass."""

    predicts: Tensor
    """Which hidden state, of the flattened (rows × positions), predicts each target. Shape (tokens,)."""
    targets: Tensor
    """Token ids, shape (tokens,)."""
    temperature: float = 1.0
    body: Mapping[str, Any] = field(default_factory=dict)
    """More arguments for the body, such as the layout of a packed row."""


def teach(model: nn.Module) -> None:
    """Let the causal model inside `model` take `scoring=`. Called before it is wrapped for training."""
    causal: Any = innermost(model)
    causal.forward = MethodType(scoring_forward, causal)


def can_score(model: nn.Module) -> bool:
    """Whether the model has a body and a head that can be called one after the other."""
    causal: Any = innermost(model)
    head = causal.get_output_embeddings() if hasattr(causal, "get_output_embeddings") else None
    return isinstance(head, nn.Module) and isinstance(_body(causal), nn.Module)


def scoring_forward(self: Any, *args: Any, scoring: Scoring | None = None, **kwargs: Any) -> Any:
    if scoring is None:
        return type(self).forward(self, *args, **kwargs)
    given = {name: value for name, value in kwargs.items() if value is not None}
    hidden = _body(self)(**given, **scoring.body).last_hidden_state
    picked = hidden.flatten(0, 1)[scoring.predicts]
    return head_logprobs(self, picked, scoring.targets, scoring.temperature)


def head_logprobs(causal: Any, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies from hidden states, by the model's own head.

    A plain linear head goes through the chunked function; one that an adapter has wrapped is called as it is, chunk by
    chunk, and run again in the backward pass.
    """
    head = causal.get_output_embeddings()
    form = logit_form(causal.config, temperature)
    if type(head) is nn.Linear:
        return chunked_logprobs(
            hidden.to(compute_dtype(hidden.device, head.weight.dtype)), head.weight, head.bias, targets, form
        )
    rows = chunk_rows(causal.config.get_text_config().vocab_size)
    parts = [
        checkpoint(_by_head, head, hidden[i : i + rows], targets[i : i + rows], form, use_reentrant=False)
        for i in range(0, hidden.shape[0], rows)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def logit_form(config: Any, temperature: float) -> Logits:
    """Scale and cap that the architecture puts on its logits.

    What a config does not say in one of these words is found by comparing with the model's own forward pass.
    """
    text = config.get_text_config()
    scale = getattr(text, "logit_scale", None) or 1.0
    divisor = getattr(text, "logits_scaling", None) or 1.0
    cap = getattr(text, "final_logit_softcapping", None)
    return Logits(float(scale) / float(divisor), None if cap is None else float(cap), temperature)


def _by_head(head: nn.Module, hidden: Tensor, targets: Tensor, form: Logits) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(form.of(head(hidden)), -1)
    entropy = -(logp.exp() * logp.nan_to_num(neginf=0.0)).sum(-1)
    return logp.gather(-1, targets[:, None])[:, 0], entropy


def _body(causal: Any) -> Any:
    return getattr(causal, getattr(causal, "base_model_prefix", "") or "model", None)
