"""The protocol of a sampler: give it the policy, ask it for groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from torch import nn

from covey.sample.sampling import Sampling
from covey.sample.turns import Turns
from covey.types import Group, Prompt


class Engine(Protocol):
    """Samples groups of completions.

    Contract, tested for every engine by one suite:

    - The completions of a prompt depend on the weights, the prompt (ids and pictures), its `seed_key`, the index in the group
      (counted from the prompt's `first`) and the settings; not on the other prompts of the call, their order or their number.
    - Ids that stand for parts of pictures are never drawn.
    - An end-of-sequence id that ends a completion is its last id. Ids hold no padding.
    - Each log-probability is the natural logarithm of the probability with which the id was drawn.
    - The policy is left as it was found: mode, flags, weights, gradients.
    - Nothing is drawn from a global random generator.

    Attributes:
        facts: what samples, for the head of a run's record: `kind` and `release`; of servers their `urls`, and the `model` they name.
        samples_beside_updates: whether `generate` may run in a thread while the policy is updated: the weights are the engine's own.
            Such an engine is not put to sleep between rounds that are sampled ahead.
        swaps_in_flight: whether `load` may be called while `generate` runs: what is being sampled goes on with the new weights, and
            completions say the version of the oldest ones.
    """

    samples_beside_updates: bool
    swaps_in_flight: bool

    @property
    def facts(self) -> Mapping[str, object]: ...

    def load(self, policy: nn.Module, version: int | None = None) -> None:
        """Use the policy's current weights from now on. Collective; nobody samples while weights change.

        Called before the first round, after each update, and before an evaluation.

        Args:
            version: number of updates that the weights have seen; the same number means the same weights. None: not known.
        """
        ...

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, settings: Sampling, turns: Turns | None = None
    ) -> Iterator[Group]:
        """Sample `group_size` completions of each prompt; yields groups as they finish, in any order.

        Args:
            turns: is asked what follows a turn of the policy; None: nothing does.

        Raises:
            EngineError: a request that it cannot serve, or an answer that does not fit behind its turn.
        """
        ...

    def sleep(self) -> None:
        """Give back memory that can be made again, such as a copy of the weights. Called when a round is sampled."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return numbers of the last round by name, such as the seconds that it waited; they begin with engine/."""
        ...

    def close(self) -> None:
        """End what the engine has started. Called when the run ends, whatever the end; a second time does nothing."""
        ...


def in_order(prompts: Sequence[Prompt], groups: Iterable[Group]) -> list[Group]:
    """Return the groups in the order of their prompts."""
    by_prompt = {id(group.prompt): group for group in groups}
    return [by_prompt[id(prompt)] for prompt in prompts]
