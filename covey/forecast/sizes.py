"""Sizes of a recipe's model, lengths of its prompts, and the demands of its settings. No weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from covey.config import ModelConfig, get_peft_config
from covey.errors import CoveyError, LoadingError
from covey.forecast.memory import OPTIMIZERS, Demand, Sizes
from covey.models.adapters import without_retired_name
from covey.models.loading import is_absent, load_tokenizer, not_loaded, resolved_dtype
from covey.plan import Plan
from covey.recipes import Recipe
from covey.sample.given_data import is_map_style
from covey.sample.native.memory_budget import cache_budget
from covey.trainer.data import kept_rows
from covey.trainer.parts import prompt_reader

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CONSTANTS = 64
"""Weights that share a constant of the quantisation in bitsandbytes."""

MOST_ROWS = 256
"""Rows whose prompts are measured, spread evenly over the dataset."""


@dataclass(frozen=True)
class PromptLengths:
    """Tokens per prompt."""

    mean: float
    longest: int
    rows: int
    """Prompts that were measured; 0: none could be, and `mean` and `longest` are the limit."""

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.longest} at most, the limit"
        return f"{self.mean:.0f} on average, {self.longest} at most, in {self.rows} rows"


def prompt_lengths(recipe: Recipe, loads_data: bool = True) -> PromptLengths:
    """Return the lengths of the training prompts as they will be sampled from, cut where the settings cut them.

    Raises:
        CoveyError: neither the data nor a limit says it.
    """
    args = recipe.config
    if not loads_data or recipe.train_dataset is None or not is_map_style(recipe.train_dataset):
        if args.max_prompt_length is None:
            raise CoveyError(
                "the lengths of the prompts are not known: no data is loaded, and max_prompt_length is not set"
            )
        return PromptLengths(args.max_prompt_length, args.max_prompt_length, 0)
    tokenizer = load_tokenizer(recipe.tokenizer(), recipe.model_config, args.trust_remote_code)
    reader = prompt_reader(args, tokenizer, None)
    numbers = kept_rows(recipe.train_dataset, reader) or []
    step = max(1, len(numbers) // MOST_ROWS)
    seen = [len(reader.read(recipe.train_dataset[n], n, (n, 0)).ids) for n in numbers[::step][:MOST_ROWS]]
    return PromptLengths(sum(seen) / len(seen), max(seen), len(seen))


def sizes_of(recipe: Recipe) -> Sizes:
    """Return the sizes of the policy that the recipe trains, its adapter included.

    Raises:
        LoadingError: its config cannot be read.
    """
    given = recipe.model_config
    config = _config(given)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=given.trust_remote_code)
        # the head stays as it is
        linear = {m for m in model.modules() if isinstance(m, nn.Linear)} - {model.get_output_embeddings()}
        is_quantised = given.load_in_4bit or given.load_in_8bit
        quantised = sum(m.weight.numel() for m in linear) if is_quantised else 0
        adapter = get_peft_config(given)
        if adapter is not None:
            from peft import get_peft_model

            with without_retired_name():
                model = get_peft_model(model, adapter)
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Sizes(
        weights=sum(p.numel() for p in model.parameters()),
        trained=trained,
        quantised=quantised,
        layers=int(text.num_hidden_layers),
        hidden=int(text.hidden_size),
        intermediate=int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        queries=heads * width,
        keys=int(getattr(text, "num_key_value_heads", None) or heads) * width,
        vocabulary=int(text.vocab_size),
    )


def demand_of(recipe: Recipe, plan: Plan, prompt_tokens: int) -> Demand:
    """Return what the settings ask of the memory: on a laptop a recipe for a GPU is reckoned as on the GPU.

    Args:
        prompt_tokens: of the longest prompt.
    """
    args, given = recipe.config, recipe.model_config
    is_quantised = given.load_in_4bit or given.load_in_8bit
    needs_gpu = is_quantised or any(map(recipe.settings.get, ("bf16", "fp16", "activation_offloading")))
    wants_gpu = not args.use_cpu or (needs_gpu and not recipe.settings.get("use_cpu", False))
    dtype = resolved_dtype(given.dtype or "float32")
    if dtype == "auto":
        dtype = _config(given).dtype or torch.float32
    weight = dtype.itemsize if isinstance(dtype, torch.dtype) else 4
    lowered = 2 if (recipe.settings.get("bf16", args.bf16) or args.fp16) else 4
    here = args.device
    return Demand(
        completions=args.per_device_train_batch_size,
        group=args.num_generations,
        sampled=plan.prompts_per_rollout * plan.group_size // plan.ranks,
        prompt_tokens=prompt_tokens,
        completion_tokens=args.max_completion_length,
        weight_bytes=4 if is_quantised else weight,  # peft makes the rest float32
        compute_bytes=min(lowered, weight),
        quantised_bytes=_quantised_bytes(given),
        optimizer_bytes=OPTIMIZERS.get(getattr(args.optim, "value", str(args.optim)), 2 * weight),
        is_checkpointed=bool(getattr(args, "activation_checkpointing", args.gradient_checkpointing)),
        has_reference=args.beta > 0,
        is_cpu=not wants_gpu,
        budget=cache_budget(here) if (here.type == "cpu") != wants_gpu else None,
        max_tokens=args.max_tokens_per_forward,
        is_offloaded=bool(recipe.settings.get("activation_offloading", False)),
    )


def _config(given: ModelConfig) -> PretrainedConfig:
    """Return the config of the model that is named."""
    name = str(given.model_name_or_path)
    try:
        return AutoConfig.from_pretrained(
            name, revision=given.model_revision, trust_remote_code=given.trust_remote_code
        )
    except (OSError, ValueError) as error:
        if is_absent(name):
            raise not_loaded("policy", name, error) from error
        reason = str(error).splitlines()[0]
        raise LoadingError(f"the config of {name} cannot be read: {reason}") from error


def _quantised_bytes(given: ModelConfig) -> float:
    """Return the bytes of a quantised weight, with its share of the constants (arXiv:2305.14314, section 3)."""
    if not given.load_in_4bit:
        return 1.0 if given.load_in_8bit else 0.0
    constants = 1 / CONSTANTS + 4 / (CONSTANTS * 256) if given.use_bnb_nested_quant else 4 / CONSTANTS
    return 0.5 + constants
