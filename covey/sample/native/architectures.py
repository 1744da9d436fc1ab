"""Policies that the fast path knows, and what a layer of theirs computes.

All of them are a stack of the same layer: attention with rotary positions and grouped heads, a feed-forward part, norms
before or after each. What a family does beyond its modules and its config stands in `FAMILIES`; all else is read from
these: biases, which norms there are, tied heads, windows, caps, multipliers, experts.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from covey.kernels.head_logprobs import LogitForm
from covey.models.inspect import innermost, text_config

PACKAGE = "transformers.models."

STATIC_ROPES = ("default", "linear", "llama3", "yarn", "longrope")
"""Scalings of rotary positions that do not depend on the length of the text, up to the length that training began with."""


@dataclass(frozen=True)
class Family:
    """Facts of a family that its modules and config do not tell."""

    turns_neighbours: bool = False
    """Whether the two numbers that a rotary position rotates are neighbours, rather than half of a head apart."""
    norms_add_one: bool = False
    """Whether norms multiply with 1 + weight."""
    caps_scores: bool = False
    """Whether attention heeds the config's cap on scores."""
    has_windows: bool = True
    """Whether masks heed a window of the config where no list of kinds of layers stands beside it."""
    only_windows_turn: bool = False
    """Whether layers without a window have no rotary positions."""


LLAMA, NEIGHBOURS = Family(), Family(turns_neighbours=True)
FAMILIES = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "SmolLM3ForCausalLM": LLAMA,
    "Phi3ForCausalLM": LLAMA,
    "GraniteForCausalLM": LLAMA,
    "Olmo2ForCausalLM": LLAMA,
    "Olmo3ForCausalLM": LLAMA,
    "Starcoder2ForCausalLM": LLAMA,
    "MixtralForCausalLM": LLAMA,
    "Qwen2MoeForCausalLM": LLAMA,
    "Qwen3MoeForCausalLM": LLAMA,
    "OlmoeForCausalLM": Family(has_windows=False),
    "GptOssForCausalLM": LLAMA,
    "GlmForCausalLM": NEIGHBOURS,
    "Glm4ForCausalLM": NEIGHBOURS,
    "CohereForCausalLM": NEIGHBOURS,
    "Cohere2ForCausalLM": Family(turns_neighbours=True, only_windows_turn=True),
    "GemmaForCausalLM": Family(norms_add_one=True),
    "Gemma2ForCausalLM": Family(norms_add_one=True, caps_scores=True),
    "Gemma3ForCausalLM": Family(norms_add_one=True),
}
"""By class of transformers."""

SEEING = (
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Glm4vForConditionalGeneration",
)
"""Classes around a decoder in which a token of a picture sees what a token of text sees."""
DECODERS = {
    "LlamaModel": LLAMA,
    "MistralModel": LLAMA,
    "Qwen2Model": LLAMA,
    "Qwen3Model": LLAMA,
    "Qwen2VLTextModel": LLAMA,
    "Qwen2_5_VLTextModel": LLAMA,
    "Qwen3VLTextModel": LLAMA,
    "Qwen3VLMoeTextModel": LLAMA,
    "Glm4vTextModel": NEIGHBOURS,
}
"""Decoders in them that are known."""


def decoder_of(policy: nn.Module) -> Any:
    """Return the decoder of text: embedding, layers, last norm and rotary positions."""
    inner: Any = innermost(policy)
    return inner.get_decoder() if _own_class(inner, SEEING) else inner.model


def _own_class(module: Any, names: Container[str]) -> Any:
    """Return the class of transformers, of these names, that a module has or inherits from; None: it has none.

    FSDP makes subclasses of these classes, and others do: one that computes something else is not of the family.
    """
    ancestors: tuple[Any, ...] = type(module).__mro__
    own = [c for c in ancestors if c.__name__ in names and c.__module__.startswith(PACKAGE)]
    return own[0] if own and type(module).forward is own[0].forward else None


@dataclass(frozen=True)
class LayerForm:
    """Treatment of the positions of tokens in one layer."""

    window: int | None
    """The newest tokens that a token sees, itself among them; None: all before it."""
    rotary: str | None
    """Kind of layer that the policy's rotary positions are asked for, "" where it has one for all; None: there are none."""


@dataclass(frozen=True)
class Architecture:
    """The sizes of one policy, and the numbers in its formulas."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    longest: int | None
    """Tokens up to which rotary positions do not depend on the length of the text; None: no limit."""
    family: Family
    forms: tuple[LayerForm, ...]
    """One per layer."""
    turned: int
    """Numbers of a head that rotary positions rotate, the first ones."""
    score_scale: float
    """What products of queries and keys are multiplied with."""
    score_cap: float | None
    embedding_scale: float
    residual_scale: float
    """What attention and feed-forward part are multiplied with before they are added to the stream."""
    logit_form: LogitForm
    has_experts: bool

    @property
    def queries_per_key(self) -> int:
        return self.heads // self.kv_heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Return the different windows of its layers, the shortest first."""
        return tuple(sorted({form.window for form in self.forms if form.window is not None}))


def unsupported_reason(policy: nn.Module) -> str | None:
    """Return why the fast path cannot decode this policy; None: it can."""
    inner: Any = innermost(policy)
    if _own_class(inner, SEEING):
        if not _own_class(decoder_of(policy), DECODERS):
            return f"{type(inner).__name__} has a {type(decoder_of(policy)).__name__}, which it does not know"
    elif not _own_class(inner, FAMILIES):
        return f"{type(inner).__name__} is not of a family that it knows"
    config, layers = text_config(policy), decoder_of(policy).layers
    for kind in {rope.get("rope_type", rope.get("type", "default")) for rope in _ropes(config)}:
        if kind not in STATIC_ROPES:
            return f"its rotary positions depend on the length of the text ({kind})"
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        return f"it has layers of another kind ({', '.join(sorted(unknown))})"
    for flag in ("clip_qkv", "use_bidirectional_attention"):
        if getattr(config, flag, None) not in (None, False):
            return f"its config has {flag}"
    if any(_is_wrapped(part) for layer in layers for part in _expert_parts(layer)):
        return "its experts or their routers have an adapter or are quantised"
    adapters: object = getattr(policy, "peft_config", None)
    if isinstance(adapters, dict) and any(getattr(c, "is_prompt_learning", False) for c in adapters.values()):
        return "its adapter adds virtual tokens"
    return None


def architecture_of(policy: nn.Module) -> Architecture:
    """Return the sizes of a policy that the fast path knows."""
    inner, decoder, config = innermost(policy), decoder_of(policy), text_config(policy)
    known: Any = _own_class(inner, FAMILIES) or _own_class(decoder, DECODERS)
    family = (FAMILIES | DECODERS)[known.__name__]
    attention = decoder.layers[0].self_attn
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    part = max(float(rope.get("partial_rotary_factor", 1.0)) for rope in _ropes(config))
    long = [rope for rope in _ropes(config) if rope.get("rope_type") == "longrope"]
    # The lengths up to which the factors for short texts hold.
    of_short = "original_max_position_embeddings"
    lengths = [int(rope.get(of_short) or getattr(config, of_short)) for rope in long]
    cap = getattr(config, "attn_logit_softcapping", None) if family.caps_scores else None
    scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    logit_cap = getattr(config, "final_logit_softcapping", None)
    return Architecture(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        longest=min(lengths, default=None),
        family=family,
        forms=tuple(_layer_forms(decoder, config, family)),
        turned=int(head_dim * part),
        score_scale=float(attention.scaling),
        score_cap=None if cap is None else float(cap),
        embedding_scale=_embedding_scale(decoder, config),
        residual_scale=float(getattr(config, "residual_multiplier", 1.0)),
        logit_form=LogitForm(
            float(scale or 1.0) / float(divisor or 1.0), None if logit_cap is None else float(logit_cap)
        ),
        has_experts=any(_expert_parts(layer) for layer in decoder.layers),
    )


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return what the config says of rotary positions: once, or once per kind of layer."""
    ropes = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [r for r in ropes.values() if r] if _has_rope_per_kind(config) else [ropes]


def _has_rope_per_kind(config: Any) -> bool:
    ropes = getattr(config, "rope_parameters", None) or {}
    return bool(ropes) and all(isinstance(value, dict) or value is None for value in ropes.values())


def _layer_forms(decoder: Any, config: Any, family: Family) -> Iterator[LayerForm]:
    kinds: Any = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if kinds or family.has_windows else None
    for number, layer in enumerate(decoder.layers[: config.num_hidden_layers]):
        its_window = int(window) if window and (not kinds or kinds[number] == "sliding_attention") else None
        rotary: str | None = kinds[number] if _has_rope_per_kind(config) else ""
        if (family.only_windows_turn and its_window is None) or not getattr(
            layer.self_attn, "use_rope", True
        ):
            rotary = None
        yield LayerForm(its_window, rotary)


def _embedding_scale(decoder: Any, config: Any) -> float:
    """Return what embeddings are multiplied with: a number of the config, or one of the module in the dtype of its weights."""
    module = decoder.embed_tokens
    scale = getattr(innermost_module(module), "embed_scale", None)
    if scale is not None:
        return float(scale.to(module.weight.dtype))
    return float(getattr(config, "embedding_multiplier", 1.0))


def innermost_module(module: Any) -> Any:
    """Return the layer inside wrappers of peft."""
    while hasattr(module, "base_layer") or (
        hasattr(module, "original_module") and hasattr(module, "modules_to_save")
    ):
        module = module.base_layer if hasattr(module, "base_layer") else module.original_module
    return module


def _expert_parts(layer: Any) -> list[Any]:
    """Return experts and router of a layer; none where it has one feed-forward network."""
    experts = getattr(layer.mlp, "experts", None)
    router = getattr(layer.mlp, "gate", None) or getattr(layer.mlp, "router", None)
    return [] if experts is None else [experts, router]


def _is_wrapped(module: Any) -> bool:
    return innermost_module(module) is not module or not hasattr(
        module, "gate_up_proj" if hasattr(module, "down_proj") else "weight"
    )
