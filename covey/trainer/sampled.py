"""Prompts → groups and what rewards are told beside them: in one turn, in episodes with tools, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from covey.errors import ToolError
from covey.metrics import Metric
from covey.sample.engine import Engine, in_order
from covey.sample.sampling import Sampling
from covey.score.dynamic_sampling import Asked
from covey.score.episode_metrics import episode_metrics
from covey.tools.openings import common_start, with_opening
from covey.tools.rollout import RolloutFunction, rolled_out
from covey.types import Group, Prompt

if TYPE_CHECKING:
    from covey.tools.episodes import EpisodeMaker


@dataclass(frozen=True)
class Sampled:
    """Groups in the order of their prompts, and what goes with them until they are scored."""

    groups: list[Group]
    columns: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """What rewards get beside the columns of the rows, a value for each completion."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    release: Callable[[], None] = lambda: None
    """Gives back what the completions hold. To be called when they are scored."""
    has_logprobs: bool = True
    """False: a rollout function gave none, and the policy's own are to be filled in."""


class SampleFunction(Protocol):
    """Samples `group_size` completions of each prompt."""

    def __call__(
        self, engine: Engine, prompts: Sequence[Prompt], group_size: int, settings: Sampling
    ) -> Sampled: ...


def one_turn(engine: Engine, prompts: Sequence[Prompt], group_size: int, settings: Sampling) -> Sampled:
    """Sample completions in which the policy speaks once."""
    return Sampled(in_order(prompts, engine.generate(prompts, group_size, settings)))


@dataclass
class EpisodeSampler:
    """Samples completions in which tools and environments answer."""

    maker: EpisodeMaker

    def __call__(
        self, engine: Engine, prompts: Sequence[Prompt], group_size: int, settings: Sampling
    ) -> Sampled:
        episodes = self.maker.begin(prompts, group_size, settings.step)
        groups = in_order(episodes.prompts, engine.generate(episodes.prompts, group_size, settings, episodes))
        columns = {} if self.maker.environments is None else {"environments": episodes.environments(groups)}
        metrics = episode_metrics(groups, self.maker.tool_names)
        return Sampled(groups, columns, metrics, episodes.release)


@dataclass
class FunctionSampler:
    """Has a function of the user's sample."""

    function: RolloutFunction
    trainer: Any
    """What the function is given as its second argument."""
    decode: Callable[[Sequence[int]], str]
    """Ids → text without end and padding tokens."""

    def __call__(
        self, engine: Engine, prompts: Sequence[Prompt], group_size: int, settings: Sampling
    ) -> Sampled:
        if not prompts:  # a process with nothing to replace, or no row left to replace it with
            return Sampled([])
        rolled = rolled_out(
            self.function,
            prompts,
            group_size,
            self.trainer,
            self.decode,
            settings.stop_ids,
            self.trainer.prompts.reader.vocabulary,
        )
        size = len(prompts) * group_size
        columns = {
            name: value if isinstance(value, list | tuple) and len(value) == size else [value] * size
            for name, value in rolled.columns.items()
        }
        return Sampled(list(rolled.groups), columns, has_logprobs=rolled.has_logprobs)


# --- completions that are asked for one by one ----------------------------------------------------------------------------


def asked_singly(asked: Asked) -> list[Prompt]:
    """Return each prompt once for each completion that is asked for, under the number of that."""
    each = zip(asked.prompts, asked.counts or (), strict=True)
    return [replace(prompt, first=asked.first + number) for prompt, count in each for number in range(count)]


def regrouped(groups: Sequence[Group], counts: Sequence[int]) -> list[Group]:
    """Return completions that were asked for singly as the groups of their prompts; none of a prompt that got none."""
    left, found = iter(groups), list[Group]()
    for own in ([*islice(left, count)] for count in counts):
        if own:
            own = own if all(g.prompt.ids == own[0].prompt.ids for g in own) else joined_starts(own)
            found.append(replace(own[0], completions=tuple(c for g in own for c in g.completions)))
    return found


def joined_starts(groups: Sequence[Group]) -> list[Group]:
    """Return groups of one prompt with one start: what their own prompts have more is the opening of their completions.

    An environment, or a rollout function, began them differently; a ToolError where they have not one token in common.
    """
    shared, joined = common_start([group.prompt.ids for group in groups]), list[Group]()
    if not shared:
        raise ToolError(
            f"Row {groups[0].prompt.row}: the prompts of its completions have not one token in common. Begin them alike, for example "
            "with a system message."
        )
    for group in groups:
        own = group.prompt.content
        begun = [with_opening(c, group.prompt.ids[len(shared) :]) for c in group.completions]
        told = [c if c.own_prompt is not None else replace(c, own_prompt=own) for c in begun]
        joined.append(Group(replace(group.prompt, ids=shared), tuple(told)))
    return joined
