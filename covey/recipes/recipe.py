"""A recipe: a whole run in one file.

    model: Qwen/Qwen2.5-0.5B-Instruct       a name, `bundled` and others of the package, or settings of ModelConfig
    tokenizer: path                         another tokenizer than the model's own
    train: {learning_rate: 1.0e-6, ...}     settings of GRPOConfig
    data: {...}                             see covey.recipes.sources
    eval: {...}                             a dataset, or several by name
    rewards: [...]                          see covey.recipes.mixtures
    tools, environment, rollout             see covey.recipes.agent_sections
    mixture: {on_error: missing, ...}       options of covey.rewards.Mixture
    compute_metrics, loss: MODULE:NAME      arguments of GRPOTrainer
    callbacks: [MODULE:NAME, ...]

Paths and modules are found from the working directory, as in a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import GRPOConfig, ModelConfig, get_peft_config, get_quantization_config
from covey.errors import ConfigError, CoveyError
from covey.plan import Plan
from covey.recipes.agent_sections import check_agent_nodes, make_environment, make_tools
from covey.recipes.bundled import SUFFIXES, policy_name, recipe_path, recipes
from covey.recipes.mixtures import LoadModel, check_rewards_node, make_mixture, placeholder
from covey.recipes.nodes import Mark, Node, nearest, node_of
from covey.recipes.objects import Function, imported
from covey.recipes.overrides import merged, overridden
from covey.recipes.reading import read_yaml
from covey.recipes.settings import make, named, read_settings
from covey.recipes.sources import check_data_node, is_one_dataset, load_data
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from covey.recipes.sources import Data
    from covey.sample.prompts import PromptReader
    from covey.trainer.grpo_trainer import GRPOTrainer

SECTIONS = (
    "model",
    "tokenizer",
    "train",
    "data",
    "eval",
    "rewards",
    "mixture",
    "tools",
    "environment",
    "rollout",
    "compute_metrics",
    "loss",
    "callbacks",
)

SECTION_OF = {
    f.name: section for section, cls in (("train", GRPOConfig), ("model", ModelConfig)) for f in fields(cls)
}
"""The section of each setting; `model` where both have it, from where it reaches `train`."""

PLACES = {**SECTION_OF, **{section: section for section in SECTIONS}}
"""The section where a name belongs, for messages about names in the wrong place."""

WIDER = {"resume_from_checkpoint": str | bool | None}
"""Settings that take more than TrainingArguments says: `true` is the last checkpoint, as for `Trainer.train`."""


class Recipe:
    """A run as a file describes it. Reading one checks names and kinds of values; nothing is imported or loaded.

    Args:
        root: the recipe's mapping.
        name: the folder below `runs` where no `output_dir` is given.
        overrides: `path=value`, as `--set` takes them.
        values: plain values by section, which replace the recipe's own after the overrides; see `replaced`.

    Raises:
        ConfigError: with file and line.
    """

    def __init__(
        self, root: Node, name: str, overrides: Sequence[str] = (), values: Mapping[str, object] | None = None
    ) -> None:
        for override in overrides:
            root = overridden(_with_mapping(root), override, SECTIONS, SECTION_OF)
        self.name = name
        self.root = _with_mapping(merged(_with_mapping(root), values) if values else root)
        if not isinstance(self.root.value, dict):
            raise self.root.error(f"a recipe is a mapping with {', '.join(SECTIONS)}.")
        self.sections = _checked_sections(self.root)
        self._train = self.sections.get("train", Node({}, self.root.mark))
        elsewhere = {
            section: {name: place for name, place in PLACES.items() if place != section}
            for section in ("train", "model")
        }
        self.settings = read_settings(self._train, GRPOConfig, elsewhere["train"], WIDER)
        self.model_settings = read_settings(self.sections["model"], ModelConfig, elsewhere["model"])
        if isinstance(model := self.model_settings.get("model_name_or_path"), str):
            self.model_settings["model_name_or_path"] = policy_name(model)

    @classmethod
    def load(
        cls, path: str | Path, overrides: Sequence[str] = (), values: Mapping[str, object] | None = None
    ) -> Recipe:
        """Read a recipe's file, or the bundled one of that name.

        Raises:
            ConfigError: it cannot be read, or is wrong.
        """
        file = recipe_path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            bundled = (
                ""
                if file.suffix in SUFFIXES
                else f"{nearest(str(path), recipes())} `covey recipes` lists those that come along."
            )
            raise ConfigError(f"The recipe {path} cannot be read: {error}.{bundled}") from error
        return cls(read_yaml(text, str(file)), file.stem, overrides, values)

    @classmethod
    def of(
        cls,
        sections: Mapping[str, object],
        source: str,
        overrides: Sequence[str] = (),
        values: Mapping[str, object] | None = None,
    ) -> Recipe:
        """Build a recipe from plain values; `source` is what messages call it."""
        return cls(node_of(sections, Mark(source)), source, overrides, values)

    def replaced(self, **values: object) -> Recipe:
        """Return the recipe with other values: `replaced(train={"beta": 0.0}, eval=None)`.

        Args:
            values: by section. A mapping replaces the entries that it names and keeps the others; anything else takes
                the section's place, and None removes the section.

        Raises:
            ConfigError: values that the recipe could not have either.
        """
        return Recipe(self.root, self.name, values=values)

    @cached_property
    def config(self) -> GRPOConfig:
        """Its GRPOConfig. `output_dir` is `runs/<name>` unless the recipe has it.

        Raises:
            ConfigError: settings that are wrong or contradict one another, with the line.
        """
        values = {"output_dir": f"runs/{self.name}", **self.settings}
        if self.model_settings.get("trust_remote_code"):
            values.setdefault("trust_remote_code", True)
        return make(GRPOConfig, values, self._train)

    @cached_property
    def model_config(self) -> ModelConfig:
        """Its ModelConfig."""
        return make(ModelConfig, self.model_settings, self.sections["model"])

    @cached_property
    def train_dataset(self) -> Data | None:
        """The training data; None without `data`."""
        return load_data(self.sections["data"]) if "data" in self.sections else None

    @cached_property
    def eval_dataset(self) -> Data | dict[str, Data] | None:
        """The evaluation data: a dataset, several by name, or None."""
        node = self.sections.get("eval")
        if node is None or is_one_dataset(node):
            return None if node is None else load_data(node)
        return {name: load_data(part) for name, part in node.entries("eval").items()}

    def rewards(self, load_models: bool = True) -> Mixture:
        """Build its mixture; without a section, that of the environment's own rewards.

        Without `load_models`, a reward that has its name and cannot be called takes the place of each reward model.
        """
        load_model: LoadModel = placeholder
        if load_models:
            from covey.rewards import load_reward_model

            trusts = self.config.trust_remote_code
            load_model = partial(load_reward_model, device=self.config.device, trust_remote_code=trusts)
        if (node := self.sections.get("rewards")) is None:
            return self._environment_rewards()
        mixture = make_mixture(node, self.sections.get("mixture"), self.config.task_column, load_model)
        has_weights = any(isinstance(i.value, dict) and "weight" in i.value for i in node.items("rewards"))
        if "reward_weights" in self.settings and has_weights:
            raise self._train.entries("train")["reward_weights"].error(
                "reward_weights and the weights under 'rewards' say the same thing. Give one of them."
            )
        return mixture

    def plan(self, num_prompts: int | None = None, ranks: int | None = None) -> Plan:
        """Return the plan that its settings mean; no weights are loaded.

        Args:
            num_prompts: rows to reckon with; None loads the data and counts.
            ranks: processes to reckon with; None: those of this launch.

        Raises:
            ConfigError, DatasetError: a plan that cannot be.
        """
        from covey.trainer import parts
        from covey.trainer.data import kept_rows
        from covey.trainer.task_budgets import make_quota

        args = self.config
        with self.located():
            if num_prompts is not None:
                return parts.training_plan(args, range(num_prompts), True, ranks)
            limits = parts.prompt_reader(args, None)
            rows = kept_rows(self.train_dataset, self.reader()[0] if limits.may_drop else limits)
            quota = make_quota(args, rows, self.train_dataset)
            kept = rows if quota is None else quota.kept
            return parts.training_plan(args, kept, self.train_dataset is not None, ranks)

    def reader(self) -> tuple[PromptReader, PreTrainedModel | None]:
        """Build what reads its prompts as in training, with their pictures where the policy sees; no weights are loaded.

        Returns:
            The reader, and the policy without its weights; None where it reads text alone.

        Raises:
            CoveyError: there is no tokenizer, or a setting of pictures does not fit.
        """
        from covey.models import families, loading
        from covey.models.outline import config_for, outline
        from covey.trainer import parts

        args, given = self.config, self.model_config
        processing = loading.load_processing_class(self.tokenizer(), given, args.trust_remote_code)
        policy = outline(given) if families.is_family(config_for(given)) else None
        return parts.prompt_reader(args, parts.with_eyes_set(args, processing, policy), policy), policy

    def tokenizer(self) -> PreTrainedTokenizerBase | ProcessorMixin | None:
        """Load the tokenizer that it names, or the processor that lies there; None where the model's own is used."""
        if "tokenizer" not in self.sections:
            return None
        from covey.models import loading

        node, trusts = self.sections["tokenizer"], self.config.trust_remote_code
        own = loading.config_of(str(self.model_config.model_name_or_path), {"trust_remote_code": trusts})
        try:
            name = node.text("tokenizer")
            return loading.processor_for(own, name, trusts) or loading.load_tokenizer(None, name, trusts)
        except CoveyError as error:
            raise node.error(str(error), type(error)) from error

    def imported(self, section: str) -> Function | None:
        """Import the function that a section names, `compute_metrics` or `loss`; None without the section."""
        return imported(self.sections[section]) if section in self.sections else None

    def callbacks(self) -> list[object] | None:
        """Import the callbacks; a class is made. None without the section."""
        if "callbacks" not in self.sections:
            return None
        found = [imported(node) for node in self.sections["callbacks"].items("callbacks")]
        return [callback() if isinstance(callback, type) else callback for callback in found]

    def agents(self) -> dict[str, Any]:
        """Import what answers the policy, as arguments of GRPOTrainer: `tools`, `environment_factory`, `rollout_func`."""
        made: dict[str, Any] = {}
        if "tools" in self.sections:
            made["tools"] = make_tools(self.sections["tools"])
        if "environment" in self.sections:
            made["environment_factory"] = make_environment(self.sections["environment"])
        if "rollout" in self.sections:
            made["rollout_func"] = imported(self.sections["rollout"])
        return made

    def trainer(self, **changes: object) -> GRPOTrainer:
        """Build the trainer, with everything loaded.

        Args:
            changes: arguments of GRPOTrainer that differ from the recipe's.

        Raises:
            CoveyError: an error of GRPOTrainer, with the line of the recipe.
        """
        from covey.trainer.grpo_trainer import GRPOTrainer

        if self.config.strict_hardware:
            get_quantization_config(self.model_config, strict_hardware=True)
        arguments: dict[str, Any] = {
            "model": self.model_config,
            "args": self.config,
            "train_dataset": self.train_dataset if "train_dataset" not in changes else None,
            "eval_dataset": self.eval_dataset if "eval_dataset" not in changes else None,
            "processing_class": self.tokenizer(),
            "peft_config": get_peft_config(self.model_config),
            "compute_metrics": self.imported("compute_metrics"),
            "loss": self.imported("loss"),
            "callbacks": self.callbacks(),
            **self.agents(),
            **changes,
        }
        rewards = self.rewards() if "rewards" in self.sections else None
        with self.located(rewards or ()):
            return GRPOTrainer(reward_funcs=rewards, **arguments)

    def _environment_rewards(self) -> Mixture:
        """Return the rewards that the environment brings.

        Raises:
            ConfigError: it brings none.
        """
        from covey.trainer.agents import Agents

        with self.located():
            found = Agents.of(self.config, **self.agents()).rewards
        if not found:
            raise self.root.error("the recipe has no section 'rewards', and its environment no get_reward.")
        return Mixture(*found)

    def check(self) -> Mixture:
        """Build everything but models, check that rewards find their columns, and return the rewards.

        Raises:
            CoveyError: with the line.
        """
        from covey.trainer import checks
        from covey.trainer.agents import Agents

        rewards = self.rewards(load_models=False)
        with self.located(rewards):
            checks.reward_weights(self.config, rewards)
            agents = Agents.of(self.config, **self.agents())
            agents.checked_data(self.config, rewards, self.train_dataset, self.eval_dataset)
        _ = self.imported("compute_metrics"), self.imported("loss"), self.callbacks()
        return rewards

    @contextmanager
    def located(self, rewards: Sequence[Reward] = ()) -> Iterator[None]:
        """Give errors that name a setting or a reward the line of it."""
        try:
            yield
        except CoveyError as error:
            message = str(error)
            if any(message.startswith(f"{node.mark.source}:") for node in self.root.walk()):
                raise
            places = dict(self._train.entries("train"))
            items = self.sections["rewards"].items("rewards") if "rewards" in self.sections else []
            if len(items) == len(rewards):  # one item may also be a whole mixture
                places |= {repr(r.name): item for r, item in zip(rewards, items, strict=True)}
            raise named(message, places, self.root).error(message, type(error)) from error

    def plain(self) -> dict[str, object]:
        """Return the recipe with its overrides, as plain values."""
        return {name: node.plain() for name, node in self.sections.items()}


def _checked_sections(root: Node) -> dict[str, Node]:
    """Return the sections of a recipe, each of the right form; one that is null is left out."""
    sections = {name: node for name, node in root.entries("a recipe").items() if node.value is not None}
    every = f" It has {', '.join(SECTIONS)}."
    for name, node in sections.items():
        if name not in SECTIONS:
            above = SECTION_OF.get(name)
            belongs = f" It belongs under {above!r}." if above else nearest(name, SECTIONS)
            raise node.error(f"a recipe has no section {name!r}.{belongs or every}")
    for name in ("model", *(() if "environment" in sections else ("rewards",))):
        if name not in sections:
            raise root.error(f"the recipe has no section {name!r}, and cannot do without.")
    if "rewards" in sections:
        check_rewards_node(sections["rewards"])
    check_agent_nodes(sections)
    for name, node in ((name, sections[name]) for name in ("data", "eval") if name in sections):
        has_several = name == "eval" and not is_one_dataset(node)
        for part in node.entries("eval").values() if has_several else [node]:
            check_data_node(part)
    return sections


def _with_mapping(root: Node) -> Node:
    """Return the recipe with `model: NAME` written out."""
    model = root.value.get("model") if isinstance(root.value, dict) else None
    if model is None or not isinstance(model.value, str) or not isinstance(root.value, dict):
        return root
    return Node({**root.value, "model": Node({"model_name_or_path": model}, model.mark)}, root.mark)
