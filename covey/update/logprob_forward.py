"""A causal model's forward pass that returns log-probabilities instead of logits.

Wrappers for training (DDP, FSDP, adapters, autocast) act on the model's own `forward`. So it is replaced: called with
`logprob_request=`, the forward pass runs the body, picks the hidden states that predict a completion token, and takes them
through the head in chunks; called without, it is the original. All hooks of all wrappers hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from covey.kernels.head_logprobs import LogitForm, chunk_rows, chunked_logprobs
from covey.models.balancing import balancing_loss
from covey.models.inspect import compute_dtype

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from covey.update.view import Shown


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
    counts: Tensor | None = None
    """How often each position counts in the loss that balances a mixture's experts, shape (positions,); None: it is not asked for."""


def body_and_head(causal: nn.Module) -> tuple[Any, Any]:
    """Return the parts of a causal model that can be called one after the other; None for one that it does not have."""
    body = getattr(causal, getattr(causal, "base_model_prefix", "") or "model", None)
    get_head = getattr(causal, "get_output_embeddings", None)
    return body, None if get_head is None else get_head()


def logprob_forward(
    self: Any,
    *args: object,
    logprob_request: LogprobRequest | None = None,
    shown: Shown | None = None,
    **kwargs: Any,
) -> object:
    """Return log-probabilities and entropies, each of shape (tokens,), or the original output without a request.

    Where the request has counts, the balancing loss comes third, a scalar. Pictures that are shown are encoded here, so that the
    hooks of all wrappers hold for the tower too.
    """
    if shown is not None:
        kwargs |= shown.arguments(self)
        if (nothing := shown.nothing(self)) is not None:
            return _plus(logprob_forward(self, *args, logprob_request=logprob_request, **kwargs), nothing)
    if logprob_request is None:
        return type(self).forward(self, *args, **kwargs)
    request = logprob_request
    given = {name: value for name, value in kwargs.items() if value is not None}
    body, head = body_and_head(self)
    routing = {} if request.counts is None else {"output_router_logits": True}
    output = body(**given, **request.body_arguments, **routing)
    picked = output.last_hidden_state.flatten(0, 1)[request.predicts]  # (tokens, hidden)
    form, text = logit_form(self.config, request.temperature), self.config.get_text_config()
    numbers = head_logprobs(head, picked, request.targets, form, text.vocab_size)
    if request.counts is None:
        return numbers
    return *numbers, balancing_loss(output.router_logits, text.num_experts_per_tok, request.counts)


def _plus(output: Any, nothing: Tensor) -> object:
    """Return the result of a forward pass that hangs on `nothing` too, which is 0."""
    if isinstance(output, tuple):
        return output[0] + nothing, *output[1:]
    output.logits = output.logits + nothing.to(output.logits.dtype)
    return output


def head_logprobs(
    head: nn.Module, hidden: Tensor, targets: Tensor, form: LogitForm, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies, two float32 tensors of shape (tokens,), by the model's own head.

    A plain linear head goes through the chunked function; one that an adapter has wrapped is called as it is, chunk by
    chunk, and run again in the backward pass.

    Args:
        hidden: shape (tokens, hidden).
        targets: ids, shape (tokens,).
        vocabulary: number of logits.
    """
    if type(head) is nn.Linear:
        hidden = hidden.to(compute_dtype(hidden.device, head.weight.dtype))
        return chunked_logprobs(hidden, head.weight, head.bias, targets, form)
    chunks = zip(*(x.split(chunk_rows(vocabulary)) for x in (hidden, targets)), strict=True)
    parts = [checkpoint(_logprobs_of, head, h, t, form, use_reentrant=False) for h, t in chunks]
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
