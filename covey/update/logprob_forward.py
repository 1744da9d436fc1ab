"""A causal model's forward pass that returns log-probabilities instead of logits.

Wrappers for training (DDP, FSDP, adapters, autocast) act on the model's own `forward`. So it is replaced: called with
`logprob_request=`, the forward pass runs the body, picks the hidden states that predict a completion token, and takes them
through the head in chunks; called without, it is the original. All hooks of all wrappers hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from covey.kernels.head_logprobs import LogitForm, chunk_rows, chunked_logprobs
from covey.models.inspect import compute_dtype, innermost

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class LogprobRequest:
    """Tokens whose log-probabilities a forward pass returns."""

    predicts: Tensor
    """Index of the hidden state, of the flattened (rows × positions), that predicts each target. Shape (tokens,)."""
    targets: Tensor
    """Token ids, shape (tokens,)."""
    temperature: float = 1.0
    body_arguments: Mapping[str, object] = field(default_factory=dict)
    """More arguments for the body, such as the layout of a packed row."""


def install_logprob_forward(model: nn.Module) -> None:
    """Replace `forward` of the causal model inside `model` by `logprob_forward`, before it is wrapped for training."""
    causal = innermost(model)
    causal.forward = MethodType(logprob_forward, causal)


def has_body_and_head(model: nn.Module) -> bool:
    """Return whether the model has a body and a head that can be called one after the other."""
    causal: Any = innermost(model)
    head = causal.get_output_embeddings() if hasattr(causal, "get_output_embeddings") else None
    return isinstance(head, nn.Module) and isinstance(_body(causal), nn.Module)


def logprob_forward(
    self: Any, *args: object, logprob_request: LogprobRequest | None = None, **kwargs: object
) -> object:
    """Return log-probabilities and entropies, each of shape (tokens,), or the original output without a request."""
    if logprob_request is None:
        return type(self).forward(self, *args, **kwargs)
    request = logprob_request
    given = {name: value for name, value in kwargs.items() if value is not None}
    hidden = _body(self)(**given, **request.body_arguments).last_hidden_state  # (rows, positions, hidden)
    picked = hidden.flatten(0, 1)[request.predicts]  # (tokens, hidden)
    form = logit_form(self.config, request.temperature)
    vocabulary = self.config.get_text_config().vocab_size
    return head_logprobs(self.get_output_embeddings(), picked, request.targets, form, vocabulary)


def _body(causal: nn.Module) -> Any:
    return getattr(causal, getattr(causal, "base_model_prefix", "") or "model", None)


def head_logprobs(
    head: nn.Module, hidden: Tensor, targets: Tensor, form: LogitForm, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies from hidden states, by the model's own head.

    A plain linear head goes through the chunked function; one that an adapter has wrapped is called as it is, chunk by
    chunk, and run again in the backward pass.

    Args:
        hidden: shape (tokens, hidden).
        targets: ids, shape (tokens,).
        vocabulary: number of logits.

    Returns:
        Two float32 tensors of shape (tokens,).
    """
    if type(head) is nn.Linear:
        hidden = hidden.to(compute_dtype(hidden.device, head.weight.dtype))
        return chunked_logprobs(hidden, head.weight, head.bias, targets, form)
    rows = chunk_rows(vocabulary)
    parts = [
        checkpoint(_logprobs_of, head, hidden[i : i + rows], targets[i : i + rows], form, use_reentrant=False)
        for i in range(0, hidden.shape[0], rows)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _logprobs_of(head: nn.Module, hidden: Tensor, targets: Tensor, form: LogitForm) -> tuple[Tensor, Tensor]:
    """Compute both of one chunk, without a kernel: a function that `checkpoint` can call."""
    logp = torch.log_softmax(form.logits(head(hidden)), -1)  # (rows, vocab)
    entropy = -(logp.exp() * logp.nan_to_num(neginf=0.0)).sum(-1)
    return logp.gather(-1, targets[:, None])[:, 0], entropy


def logit_form(config: PretrainedConfig, temperature: float) -> LogitForm:
    """Read the scale and cap that the architecture puts on its logits from the model's configuration.

    Other names in a config are not known here; `Forward` finds the difference when it compares with the model's own pass.
    """
    text = config.get_text_config()
    scale = getattr(text, "logit_scale", None) or 1.0
    divisor = getattr(text, "logits_scaling", None) or 1.0
    cap = getattr(text, "final_logit_softcapping", None)
    return LogitForm(float(scale) / float(divisor), None if cap is None else float(cap), temperature)
