"""Agents: tools, environments or a function that rolls out by itself, as GRPOTrainer is given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import GRPOConfig
from covey.config.tool_settings import ToolSettings, check_needed
from covey.errors import ConfigError, RewardError, ToolError
from covey.models.loading import tokenizer_of
from covey.rewards.contract import Reward
from covey.sample.given_data import GivenData
from covey.sample.prompts import PromptReader
from covey.tools.environments import Environments, Factory
from covey.tools.episode_settings import EpisodeSettings
from covey.tools.episodes import EpisodeMaker
from covey.tools.journal import CallJournal
from covey.tools.rollout import RolloutFunction
from covey.tools.tool_contract import Tool
from covey.trainer import checks
from covey.trainer.episode_rows import check_names, episode_data
from covey.trainer.parts import make_decode
from covey.trainer.sampled import EpisodeSampler, FunctionSampler, SampleFunction, one_turn

if TYPE_CHECKING:
    from covey.trainer.grpo_trainer import GRPOTrainer


@dataclass
class Agents:
    """The arguments `tools`, `environment_factory` and `rollout_func` of a trainer, checked, and what is made of them."""

    tools: Sequence[Callable[..., Any]]
    environments: Environments | None
    rollout: RolloutFunction | None
    maker: EpisodeMaker | None = None
    """Begins episodes; None: the policy speaks once, or `rollout` samples."""

    @classmethod
    def of(
        cls,
        args: GRPOConfig,
        tools: Sequence[Callable[..., Any]] | None = None,
        environment_factory: Factory | Mapping[str, Factory] | None = None,
        rollout_func: RolloutFunction | None = None,
    ) -> Agents:
        """Check the arguments of a trainer, as far as no model is needed.

        Raises:
            ConfigError: two of them exclude each other, or a setting has no effect without them.
            ToolError: an environment cannot be used, or `tools` is no sequence.
        """
        if tools is not None and not isinstance(tools, Sequence):
            raise ToolError(f"tools is {type(tools).__name__}; it is a list of functions: tools=[search].")
        environments = None if environment_factory is None else Environments(environment_factory)
        agents = cls(list(tools or ()), environments, rollout_func)
        if rollout_func is not None and agents.call:
            named = "tools" if agents.tools else "environment_factory"
            raise ConfigError(
                f"GRPOTrainer was given {named} and rollout_func, which exclude each other: a rollout function samples by itself, "
                "and calls what it needs. Give one of them."
            )
        if rollout_func is not None and args.async_lag:
            raise ConfigError(
                f"async_lag={args.async_lag} does not go with rollout_func: what the function is given belongs to the update, which runs "
                "beside it. Set async_lag=0, or let an engine sample."
            )
        check_needed(args, agents.call)
        for function in agents.tools:  # what is wrong with one is said before weights are loaded
            Tool.of(function)
        return agents

    @property
    def call(self) -> bool:
        """Whether tools or environments answer the policy."""
        return bool(self.tools) or self.environments is not None

    @property
    def rewards(self) -> list[Reward]:
        """The rewards that environments bring."""
        given = [] if self.environments is None else self.environments.rewards()
        return [Reward(function, function.__name__) for function in given]

    def checked_data(
        self, args: GRPOConfig, rewards: Sequence[Reward], train_dataset: Any, eval_dataset: Any
    ) -> GivenData:
        """Return the datasets as they can be read; see `covey.trainer.checks.checked_data`. An environment may bring the prompts.

        Raises:
            DatasetError, RewardError: one of them cannot be used.
        """
        own: tuple[str, ...] = ()
        if self.environments is not None:
            train_dataset, eval_dataset = episode_data(args, train_dataset, eval_dataset)
            own = ("environments",)
        check_places(rewards)
        return checks.checked_data(
            args, rewards, train_dataset, eval_dataset, own, with_columns=self.rollout is None
        )

    def prepare(
        self, args: GRPOConfig, reader: PromptReader, data: GivenData, ending: Sequence[int]
    ) -> PromptReader:
        """Make what begins episodes; return the reader of prompts in which the tools are rendered.

        Raises:
            ToolError: a tool, a template or a format cannot be used.
            ConfigError: a setting does nothing for these tools.
            DatasetError: a row names an environment or a tool that is not there.
        """
        if self.rollout is not None or self.call:
            who = "a rollout function" if self.rollout is not None else "a run with tools or environments"
            reader = replace(reader, blind=reader.blind or f"{who} shows the policy text alone, up to now")
        if not self.call:
            return reader
        names = [
            name for name in EpisodeSettings.__dataclass_fields__ if name in ToolSettings.__dataclass_fields__
        ]
        settings = EpisodeSettings(**{name: getattr(args, name) for name in names})
        self.maker = EpisodeMaker(self.tools, self.environments, reader, tuple(ending), settings, args.seed)
        if args.tool_schedule == "eager" and all(tool.is_inline for tool in self.maker.known.values()):
            raise ConfigError(
                "tool_schedule='eager' has no effect: every tool runs in the trainer's own thread, so that no answer is late. Leave it "
                "out, or decorate tools: @tool(where='thread')."
            )
        check_names(data.named, self.maker.reader_tools)
        return self.maker.reader

    @property
    def facts(self) -> dict[str, Mapping[str, object]]:
        """The facts about each tool, by name, for the head of the record; see `covey.runs.record.schema.RUN_FIELDS`."""
        kinds = {} if self.environments is None else self.environments.kinds
        facts: dict[str, Mapping[str, object]] = {}
        for name, tool in self.maker.known.items() if self.maker is not None else ():
            owners = [kind for kind, of in kinds.items() if name in (t.name for t in of.tools)]
            own = {"environments": owners} if tool.is_method and len(kinds) > 1 else {}
            facts[name] = {"where": tool.place, "schema": dict(tool.schema), **own}
        return facts

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end a turn, where calls are written between tags."""
        return () if self.maker is None else self.maker.stop_strings

    def sampler(self, trainer: GRPOTrainer) -> SampleFunction:
        """Return what samples in training."""
        if self.rollout is not None:
            decode = make_decode(
                trainer.args, tokenizer_of(trainer.processing_class), trainer.sampling.stop_ids
            )
            return FunctionSampler(self.rollout, trainer, decode)
        return one_turn if self.maker is None else EpisodeSampler(self.maker)

    @contextmanager
    def evaluating(self, trainer: GRPOTrainer) -> Iterator[SampleFunction]:
        """Lend what samples in evaluation, whose environments are its own and are closed behind it."""
        if self.maker is None:
            yield self.sampler(trainer)
            return
        maker = self.maker.for_evaluation()
        try:
            yield EpisodeSampler(maker)
        finally:
            maker.close()

    def keep_journal(
        self, args: GRPOConfig, since: tuple[int, ...] | None, tell: Callable[[str], None]
    ) -> None:
        """Note results of tools in output_dir, and take those that were noted before the run stopped.

        Args:
            since: the first round of sampling after a resume; None: the run begins. Read at the first round alone.
            tell: is told once that results differ from those before.
        """
        if self.maker is not None and self.maker.parts.journal is None:
            path = Path(args.output_dir or ".", f"tool_calls-{args.process_index}.jsonl")
            self.maker.keep_journal(CallJournal(path, since, tell))

    def close(self) -> None:
        """Close all environments, and end what tools have started."""
        if self.maker is not None:
            self.maker.close()


def check_places(rewards: Sequence[Reward]) -> None:
    """Raise where a reward asks for environments and runs where they are not.

    Raises:
        RewardError: it does.
    """
    for reward in rewards:
        if reward.options.where in ("process", "sandbox") and "environments" in reward.names:
            raise RewardError(
                f"Reward {reward.name!r} asks for environments, which live in the trainer's own process, and has "
                f"where={reward.options.where!r}. Leave it out."
            )
