"""The protocol of a sampler: give it the policy, ask it for groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torch import nn

from covey.sample.sampling import Sampling
from covey.types import Group, Prompt


class Engine(Protocol):
    """Samples groups of completions.

    Contract, tested for every engine by one suite:

    - The completions of a prompt depend on the weights, the prompt, its `seed_key`, the index in the group and the
      settings; not on the other prompts of the call, their order or their number.
    - An end-of-sequence id that ends a completion is its last id. Ids hold no padding.
    - Each log-probability is the natural logarithm of the probability with which the id was drawn.
    - The policy is left as it was found: mode, flags, weights, gradients.
    - Nothing is drawn from a global random generator.
    """

    def load(self, policy: nn.Module) -> None:
        """Use the policy's current weights from now on. Called before the first round and after each update."""
        ...

    def generate(self, prompts: Sequence[Prompt], group_size: int, settings: Sampling) -> Iterator[Group]:
        """Sample `group_size` completions of each prompt; yields groups as they finish, in any order.

        Raises:
            EngineError: a request that it cannot serve.
        """
        ...

    def sleep(self) -> None:
        """Give back memory that can be made again, such as a copy of the weights. Called when a round is sampled."""
        ...


def in_order(prompts: Sequence[Prompt], groups: Iterable[Group]) -> list[Group]:
    """Return the groups in the order of their prompts."""
    by_prompt = {id(group.prompt): group for group in groups}
    return [by_prompt[id(prompt)] for prompt in prompts]
