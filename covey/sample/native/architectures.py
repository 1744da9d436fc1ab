"""Which policies the fast path knows, and where their parts are: Llama, SmolLM, Qwen2, Qwen2.5, Qwen3 and Mistral.

All of them are a stack of the same layer: RMS norm, attention with rotary positions and grouped heads, RMS norm, gated
MLP. What differs (biases, norms of queries and keys, tied heads, the scaling of positions) is read from the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from covey.models.inspect import innermost

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

STATIC_ROPES = ("default", "linear", "llama3", "yarn")
"""Scalings of rotary positions that do not depend on the length of the text."""


@dataclass(frozen=True)
class Shape:
    """The numbers that describe one policy."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    longest: int | None
    """Tokens up to which every layer attends to everything (a sliding window); None: no limit."""

    @property
    def queries_per_key(self) -> int:
        return self.heads // self.kv_heads


def why_not(policy: nn.Module) -> str | None:
    """Why the fast path does not know this policy; None: it does."""
    inner: Any = innermost(policy)
    if not _is_of_the_family(type(inner)):
        return f"{type(inner).__name__} is not of the Llama family"
    config = inner.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in STATIC_ROPES:
        return f"its rotary positions depend on the length of the text ({kind})"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    if any(getattr(c, "is_prompt_learning", False) for c in _adapters(policy)):
        return "its adapter adds virtual tokens"
    return None


def _is_of_the_family(kind: type) -> bool:
    """One of the classes, or what FSDP makes of it; not a subclass that computes something else."""
    for base in kind.__mro__:
        if base.__name__ in CLASSES and base.__module__.startswith("transformers.models."):
            return kind.forward is base.forward  # type: ignore[attr-defined]
    return False


def shape_of(policy: nn.Module) -> Shape:
    """The shape of a policy that the fast path knows."""
    config: Any = innermost(policy).config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        longest=_longest(config),
    )


def _longest(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return None
    return int(window)


def _adapters(policy: Any) -> list[Any]:
    configs = getattr(policy, "peft_config", None)
    return list(configs.values()) if isinstance(configs, dict) else []
