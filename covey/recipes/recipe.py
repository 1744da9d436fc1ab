"""A recipe: a whole run in one file.

    model: Qwen/Qwen2.5-0.5B-Instruct       a name, or settings of ModelConfig
    tokenizer: path                         another tokenizer than the model's own
    train: {learning_rate: 1.0e-6, ...}     settings of GRPOConfig
    data: {...}                             see covey.recipes.sources
    eval: {...}                             a dataset, or several by name
    rewards: [...]                          see covey.recipes.mixtures
    mixture: {on_error: missing, ...}       options of covey.rewards.Mixture
    compute_metrics, loss: MODULE:NAME      arguments of GRPOTrainer
    callbacks: [MODULE:NAME, ...]

Paths and modules are found from the working directory, as in a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import GRPOConfig, ModelConfig, get_peft_config, get_quantization_config
from covey.errors import ConfigError, CoveyError
from covey.plan import Plan
from covey.recipes.mixtures import check_rewards_node, make_mixture, placeholder, reward_nodes
from covey.recipes.nodes import Mark, Node, listed, nearest, node_of
from covey.recipes.objects import imported
from covey.recipes.overrides import merged, overridden
from covey.recipes.reading import read_yaml
from covey.recipes.settings import make, named, read_settings
from covey.recipes.sources import check_data_node, is_one_dataset, load_data
from covey.rewards.contract import Reward
from covey.rewards.mixture import Mixture

if TYPE_CHECKING:
    from covey.trainer.grpo_trainer import GRPOTrainer

SECTIONS = (
    "model",
    "tokenizer",
    "train",
    "data",
    "eval",
    "rewards",
    "mixture",
    "compute_metrics",
    "loss",
    "callbacks",
)

WIDER = {"resume_from_checkpoint": str | bool | None}
"""Settings that take more than TrainingArguments says: `true` is the last checkpoint, as for `Trainer.train`."""

SUFFIXES = (".yaml", ".yml")
"""How the name of a recipe ends."""


class Recipe:
    """A run as a file says it. Reading one checks names and kinds of values; nothing is imported or loaded.

    Args:
        root: the recipe's mapping.
        name: what runs are called that do not say it.
        overrides: `path=value`, as `--set` takes them.
        values: plain values by section, which replace the recipe's own after the overrides; see `replaced`.

    Raises:
        ConfigError: with file and line.
    """

    def __init__(
        self, root: Node, name: str, overrides: Sequence[str] = (), values: Mapping[str, object] | None = None
    ) -> None:
        for override in overrides:
            root = overridden(_with_mapping(root), override, SECTIONS, _sections_of_settings())
        self.name = name
        self.root = _with_mapping(merged(_with_mapping(root), values) if values else root)
        if not isinstance(self.root.value, dict):
            raise self.root.error(f"a recipe is a mapping with {', '.join(SECTIONS)}.")
        self.sections = _checked(self.root)
        self._train = self.sections.get("train", Node({}, self.root.mark))
        self.settings = read_settings(self._train, GRPOConfig, _elsewhere("train"), WIDER)
        self.model_settings = read_settings(self.sections["model"], ModelConfig, _elsewhere("model"))

    @classmethod
    def load(
        cls, path: str | Path, overrides: Sequence[str] = (), values: Mapping[str, object] | None = None
    ) -> Recipe:
        """Read a recipe's file.

        Raises:
            ConfigError: it cannot be read, or is wrong.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The recipe {path} cannot be read: {error}.") from error
        return cls(read_yaml(text, str(path)), Path(path).stem, overrides, values)

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
            ConfigError: values that the recipe could not have said either.
        """
        return Recipe(self.root, self.name, values=values)

    @cached_property
    def config(self) -> GRPOConfig:
        """Its GRPOConfig. `output_dir` is `runs/<name>` unless the recipe says it.

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
    def train_dataset(self) -> Any:
        """What it trains on; None without `data`."""
        return load_data(self.sections["data"]) if "data" in self.sections else None

    @cached_property
    def eval_dataset(self) -> Any:
        """What it is evaluated on: a dataset, several by name, or None."""
        node = self.sections.get("eval")
        if node is None or is_one_dataset(node):
            return None if node is None else load_data(node)
        return {name: load_data(part) for name, part in node.value.items()}

    @property
    def compute_metrics(self) -> Any:
        """The function that `compute_metrics` names; None without."""
        return self._imported("compute_metrics")

    def rewards(self, load_models: bool = True) -> Mixture:
        """Its mixture.

        Args:
            load_models: False leaves something in the place of each reward model that has its name and cannot be called.
        """
        mixture = make_mixture(
            self.sections["rewards"],
            self.sections.get("mixture"),
            self.config.task_column,
            self._load_reward_model if load_models else placeholder,
        )
        if "reward_weights" in self.settings and _say_weights(self.sections["rewards"]):
            raise self._train.value["reward_weights"].error(
                "reward_weights and the weights under 'rewards' say the same thing. Give one of them."
            )
        return mixture

    def plan(self, num_prompts: int | None = None, ranks: int | None = None) -> Plan:
        """What its settings mean, without weights.

        Args:
            num_prompts: rows to reckon with; None loads the data and counts.
            ranks: processes to reckon with; None: those of this launch.

        Raises:
            ConfigError, DatasetError: a plan that cannot be.
        """
        from covey.models import loading
        from covey.trainer import parts
        from covey.trainer.data import kept_rows

        args = self.config
        with self.located():
            rows: Sequence[int] | None = range(num_prompts or 0)
            if num_prompts is None:
                reader = parts.prompt_reader(args, None, None)
                if args.max_prompt_length is not None and args.overlong_prompts != "truncate":
                    tokenizer = loading.load_tokenizer(
                        self.tokenizer(), self.model_config, args.trust_remote_code
                    )
                    reader = parts.prompt_reader(args, tokenizer, None)
                rows = kept_rows(self.train_dataset, reader)
            return parts.training_plan(
                args, rows, num_prompts is not None or self.train_dataset is not None, ranks
            )

    def tokenizer(self) -> Any:
        """The tokenizer that it names; None where the model's own is used."""
        if "tokenizer" not in self.sections:
            return None
        from transformers import AutoTokenizer

        node = self.sections["tokenizer"]
        try:
            return AutoTokenizer.from_pretrained(
                node.text("tokenizer"), trust_remote_code=self.config.trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise node.error(f"the tokenizer {node.value!r} cannot be loaded: {error}") from error

    def trainer(self, **changes: Any) -> GRPOTrainer:
        """The trainer, with everything loaded.

        Args:
            changes: arguments of GRPOTrainer that differ from the recipe's.

        Raises:
            CoveyError: what GRPOTrainer raises, with the line where the recipe says it.
        """
        from covey.trainer.grpo_trainer import GRPOTrainer

        if self.config.strict_hardware:
            get_quantization_config(self.model_config, strict_hardware=True)
        arguments = {
            "model": self.model_config,
            "args": self.config,
            "train_dataset": self.train_dataset if "train_dataset" not in changes else None,
            "eval_dataset": self.eval_dataset if "eval_dataset" not in changes else None,
            "processing_class": self.tokenizer(),
            "peft_config": get_peft_config(self.model_config),
            "compute_metrics": self.compute_metrics,
            "loss": self._imported("loss"),
            "callbacks": self._callbacks(),
            **changes,
        }
        rewards = self.rewards()
        with self.located(rewards):
            return GRPOTrainer(reward_funcs=rewards, **arguments)

    def check(self) -> Mixture:
        """Builds everything but models, and looks whether rewards find their columns.

        Raises:
            CoveyError: with the line.
        """
        from covey.trainer import checks

        rewards = self.rewards(load_models=False)
        with self.located(rewards):
            checks.reward_weights(rewards, self.config.reward_weights)
            checks.check_columns(rewards, self.train_dataset, self.eval_dataset)
        _ = self.compute_metrics, self._imported("loss"), self._callbacks()
        return rewards

    @contextmanager
    def located(self, rewards: Sequence[Reward] = ()) -> Iterator[None]:
        """Errors that name a setting or a reward say its line."""
        try:
            yield
        except CoveyError as error:
            if self._is_located(str(error)):
                raise
            by_name = reward_nodes(self.sections["rewards"], [r.name for r in rewards])
            places = {**self._train.value, **{repr(name): node for name, node in by_name.items()}}
            raise named(str(error), places, self.root).error(str(error), type(error)) from error

    def plain(self) -> dict[str, Any]:
        """The recipe with its overrides, as plain values."""
        return {name: node.plain() for name, node in self.sections.items()}

    def _is_located(self, message: str) -> bool:
        sources = {node.mark.source for node in _every(self.root)}
        return any(message.startswith(f"{source}:") for source in sources)

    def _load_reward_model(self, path: str, /, **arguments: Any) -> Any:
        from covey.rewards import load_reward_model

        return load_reward_model(path, **{"device": self.config.device, **arguments})

    def _imported(self, section: str) -> Any:
        return imported(self.sections[section]) if section in self.sections else None

    def _callbacks(self) -> list[Any] | None:
        """Callbacks by import path; a class is made."""
        if "callbacks" not in self.sections:
            return None
        found = [imported(node) for node in self.sections["callbacks"].items("callbacks")]
        return [callback() if isinstance(callback, type) else callback for callback in found]


def _checked(root: Node) -> dict[str, Node]:
    """The sections of a recipe, each as it must be; one that is null is not there."""
    sections = {name: node for name, node in root.entries("a recipe").items() if node.value is not None}
    elsewhere = _sections_of_settings()
    for name, node in sections.items():
        if name not in SECTIONS:
            hint = f" It belongs under {elsewhere[name]!r}." if name in elsewhere else nearest(name, SECTIONS)
            raise node.error(f"a recipe has no section {name!r}.{hint or ' It has ' + listed(SECTIONS)}")
    for name in ("model", "rewards"):
        if name not in sections:
            raise root.error(f"the recipe has no section {name!r}, and cannot do without.")
    check_rewards_node(sections["rewards"])
    if "data" in sections:
        check_data_node(sections["data"])
    if "eval" in sections:
        for node in _eval_nodes(sections["eval"]):
            check_data_node(node)
    return sections


def _eval_nodes(node: Node) -> list[Node]:
    return [node] if is_one_dataset(node) else list(node.entries("eval").values())


def _with_mapping(root: Node) -> Node:
    """The recipe with `model: NAME` written out."""
    model = root.value.get("model") if isinstance(root.value, dict) else None
    if model is None or not isinstance(model.value, str):
        return root
    return Node({**root.value, "model": Node({"model_name_or_path": model}, model.mark)}, root.mark)


def _sections_of_settings() -> dict[str, str]:
    """The section of each setting; `model` where both have it, from where it reaches `train`."""
    of_train = {f.name: "train" for f in fields(GRPOConfig)}
    return {**of_train, **{f.name: "model" for f in fields(ModelConfig)}}


def _elsewhere(section: str) -> dict[str, str]:
    every = {**_sections_of_settings(), **{name: name for name in SECTIONS}}
    return {name: where for name, where in every.items() if where != section}


def _say_weights(rewards: Node) -> bool:
    return any(isinstance(item.value, dict) and "weight" in item.value for item in rewards.items("rewards"))


def _every(node: Node) -> Iterator[Node]:
    yield node
    parts: Sequence[Node] = ()
    if isinstance(node.value, dict):
        parts = list(node.value.values())
    elif isinstance(node.value, list):
        parts = node.value
    for part in parts:
        yield from _every(part)
