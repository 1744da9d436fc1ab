"""Names in `generation_kwargs` and `chat_template_kwargs`: those of other engines, and those that the run says itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey.config.validation import defaults, fits, kinds_of, refusal
from covey.errors import ConfigError
from covey.types import TEMPLATE_ARGUMENTS

if TYPE_CHECKING:
    from covey.config.grpo import GRPOConfig

FIELDS = {
    "max_new_tokens": "max_completion_length",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
"""Options of transformers' `generate` that are fields of GRPOConfig."""

OTHER_NAMES = {
    "stop": "stop_strings",
    "stop_words": "stop_strings",
    "stop_sequences": "stop_strings",
    "include_stop_str_in_output": "stop_strings",
    "stop_token_ids": "eos_token_id",
    "eos_token_ids": "eos_token_id",
    "min_tokens": "min_new_tokens",
    "min_length": "min_new_tokens",
    "ignore_eos": "min_new_tokens",
    "bad_words": "bad_words_ids",
    "max_tokens": "GRPOConfig.max_completion_length",
    "max_completion_tokens": "GRPOConfig.max_completion_length",
    "n": "GRPOConfig.num_generations",
    "best_of": "GRPOConfig.num_generations",
    "num_generations": "GRPOConfig.num_generations",
    "num_completions": "GRPOConfig.num_generations",
    "seed": "GRPOConfig.seed",
    "skip_special_tokens": "GRPOConfig.keep_special_tokens",
    "presence_penalty": "GRPOConfig.repetition_penalty",
    "frequency_penalty": "GRPOConfig.repetition_penalty",
    "cache_implementation": "GRPOConfig.cache_implementation",
}
"""Names of vLLM, SGLang and web APIs, and the one that is meant here: another option, or a field of GRPOConfig."""


def read_sampling_names(config: GRPOConfig) -> None:
    """Refuse names of other engines and of what the run says itself; let options that are also fields count.

    Raises:
        ConfigError: such a name, or a value of another kind than its field.
    """
    for setting in ("generation_kwargs", "eval_generation_kwargs"):
        for name in getattr(config, setting) or ():
            if name in OTHER_NAMES:
                meant = OTHER_NAMES[name]
                where = f"the option {meant}" if "." not in meant else f"the setting {meant.split('.')[1]}"
                raise ConfigError(f"{setting} has {name!r}, a name of another engine. Here it is {where}.")
    taken = sorted(TEMPLATE_ARGUMENTS & set(config.chat_template_kwargs or ()))
    if taken:
        raise ConfigError(
            f"chat_template_kwargs has {', '.join(map(repr, taken))}, which Covey says to the chat template itself. Leave it "
            "out; what else is there reaches the template as a variable."
        )
    read_options(config)


def read_options(config: GRPOConfig) -> None:
    """Let an option of `generation_kwargs` that is also a field count where the field stands at its default."""
    cls: type = type(config)
    default, kinds = defaults(cls), kinds_of(cls)
    given: Any = config.generation_kwargs or {}
    for option, field in FIELDS.items():
        value = given.get(option)
        if value is None or getattr(config, field) != default[field]:
            continue
        if not fits(value, kinds[field]):
            raise ConfigError(refusal(f"generation_kwargs[{option!r}]", value, kinds[field], "None"))
        setattr(config, field, value)
