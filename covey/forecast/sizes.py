"""Sizes of a recipe's model, lengths of its prompts, and the demands of its settings. No weight is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from covey.config import ModelConfig, get_peft_config
from covey.errors import CoveyError
from covey.forecast.memory import OPTIMIZERS, Demand, Sizes
from covey.forecast.picture_lengths import PictureLengths, picture_lengths
from covey.forecast.tower_sizes import tower_of
from covey.models.adapters import of_decoder, without_retired_name
from covey.models.families import is_family
from covey.models.loading import resolved_dtype
from covey.models.outline import config_for, outline
from covey.plan import Plan
from covey.recipes import Recipe
from covey.sample.given_data import is_map_style
from covey.sample.native.memory_budget import cache_budget
from covey.trainer.data import kept_rows
from covey.vision.features import freeze, sees_with

if TYPE_CHECKING:
    from peft import PeftConfig

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
    pictures: PictureLengths | None = None
    """Whose tokens are among those; None: there are none, or the policy is not shown them."""

    def with_smaller_pictures(self) -> tuple[int, PromptLengths] | None:
        """Return a value of max_pixels that halves the largest picture, and about what prompts have then; None: it has no effect."""
        if self.pictures is None or (found := self.pictures.halved) is None:
            return None
        shown, share = self.pictures.demand, found[1] / self.pictures.most
        numbers = {
            n: math.ceil(share * getattr(shown, n))
            for n in ("tokens", "patches", "largest", "pixels", "held")
        }
        less = replace(self.pictures, demand=replace(shown, **numbers))
        longest = self.longest - shown.tokens + less.demand.tokens
        return found[0], replace(self, longest=longest, pictures=less)

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.longest} at most, the limit"
        return f"{self.mean:.0f} on average, {self.longest} at most, in {self.rows} rows"


def prompt_lengths(recipe: Recipe, loads_data: bool = True) -> PromptLengths:
    """Return the lengths of the training prompts as they will be sampled from, cut where the settings cut them, and their pictures.

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
    reader, policy = recipe.reader()
    numbers = kept_rows(recipe.train_dataset, reader) or []
    step = max(1, len(numbers) // MOST_ROWS)
    read = [reader.read(recipe.train_dataset[n], n, (n, 0)) for n in numbers[::step][:MOST_ROWS]]
    seen, pictures = [len(prompt.ids) for prompt in read], None
    if (eyes := reader.eyes) is not None and policy is not None:
        way = recipe.model_config.attn_implementation
        pictures = picture_lengths(eyes, policy, read, len(numbers), is_eager=way == "eager")
    return PromptLengths(sum(seen) / len(seen), max(seen), len(seen), pictures)


def sizes_of(recipe: Recipe) -> Sizes:
    """Return the sizes of the policy that the recipe trains, its adapter included.

    Raises:
        LoadingError: its config cannot be read.
    """
    given, args = recipe.model_config, recipe.config
    model: Any = outline(given)
    config = model.config
    with torch.device("meta"):
        # the head stays as it is
        linear = {m for m in model.modules() if isinstance(m, nn.Linear)} - {model.get_output_embeddings()}
        quantised = {id(m.weight) for m in linear} if given.load_in_4bit or given.load_in_8bit else set()
        adapter: PeftConfig | None = get_peft_config(given)
        if adapter is not None:
            from peft import get_peft_model

            adapter = adapter if args.lora_vision else of_decoder(model, adapter)
            with without_retired_name():
                get_peft_model(model, adapter)  # changes the model itself
        if args.freeze_vision_tower:
            freeze(model, args.freeze_projector)
    tower = tower_of(model, quantised) if is_family(config) else None
    seen = {id(p) for p in sees_with(model)} if is_family(config) else set()
    own = [p for p in model.parameters() if id(p) not in seen]
    text = config.get_text_config()
    widths = _widths(text)
    return Sizes(
        weights=sum(p.numel() for p in own),
        trained=sum(p.numel() for p in own if p.requires_grad),
        quantised=sum(p.numel() for p in own if id(p) in quantised),
        layers=int(text.num_hidden_layers),
        hidden=int(text.hidden_size),
        intermediate=int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        queries=max(queries for queries, _ in widths),
        keys=max(keys for _, keys in widths),
        vocabulary=int(text.vocab_size),
        tower=tower,
    )


def _widths(text: Any) -> list[tuple[int, int]]:
    """Return heads times their width, of queries and of keys, by layer; once where all layers are alike."""
    each, found = getattr(text, "per_layer_config", None), []
    for layer in [text] if each is None else [each[i] for i in range(int(text.num_hidden_layers))]:
        heads = int(layer.num_attention_heads)
        width = int(getattr(layer, "head_dim", None) or layer.hidden_size // heads)
        keys = int(getattr(layer, "num_key_value_heads", None) or heads)
        found.append((heads * width, keys * width))
    return found


def demand_of(recipe: Recipe, plan: Plan, lengths: PromptLengths | int) -> Demand:
    """Return what the settings ask of the memory: on a laptop a recipe for a GPU is reckoned as on the GPU.

    Args:
        lengths: of the prompts; a number: all are texts of so many tokens.
    """
    args, given = recipe.config, recipe.model_config
    if isinstance(lengths, int):
        lengths = PromptLengths(lengths, lengths, 0)
    is_quantised = given.load_in_4bit or given.load_in_8bit
    needs_gpu = is_quantised or any(map(recipe.settings.get, ("bf16", "fp16", "activation_offloading")))
    wants_gpu = not args.use_cpu or (needs_gpu and not recipe.settings.get("use_cpu", False))
    dtype = resolved_dtype(given.dtype or "float32")
    if dtype == "auto":
        dtype = config_for(given).dtype or torch.float32
    weight = dtype.itemsize if isinstance(dtype, torch.dtype) else 4
    lowered = 2 if (recipe.settings.get("bf16", args.bf16) or args.fp16) else 4
    here = args.device
    trained = 4 if is_quantised or given.use_peft else weight
    # A laptop may lack the optimizer's package, and its settings fall back.
    optimizer = recipe.settings.get("optim", args.optim) if wants_gpu and here.type == "cpu" else args.optim
    return Demand(
        completions=args.per_device_train_batch_size,
        group=args.num_generations,
        sampled=0 if args.engine_urls else plan.prompts_per_rollout * plan.group_size // plan.ranks,
        prompt_tokens=lengths.longest,
        completion_tokens=args.max_completion_length,
        weight_bytes=4 if is_quantised else weight,  # peft makes the rest float32
        trained_bytes=trained,
        compute_bytes=min(lowered, weight),
        quantised_bytes=_quantised_bytes(given),
        optimizer_bytes=OPTIMIZERS.get(getattr(optimizer, "value", str(optimizer)), 2 * trained),
        is_checkpointed=bool(getattr(args, "activation_checkpointing", args.gradient_checkpointing)),
        has_reference=args.beta > 0,
        is_cpu=not wants_gpu,
        budget=cache_budget(here) if (here.type == "cpu") != wants_gpu else None,
        max_tokens=args.max_tokens_per_forward,
        is_offloaded=bool(recipe.settings.get("activation_offloading", False)),
        shown=None if lengths.pictures is None else lengths.pictures.demand,
    )


def _quantised_bytes(given: ModelConfig) -> float:
    """Return the bytes of a quantised weight, with its share of the constants (arXiv:2305.14314, section 3)."""
    if not given.load_in_4bit:
        return 1.0 if given.load_in_8bit else 0.0
    constants = 1 / CONSTANTS + 4 / (CONSTANTS * 256) if given.use_bnb_nested_quant else 4 / CONSTANTS
    return 0.5 + constants
