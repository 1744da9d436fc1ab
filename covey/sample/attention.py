"""Attention of the newest tokens: over a prompt that many sequences share, and over what each has said itself.

Soft-max over both parts is soft-max over the second with one more column: the first part's result, with its log-sum-exp as
score. Scores are scaled beforehand (in the queries).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def over_prompt(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention without causality: every query sees the whole prompt.

    Args:
        queries: shape (prompts, heads, queries, head_dim).
        keys, values: shape (prompts, heads, tokens, head_dim).
        mask: added to scores, shape (prompts, 1, 1, tokens).

    Returns:
        Results, shape (prompts · queries · heads, head_dim), and the log-sum-exp of their scores, shape (prompts ·
        queries · heads).
    """
    if queries.device.type == "cpu":
        out, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, False, attn_mask=mask, scale=1.0
        )
    else:
        scores = torch.matmul(queries, keys.transpose(2, 3)).float()
        scores = scores if mask is None else scores + mask
        total = scores.logsumexp(-1)
        out = torch.matmul((scores - total[..., None]).exp().to(values.dtype), values)
    return out.transpose(1, 2).reshape(-1, out.shape[-1]), total.transpose(1, 2).reshape(-1)


def over_completion(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    prompt: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Attention over what each sequence has said, and over its prompt.

    Args:
        queries: shape (sequences · heads, queries, head_dim).
        keys: shape (sequences · heads, head_dim, tokens).
        values: shape (sequences · heads, tokens, head_dim).
        mask: added to scores, broadcast to (sequences, heads, queries, tokens).
        prompt: result over the prompt, of the shape of the queries, and log-sum-exp, shape (sequences · heads, queries);
            None: the prompt stands before the completion.
    """
    if prompt is None and queries.device.type != "cpu":
        return _fused(queries, keys, values, mask)
    scores = torch.bmm(queries, keys)
    if mask is not None:
        scores.unflatten(0, (mask.shape[0], -1)).add_(mask)
    if prompt is None:
        return torch.bmm(torch.softmax(scores, -1), values)
    over, total = prompt
    weights = torch.softmax(torch.cat([total[..., None], scores], -1), -1)
    of_prompt, of_own = weights[..., :1].to(values.dtype), weights[..., 1:].to(values.dtype)
    return torch.baddbmm(over * of_prompt, of_own, values)


def _fused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """The same in one kernel of PyTorch's scaled dot product attention."""
    sequences = len(queries) if mask is None else len(mask)
    q, k, v = (x.unflatten(0, (sequences, -1)) for x in (queries, keys.transpose(1, 2), values))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).flatten(0, 1)
