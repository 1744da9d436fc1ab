"""The policy's own forward pass over a batch of sequences that grows by a token a step.

What a prompt shows beside its ids goes in where its ids do, once: the tokens behind it read it from the cache. Positions are
always said, so that the model works none out and keeps nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.models.inspect import accepted_arguments
from covey.sample.native.any_cache import NAMES, select_rows
from covey.vision.sight import Sight, joined, placed, typed

TEXT = Sight()
"""What a prompt of text alone shows."""


@dataclass(frozen=True)
class Way:
    """A way to decode a policy; the faster ones are for policies that take them."""

    caches: bool = True
    """False: every step reads its sequences from their first token on."""
    pads: bool = True
    """False: only prompts of equal length are read together, so that no state and no position sees padding."""

    def __str__(self) -> str:
        cache = "with its cache" if self.caches else "without a cache"
        return cache if self.pads else f"{cache}, prompts of equal length together"


class AnyForward:
    """One batch of sequences.

    Args:
        policy: any causal model.
        way: how it is decoded. Without padding, all prompts of a batch have the same length.
        padding: id that stands before shorter prompts.
    """

    def __init__(self, policy: nn.Module, way: Way, padding: int = 0) -> None:
        self.policy, self.way, self.padding = policy, way, padding
        self.device = next(policy.parameters()).device
        self.accepted = accepted_arguments(policy)
        self.cache: object = None
        """Made by the model in its first pass."""
        self.cache_name = ""
        self.ids = self.mask = self.positions = self.following = torch.zeros(0)
        self.sights: list[Sight] = []
        """What each row shows, while that is still to be read; empty: nothing."""

    def prefill(
        self, prompts: Sequence[Sequence[int]], order: Sequence[int], sights: Sequence[Sight] = ()
    ) -> Tensor:
        """Read each prompt once; next-token logits of the sequences, shape (sequences, vocab).

        Args:
            order: which prompt each sequence continues.
            sights: what each prompt shows at its beginning; empty: all are text.
        """
        longest = max(len(ids) for ids in prompts)
        padded = [[self.padding] * (longest - len(i)) + list(i) for i in prompts]
        mask = [[0] * (longest - len(i)) + [1] * len(i) for i in prompts]
        self.ids, self.mask = (torch.tensor(x, device=self.device) for x in (padded, mask))
        self.sights = list(sights)
        self._place(prompts)
        logits = self._call(self.ids)
        index = torch.tensor(order, device=self.device)
        self.select(index)
        return logits[index]

    def _place(self, prompts: Sequence[Sequence[int]]) -> None:
        """Find the positions of the prompts, shape (axes, prompts, longest), and of what follows them, shape (prompts, 1)."""
        sights = self.sights or [TEXT] * len(prompts)
        places = [placed(sight, len(ids)) for ids, sight in zip(prompts, sights, strict=True)]
        positions = torch.zeros(max(map(len, places)), *self.mask.shape, dtype=torch.long)
        for row, its_own in enumerate(places):
            positions[:, row, positions.shape[2] - its_own.shape[1] :] = its_own
        self.positions = positions.to(self.device)
        self.following = torch.tensor([[int(its_own.max()) + 1] for its_own in places], device=self.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Add one token to each sequence; next-token logits, shape (sequences, vocab)."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        new = self.following.expand(len(self.positions), -1, 1)
        self.following = self.following + 1
        if self.way.caches:
            self.positions = new
            return self._call(tokens[:, None])
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        self.positions = torch.cat([self.positions, new], 2)
        return self._call(self.ids)

    def select(self, index: Tensor) -> None:
        """Go on with these sequences; one that is named more than once is repeated."""
        if self.way.caches:
            self.cache, self.sights = select_rows(self.cache, index), []
        else:
            self.ids = self.ids[index]
            self.sights = [self.sights[row] for row in index.tolist()] if self.sights else []
        self.mask, self.positions = self.mask[index], self.positions[:, index]
        self.following = self.following[index]

    def _call(self, ids: Tensor) -> Tensor:
        """Return next-token logits after the last position, shape (rows, vocab)."""
        arguments: dict[str, object] = {"input_ids": ids, "use_cache": self.way.caches}
        positions = self.positions if len(self.positions) > 1 else self.positions[0]
        optional: dict[str, object] = {"position_ids": positions, "logits_to_keep": 1}
        if (
            self.way.pads or not self.way.caches
        ):  # of ones alone it says nothing, and models with a state take it for the step's
            optional["attention_mask"] = self.mask
        arguments |= {name: value for name, value in optional.items() if name in self.accepted}
        arguments |= self._shown(ids)
        if self.cache is not None:
            arguments[self.cache_name] = self.cache
        output = self.policy(**arguments)
        if self.way.caches:
            self._keep_cache(output)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _shown(self, ids: Tensor) -> dict[str, Tensor]:
        """Return what the rows show, as arguments."""
        tokens = self.mask.sum(1).tolist() if self.sights else []
        shown = {**joined(self.sights), **typed(self.sights, tokens, ids.shape[1])}
        return {name: value.to(self.device) for name, value in shown.items()}

    def _keep_cache(self, output: object) -> None:
        """Take the cache out of an output; it goes back in under the name that the model takes it by.

        Raises:
            TypeError: the model gives none.
        """
        given = [cache for name in NAMES if (cache := getattr(output, name, None)) is not None]
        taken = [name for name in NAMES if name in self.accepted]
        if not given or not taken:
            raise TypeError(f"{type(self.policy).__name__} gives no cache")
        self.cache, self.cache_name = given[0], taken[0]
