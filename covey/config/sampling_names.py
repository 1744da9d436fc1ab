"""Names in `generation_kwargs` and `chat_template_kwargs`: those of other engines, and those that the run says itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey.config.validation import defaults, fits, kinds_of, refusal
from covey.errors import ConfigError, warn
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

KNOWN = frozenset(FIELDS) | {
    "min_new_tokens", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "no_repeat_ngram_size", "stop_strings",
    "eos_token_id", "max_length", "do_sample", "num_return_sequences", "num_beams", "use_cache", "return_dict_in_generate",
    "output_scores", "pad_token_id",
}  # fmt: skip
"""Options that Covey's own sampler takes, or refuses for a reason of its own."""

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


OF_VLLM = {
    "stop": "stop_strings",
    "stop_token_ids": "eos_token_id",
    "min_tokens": "min_new_tokens",
    "max_tokens": "max_new_tokens",
}
"""Names of vLLM that mean the same as an option here."""

SAID = {
    "n": "num_generations says it",
    "best_of": "GRPO needs completions as they are drawn",
    "use_beam_search": "GRPO needs completions as they are drawn",
    "logprobs": "the trainer asks for what it needs",
    "prompt_logprobs": "the trainer asks for what it needs",
    "return_token_ids": "ids are what the trainer asks for",
    "return_tokens_as_token_ids": "ids are what the trainer asks for",
    "prompt": "prompts come from the dataset",
    "model": "the server's own model, or its adapter, is asked",
    "stream": "an answer is read when it is whole",
    "stream_options": "an answer is read when it is whole",
    "echo": "an answer is the completion alone",
    "suffix": "an answer is the completion alone",
    "ignore_eos": "the policy's own end tokens end a completion",
    "add_special_tokens": "prompts are sent as ids",
    "truncate_prompt_tokens": "max_prompt_length says it",
    "cache_salt": "it tells the versions of the weights apart",
    "detokenize": "texts are made of ids here",
    "skip_special_tokens": "keep_special_tokens says it",
}
"""Fields of a request to vLLM that the run says itself, and why."""

NOT_THERE = ("no_repeat_ngram_size", "bad_words_ids", "begin_suppress_tokens")
"""Options that servers of vLLM and SGLang have no way to do."""


def sampler_options(
    config: GRPOConfig, setting: str = "generation_kwargs"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sampling options under Covey's names, and those that only vLLM knows, for its requests.

    Raises:
        ConfigError: an option that the run says itself, that the engine cannot do, or that comes under two names.
    """
    given: Any = dict(getattr(config, setting) or {})
    if config.engine in ("vllm", "sglang"):
        for name in [n for n in NOT_THERE if given.get(n)]:
            raise ConfigError(
                f"{setting} sets {name}={given[name]!r}, which engine={config.engine!r} has no way to do. Leave it out, or sample "
                "with engine='native'."
            )
    if config.engine != "vllm":
        return given, {}
    given.pop("seed", None)  # every request has a seed of its own
    if given.get("include_stop_str_in_output") is True:
        given.pop("include_stop_str_in_output")  # it always is
    for name in [n for n in given if n in SAID]:
        raise ConfigError(f"{setting} sets {name}={given[name]!r}: {SAID[name]}. Leave it out.")
    ours = {n: v for n, v in given.items() if n in KNOWN}
    for name, meant in OF_VLLM.items():
        if name in given and meant in ours:
            raise ConfigError(f"{setting} has {name!r} and {meant!r}, which are the same. Give one of them.")
        if name in given:
            ours[meant] = given[name]
    return ours, {n: v for n, v in given.items() if n not in KNOWN and n not in OF_VLLM}


def lacks_policy_logprobs(config: GRPOConfig) -> bool:
    """Return whether tokens are drawn from another distribution than the policy's by an engine that says nothing of the latter.

    The correction for the sampler would then correct what was asked for: its weights were on average the probability of the
    tokens that were kept.
    """
    if config.engine not in ("vllm", "sglang"):
        return False
    ours, theirs = sampler_options(config)
    is_cut = config.top_p < 1.0 or config.top_k > 0 or bool(config.min_p) or config.repetition_penalty != 1.0
    is_masked = any(ours.get(n) for n in ("min_new_tokens", "suppress_tokens"))
    return is_cut or is_masked or bool(theirs) or config.vllm_structured_outputs_regex is not None


def read_sampling_names(config: GRPOConfig) -> None:
    """Refuse names of other engines and of what the run says itself; let options that are also fields count.

    Raises:
        ConfigError: such a name, or a value of another kind than its field.
    """
    for setting in ("generation_kwargs", "eval_generation_kwargs"):
        options, theirs = sampler_options(config, setting)
        if theirs and setting != "generation_kwargs":
            raise ConfigError(
                f"{setting} has {', '.join(map(repr, theirs))}, which only vLLM knows. Give it in generation_kwargs, where it acts on "
                "evaluation too."
            )
        if config.engine == "vllm" and "seed" in (getattr(config, setting) or ()):
            warn(
                f"{setting}: seed has no effect. Each completion has a seed of its own, made from GRPOConfig's seed."
            )
        for name in options:
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
    given, _ = sampler_options(config)
    for option, field in FIELDS.items():
        value = given.get(option)
        if value is None or getattr(config, field) != default[field]:
            continue
        if not fits(value, kinds[field]):
            raise ConfigError(refusal(f"generation_kwargs[{option!r}]", value, kinds[field], "None"))
        setattr(config, field, value)
