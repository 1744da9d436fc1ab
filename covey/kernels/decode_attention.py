"""Attention of the newest tokens: over a prompt that many sequences share, and over the tokens of each sequence itself.

Soft-max over both parts is soft-max over the second with one more column: the first part's result, with its log-sum-exp as
score. The column is there already: the first place of a sequence's slot belongs to its prompt, and its keys and values
are zeros (see `covey.sample.native.kv_cache.KvCache`). Scores are scaled beforehand (in the queries); soft-max is in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ScoreForm:
    """Treatment of scores between product and soft-max."""

    cap: float | None = None
    """Scores become cap · tanh(score / cap) (arXiv:2408.00118)."""
    sinks: Tensor | None = None
    """A score per head that takes its part of the soft-max and adds nothing (arXiv:2309.17453), shape (kv heads, queries per
    key), float32."""

    @property
    def is_plain(self) -> bool:
        return self.cap is None and self.sinks is None

    def scores(self, products: Tensor) -> Tensor:
        """Return scores from products of queries and keys; in float32 unless nothing happens to them."""
        if self.is_plain:
            return products
        return products.float() if self.cap is None else (products.float() / self.cap).tanh_().mul_(self.cap)

    def weights(self, scores: Tensor) -> Tensor:
        """Return the soft-max.

        Args:
            scores: shape (sequences · kv heads, tokens · queries per key, tokens that are read).
        """
        if self.sinks is None:
            return torch.softmax(scores, -1)
        heads, per_key = self.sinks.shape
        sinks = self.sinks.repeat(len(scores) // heads, scores.shape[1] // per_key)[..., None]
        return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]


PLAIN = ScoreForm()


def over_prompt(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, form: ScoreForm = PLAIN
) -> tuple[Tensor, Tensor]:
    """Attend without causality.

    Args:
        queries: shape (prompts · heads, queries, head_dim).
        keys, values: shape (prompts · heads, tokens, head_dim).
        mask: added to scores, broadcast to (prompts, heads, queries, tokens), float32; None: every token is seen.

    Returns:
        Results, shape (prompts · heads, queries, head_dim), and the log-sum-exp of their scores, the same but for head_dim, float32.
    """
    scores = form.scores(torch.bmm(queries, keys.transpose(1, 2))).float()
    if mask is not None:
        scores.unflatten(0, (len(mask), -1)).add_(mask)
    weights = torch.softmax(scores, -1)
    # The largest weight is exp(largest score - log-sum-exp): two maxima cost a fourth of a log-sum-exp.
    total = scores.amax(-1) - weights.amax(-1).log_()
    return torch.bmm(weights.to(values.dtype), values), total


def over_completion(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    prompt: tuple[Tensor, Tensor] | None,
    form: ScoreForm = PLAIN,
) -> Tensor:
    """Attend over the tokens that each sequence has generated, and over its prompt.

    Args:
        queries: shape (sequences · heads, queries, head_dim).
        keys: shape (sequences · heads, head_dim, tokens).
        values: shape (sequences · heads, tokens, head_dim).
        mask: added to scores, broadcast to (sequences, heads, queries, tokens).
        prompt: result over the prompt, of the shape of the queries, and log-sum-exp, shape (sequences · heads, queries);
            the first place of each sequence is the prompt's then. None: the prompt stands before the completion.
        form: of the scores.

    Returns:
        Shape (sequences · heads, queries, head_dim).
    """
    if prompt is None and form.is_plain and queries.device.type != "cpu":  # the same in one kernel
        sequences = len(queries) if mask is None else len(mask)
        # (sequences, heads, queries or tokens, head_dim)
        q, k, v = (x.unflatten(0, (sequences, -1)) for x in (queries, keys.transpose(1, 2), values))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).flatten(0, 1)
    scores = form.scores(torch.bmm(queries, keys))  # (sequences · heads, queries, tokens)
    if mask is not None:
        scores.unflatten(0, (mask.shape[0], -1)).add_(mask)
    if prompt is None:
        return torch.bmm(form.weights(scores).to(values.dtype), values)
    over, total = prompt
    scores = scores.float()
    scores[..., 0] = total
    weights = form.weights(scores).to(values.dtype)
    return torch.baddbmm(over * weights[..., :1], weights, values)
