"""Chooses how the general path decodes a policy: with the model's cache and padding, or slower and exact.

A model whose layers carry a state from token to token is never padded: that is asked of the architecture. Everything else is
tried once per policy, on short texts: each way has to give what the model's own forward pass gives for each text alone, and
what stands in the padding may not move anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import EngineError
from covey.models.inspect import innermost, meaningless_ids, other_mixers, text_config
from covey.sample.native.any_cache import bytes_of
from covey.sample.native.any_forward import AnyForward, Way
from covey.vision.sight import Eyes, Sight

PROMPTS, STEPS = (9, 9, 6), 4
"""Tokens of the prompts that are tried, and tokens that are added to them one by one."""

SMALLEST = {torch.float32: 2e-5, torch.float64: 2e-5}
"""Gap in nats that is rounding whatever the model is, by the dtype of its logits."""
COARSE = 0.05
"""The same in half precision."""
PART = {torch.float32: 0.01, torch.float64: 0.01}
"""Part of what another token in the prompt would change that is still rounding: a fresh model's numbers are close together."""
COARSE_PART = 0.25


@dataclass(frozen=True)
class Decoding:
    """The way that a policy is decoded, and the memory that its cache takes."""

    way: Way
    reason: str | None
    """Why it is not the fastest way; None: it is."""
    bytes_per_token: int
    bytes_per_sequence: int
    """What a sequence takes whatever its length: recurrent states."""


def choose(policy: nn.Module, eyes: Eyes | None = None) -> Decoding:
    """Return the fastest way that is exact for this policy. To be called where it samples: in eval mode, with its autocast.

    Args:
        eyes: say what a text shows beside its ids: to some policies a prompt's tokens are of another kind than those behind it.

    Raises:
        EngineError: none is: its forward pass fails, or a text's logits depend on what else is in the batch.
    """
    ways, joined = [Way(), Way(pads=False), Way(caches=False, pads=False)], other_mixers(policy)
    reason = f"it has {', '.join(joined[:3])} beside attention" if joined else None
    for way in ways[1:] if joined else ways:
        try:
            tried = _Trial(policy, way, eyes)
            fault = tried.fault()
        except Exception as error:  # whatever somebody else's model raises: the way is not its way
            fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if fault is None:
            return Decoding(way, reason, *tried.cache_bytes())
        reason = f"{way}: {fault}" if reason is None else reason
    needed = "It needs a forward pass that takes token ids and gives the same logits for a text alone and in a batch"
    raise EngineError(f"{type(innermost(policy)).__name__} cannot be sampled from: {fault}. {needed}.")


class _Trial:
    """A few short texts, decoded one way."""

    def __init__(self, policy: nn.Module, way: Way, eyes: Eyes | None) -> None:
        self.policy, self.way, self.eyes = policy, way, eyes
        self.vocab = int(text_config(policy).vocab_size)
        longest = max(PROMPTS)
        self.lengths = PROMPTS if way.pads else (longest, longest, longest)
        self._sizes: list[tuple[int, int, int]] = []

    def fault(self) -> str | None:
        """Return what is wrong with the way, compared with the forward pass over each text alone; None: nothing."""
        got = self._decoded()
        want, other = self._alone(0), self._alone(1)
        gap, effect = float((got - want).abs().max()), float((want - other).abs().max())
        dtype = got.dtype
        bound = max(SMALLEST.get(dtype, COARSE), PART.get(dtype, COARSE_PART) * effect)
        if not gap <= bound:
            return f"log-probabilities differ from its own by {gap:.2g} nats"
        if self.way.pads:
            moved = float((self._decoded(padding=1) - got).abs().max())
            if moved > SMALLEST.get(dtype, COARSE):
                return f"log-probabilities depend on what stands in the padding, by {moved:.2g} nats"
        return None

    def cache_bytes(self) -> tuple[int, int]:
        """Return the bytes per token and per sequence that the cache took."""
        (rows, tokens, first), (_, more, last) = self._sizes[0], self._sizes[-1]
        if not self.way.caches:  # hidden states of a pass over the whole sequence, reckoned roughly
            return 64 * self.policy.get_input_embeddings().weight.shape[-1], 0  # type: ignore[operator]
        per_token = max(0, last - first) // (rows * (more - tokens))
        return per_token, max(0, first // rows - per_token * tokens)

    def _ids(self, text: int, first: int = 0) -> list[int]:
        """Return a text; `first` changes its first token."""
        start, *rest = meaningless_ids(self.vocab, self.lengths[text] + STEPS)
        return [(i + 101 * text) % self.vocab for i in (start + first, *rest)]

    def _seen(self, texts: list[list[int]]) -> list[Sight]:
        """Return what texts show beside their ids; empty where nobody says."""
        return [] if self.eyes is None else [self.eyes.look(ids, []) for ids in texts]

    def _alone(self, first: int) -> Tensor:
        """Return log-probabilities by the model's own pass over each text alone, shape (texts, steps + 1, vocab)."""
        rows = []
        for text, length in enumerate(self.lengths):
            forward = AnyForward(self.policy, Way(caches=False, pads=False))
            ids = self._ids(text, first)
            logits = [forward.prefill([ids[:length]], [0], self._seen([ids[:length]]))]
            logits += [
                forward.step(torch.tensor(ids[n : n + 1], device=forward.device))
                for n in range(length, len(ids))
            ]
            rows.append(torch.cat(logits))
        return torch.log_softmax(torch.stack(rows).float(), -1).to(rows[0].dtype)

    def _decoded(self, padding: int = 0) -> Tensor:
        """Return the same this way: rows are repeated after the prompt and put in order again a step later."""
        texts = [self._ids(text) for text in range(len(self.lengths))]
        forward = AnyForward(self.policy, self.way, padding)
        order = [0, 1, 2, 1, 0]
        prompts = [ids[:n] for ids, n in zip(texts, self.lengths, strict=True)]
        logits = forward.prefill(prompts, order, self._seen(prompts))
        rows, back = [logits[:3]], torch.tensor([4, 3, 2], device=forward.device)
        self._sizes = [(len(order), max(self.lengths), bytes_of(forward.cache))]
        for step in range(STEPS):
            following = [texts[t][self.lengths[t] + step] for t in (order if step == 0 else range(3))]
            logits = forward.step(torch.tensor(following, device=forward.device))
            if step == 0:
                self._sizes.append((len(order), max(self.lengths) + 1, bytes_of(forward.cache)))
                forward.select(back)
                logits = logits[back]
            rows.append(logits)
        found = torch.stack(rows, 1)
        return torch.log_softmax(found.float(), -1).to(found.dtype)
