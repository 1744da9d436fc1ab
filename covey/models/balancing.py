"""The loss that balances the experts of a mixture: smallest where every expert gets as many tokens as any other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from covey.errors import warn
from covey.models.inference_mode import inference_mode
from covey.models.inspect import innermost, text_config


def balancing_coef(model: nn.Module, given: float | None) -> float:
    """Return what the balancing loss weighs: as given, or as the model's config says; 0 where the model has no such loss.

    Args:
        given: `router_aux_loss_coef` of the settings; None leaves it to the model's config.
    """
    own = getattr(text_config(model), "router_aux_loss_coef", None)
    coefficient = float((own or 0.0) if given is None else given)
    if coefficient <= 0 or (own is not None and has_balancing_loss(model)):
        return max(coefficient, 0.0)
    if given is not None:
        name = type(innermost(model)).__name__
        warn(f"router_aux_loss_coef={given} has no effect: {name} has no loss that balances experts.")
    return 0.0


def has_balancing_loss(model: nn.Module) -> bool:
    """Return whether the model reckons one, by a pass over two tokens: configs have the coefficient without experts, too."""
    causal = innermost(model)
    ids = torch.zeros((1, 2), dtype=torch.long, device=next(causal.parameters()).device)
    try:
        with inference_mode(causal):
            output = causal(input_ids=ids, attention_mask=torch.ones_like(ids), output_router_logits=True)
    except (
        Exception
    ):  # whatever somebody else's model raises where it has no experts, or does not know the argument
        return False
    return isinstance(getattr(output, "aux_loss", None), Tensor)


def balancing_loss(router_logits: Sequence[Tensor], chosen: int, counts: Tensor) -> Tensor:
    """Compute experts × Σ over experts of (tokens that an expert gets, per token) × (its mean probability), a scalar.

    Means are over the tokens of all layers together. Each of the `chosen` experts of a token gets all of it.

    Args:
        router_logits: one per layer, shape (tokens, experts) after flattening.
        counts: how often each token counts, shape (tokens,).
    """
    logits = torch.stack([layer.flatten(0, -2) for layer in router_logits])  # (layers, tokens, experts)
    shares = torch.softmax(logits, -1)
    is_chosen = torch.zeros_like(shares).scatter_(-1, shares.topk(chosen, -1).indices, 1.0)
    weights = (counts / (counts.sum() * len(logits))).to(logits.device)
    got, mean = (torch.einsum("lte,t->e", x.float(), weights) for x in (is_chosen, shares))
    return logits.shape[-1] * (got * mean).sum()
