"""Pictures of a pass, for the policy to see beside its ids: those of prompts with other pictures, for the tower to run on once.

    rows of the batch    a a a   b b   c      (c: text alone)
    the tower sees       a, b                 once each, in one call; and once where a and b show the same
    the decoder gets     a a a   b b          the plain way: a row each
                         a       b            packed: each prompt once

Where tower and projector are not trained, they see a picture once in a rollout, and all passes take the features from there.
A pass without a picture shows the tower a blank one, whose features count nothing: so the weights that pictures go through have a
gradient (0, not None) in every pass, of every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covey.models.inspect import accepted_arguments
from covey.update.micro_batch import MicroBatch
from covey.vision.features import Features, encode, experts_of_pictures, given, sees_with
from covey.vision.sight import Eyes, Sight, joined

Digests = tuple[str, ...]
"""Of a prompt's pictures, on which alone it depends what the tower makes of them."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The pictures of a pass, for the policy's own forward pass to encode."""

    inputs: Mapping[str, Tensor]
    """Of prompts with other pictures, joined; or a blank picture's."""
    counts: tuple[int, ...]
    """Picture tokens of each of these prompts; none: the policy takes the inputs as they are."""
    order: tuple[int, ...]
    """Which of them stand in the pass, in its order; none: the picture is blank and stands nowhere."""
    known: tuple[Features, ...] = ()
    """Their features, where the tower is not trained."""

    def arguments(self, model: Any) -> dict[str, Any]:
        """Return what the policy's forward pass gets; the tower runs here, at most once."""
        if not self.counts:
            return dict(self.inputs)
        if not self.order:
            return {}
        features = self.known or encode(model, self.inputs, self.counts)
        return {"mm_encoder_outputs": given([features[i] for i in self.order])}

    def nothing(self, model: Any) -> Tensor | None:
        """Return 0, a scalar with a gradient (of 0) for all that a picture goes through; None where a picture goes through it."""
        if self.order or not self.counts:
            return None
        [blank] = encode(model, self.inputs, self.counts)
        reached = *blank.layers, *experts_of_pictures(model)
        return 0.0 * torch.stack([numbers.float().mean() for numbers in reached]).sum()


@dataclass(eq=False)
class Viewer:
    """Looks at the prompts of batches for one policy.

    Args:
        causal: the policy itself, unwrapped.
        eyes: of the policy.
        is_still: whether features are kept though the tower is trained: nothing is, between the passes of a comparison.
    """

    causal: Any
    eyes: Eyes
    kept: dict[Digests, Features] = field(default_factory=dict)
    """Of the pictures of a rollout's prompts, where the tower is not trained."""
    is_still: bool = False

    @cached_property
    def shares(self) -> bool:
        """Whether the policy takes features in place of pixels, so that several rows can show what the tower saw once."""
        return "mm_encoder_outputs" in accepted_arguments(self.causal)

    @cached_property
    def blank(self) -> Sight:
        """Return what the smallest picture shows."""
        return self.eyes.blank()

    @property
    def is_trained(self) -> bool:
        """Whether weights that pictures go through are trained."""
        return any(p.requires_grad for p in sees_with(self.causal))

    @cached_property
    def has_own_experts(self) -> bool:
        """Whether the decoder trains weights that no text goes through."""
        return bool(experts_of_pictures(self.causal))

    def begin_window(self, batches: Sequence[MicroBatch]) -> None:
        """Forget features of other prompts than those of these batches."""
        present = {digests for batch in batches for _, (_, digests) in batch.keys}
        self.kept = {key: features for key, features in self.kept.items() if key in present}

    def sights(self, batch: MicroBatch) -> list[Sight]:
        """Return what the prompt of each row shows."""
        keys = [key for _, key in batch.keys]
        pictures = dict(zip(keys, batch.pictures or [()] * batch.num_rows, strict=True))
        seen = {key: self.eyes.look(key[0], shown) for key, shown in pictures.items()}
        return [seen[key] for key in keys]

    def shown(self, batch: MicroBatch, sights: Sequence[Sight], rows: Sequence[int]) -> Shown | None:
        """Return the pictures of a pass.

        Args:
            rows: those whose prompts stand in the pass, in its order.
        """
        of_rows = [digests for _, (_, digests) in batch.keys]
        by_key = dict(zip(of_rows, sights, strict=True))
        keys, device = [of_rows[row] for row in rows if of_rows[row]], batch.mask.device
        if not keys:
            is_due = torch.is_grad_enabled() and (self.is_trained or self.has_own_experts)
            return Shown(joined([self.blank], device), (self.blank.num_places,), ()) if is_due else None
        if not self.shares:
            return Shown(joined([by_key[key] for key in keys], device), (), ())
        distinct = list(dict.fromkeys(keys))
        order = tuple(distinct.index(key) for key in keys)
        counts = tuple(by_key[key].num_places for key in distinct)
        if self.is_still or not self.is_trained:
            return Shown({}, counts, order, self._known(distinct, by_key, device))
        return Shown(joined([by_key[key] for key in distinct], device), counts, order)

    @torch.no_grad()
    def _known(
        self, keys: Sequence[Digests], sights: Mapping[Digests, Sight], device: torch.device
    ) -> tuple[Features, ...]:
        """Return features of pictures; those that are not known yet are made, by one call of the tower."""
        if new := [key for key in keys if key not in self.kept]:
            inputs = joined([sights[key] for key in new], device)
            made = encode(self.causal, inputs, [sights[key].num_places for key in new])
            self.kept |= dict(zip(new, made, strict=True))
        return tuple(self.kept[key] for key in keys)
