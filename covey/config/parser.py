"""TrlParser: settings from the command line and from a YAML file, with TRL's names; and ScriptArguments, the data of a script.

    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script, training, model = parser.parse_args_and_config()      # --config run.yaml --learning_rate 1e-5

The command line wins over the file, the file over the defaults. A block `env` of the file sets environment variables.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml
from transformers import HfArgumentParser

from covey.config.validation import help_text
from covey.errors import ConfigError, warn


@dataclass
class ScriptArguments:
    """Settings of a script that are neither the training's nor the model's: which data it reads."""

    dataset_name: str | None = help_text(None, "Name on the hub, or a folder.")
    dataset_config: str | None = help_text(None, "Configuration of the dataset.")
    dataset_train_split: str = help_text("train", "Split to train on.")
    dataset_test_split: str = help_text("test", "Split to evaluate on.")
    dataset_streaming: bool = help_text(False, "Read the dataset as a stream.")
    ignore_bias_buffers: bool = help_text(False, "No effect: it works around DDP with other losses.")

    def __post_init__(self) -> None:
        if self.ignore_bias_buffers:
            warn("ignore_bias_buffers=True has no effect: it works around DDP with other losses.")


class TrlParser(HfArgumentParser):
    """Reads dataclasses of settings from the command line and from the YAML file after `--config`.

    Args:
        dataclass_types: one dataclass or several.
        kwargs: arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, dataclass_types: type | Iterable[type] | None = None, **kwargs: Any) -> None:
        several: Any = [dataclass_types] if isinstance(dataclass_types, type) else dataclass_types
        super().__init__(several, **kwargs)

    def parse_args_and_config(
        self,
        args: Iterable[str] | None = None,
        return_remaining_strings: bool = False,
        fail_with_unknown_args: bool = True,
        separate_remaining_strings: bool = False,
    ) -> tuple[Any, ...]:
        """Return one object per dataclass.

        Args:
            args: words of the command line; default: this process's.
            return_remaining_strings: give words back that no dataclass has, as a list at the end.
            fail_with_unknown_args: refuse names of the file that no dataclass has, unless they are given back.
            separate_remaining_strings: give those of the file and those of the command line back as two lists.

        Raises:
            ConfigError: the file cannot be used, or has a name that no dataclass has.
        """
        words = list(sys.argv[1:] if args is None else args)
        path, words = taken_out(words, "--config")
        unknown = self.set_defaults_with_config(**read_config_file(path)) if path is not None else []
        if unknown and fail_with_unknown_args and not return_remaining_strings:
            names = [word.removeprefix("--") for word in unknown[::2]]
            close = difflib.get_close_matches(names[0], [action.dest for action in self._actions], n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise ConfigError(
                f"The file of --config has {', '.join(map(repr, names))}, which is no setting.{hint}"
            )
        found = self.parse_args_into_dataclasses(words, return_remaining_strings, look_for_args_file=False)
        parsed, left = (found[:-1], list(found[-1])) if return_remaining_strings else (found, [])
        if any(
            getattr(part, "trust_remote_code", False) for part in parsed
        ):  # one flag for training and model
            for part in parsed:
                if hasattr(part, "trust_remote_code"):
                    part.trust_remote_code = True
        if not return_remaining_strings:
            return tuple(parsed)
        return (*parsed, left, unknown) if separate_remaining_strings else (*parsed, unknown + left)

    def set_defaults_with_config(self, **kwargs: object) -> list[str]:
        """Take values of a file as defaults, after which nothing is required that it has; return words of unknown names."""
        known = {action.dest: action for action in self._actions}
        for name in known.keys() & kwargs.keys():
            known[name].required = False
        self.set_defaults(**{name: value for name, value in kwargs.items() if name in known})
        return [
            word for name, value in kwargs.items() if name not in known for word in (f"--{name}", str(value))
        ]


def taken_out(words: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Return the value of a flag, None where it is not there, and the other words of a command line.

    Raises:
        ConfigError: the flag has no value.
    """
    for number, word in enumerate(words):
        name, is_inline, value = word.partition("=")
        if name == flag:
            after = number + (1 if is_inline else 2)
            if not is_inline and after > len(words):
                raise ConfigError(f"{flag} needs the path of a YAML file.")
            return value if is_inline else words[number + 1], words[:number] + words[after:]
    return None, words


def read_config_file(path: str) -> dict[str, Any]:
    """Return the settings of a YAML file, by name; its block `env` becomes environment variables.

    Raises:
        ConfigError: the file is not there, is no mapping, or its `env` is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            settings = yaml.safe_load(file) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--config {path} holds {type(settings).__name__}; it must hold names and values.")
    env = settings.pop("env", {})
    if not isinstance(env, dict):
        raise ConfigError(f"--config {path}: env is {env!r}; it must be a mapping of variables to values.")
    os.environ.update({str(name): str(value) for name, value in env.items()})
    return settings
