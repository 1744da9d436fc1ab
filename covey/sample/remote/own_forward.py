"""The trainer's own log-probabilities of a text, which a server's are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from covey.models.inference_mode import Autocast, inference_mode
from covey.sample.native.draw import NEVER, keep_min_p, keep_top_k, keep_top_p, penalize_repetition
from covey.sample.native.logits_processors import NOTHING, Restrictions
from covey.sample.sampling import Sampling


def own_logits(policy: nn.Module, ids: Sequence[int], autocast: Autocast) -> Tensor:
    """Return the logits behind each id of a text, shape (ids, vocab), float32. Collective where the policy is sharded."""
    device = next(policy.parameters()).device
    with inference_mode(policy) as model, autocast():
        logits: Tensor = model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False).logits
    for module in policy.modules():
        if isinstance(
            module, FSDPModule
        ):  # the outermost keeps whole weights otherwise, whatever happens to its shards
            module.reshard()
    return logits[0].float()


def own_logprobs(policy: nn.Module, ids: Sequence[int], autocast: Autocast) -> Tensor:
    """Return the log-probability of each id but the first, shape (ids - 1,), float64, on the CPU."""
    logits = own_logits(policy, ids, autocast)[:-1]
    picked = torch.tensor(list(ids[1:]), device=logits.device)[:, None]
    return torch.log_softmax(logits.double(), -1).gather(-1, picked)[:, 0].cpu()


def drawn_logprobs(logits: Tensor, prompt: Sequence[int], ids: Sequence[int], settings: Sampling) -> Tensor:
    """Return the log-probability of each id of a completion under the distribution that the settings draw from.

    Args:
        logits: where each of the ids is drawn, shape (ids, vocab).

    Returns:
        Shape (ids,), float64, on the CPU; minus infinity for an id that cannot be drawn.
    """
    text, count = [*prompt, *ids], len(ids)
    rows = [[*text[: len(prompt) + n], *[NOTHING] * (count - n)] for n in range(count)]
    tokens = torch.tensor(rows, device=logits.device)
    written = torch.arange(count, device=logits.device)
    restrictions = Restrictions(settings, logits.shape[-1], logits.device)
    masks = restrictions.masks(written, tokens if restrictions.reads_history else None, written + len(prompt))
    changed = logits.double() / settings.temperature
    if masks.seen is not None:
        changed = penalize_repetition(changed, masks.seen, settings.repetition_penalty)
    if masks.never is not None:
        changed = changed.masked_fill(masks.never, NEVER)
    if masks.columns is not None and masks.blocked is not None:
        changed[:, masks.columns] = changed[:, masks.columns].masked_fill(masks.blocked, NEVER)
    changed = keep_min_p(keep_top_p(keep_top_k(changed, settings.top_k), settings.top_p), settings.min_p)
    picked = torch.tensor(list(ids), device=logits.device)[:, None]
    return torch.log_softmax(changed, -1).gather(-1, picked)[:, 0].cpu()
