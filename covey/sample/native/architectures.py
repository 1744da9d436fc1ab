"""Policies that the fast path knows, and their sizes: Llama, SmolLM, Qwen2, Qwen2.5, Qwen3 and Mistral.

All of them are a stack of the same layer: RMS norm, attention with rotary positions and grouped heads, RMS norm, gated
MLP. What differs (biases, norms of queries and keys, tied heads, the scaling of positions) is read from the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from covey.models.inspect import innermost

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
PACKAGE = "transformers.models."

STATIC_ROPES = ("default", "linear", "llama3", "yarn")
"""Scalings of rotary positions that do not depend on the length of the text."""


@dataclass(frozen=True)
class Architecture:
    """The sizes of one policy."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    longest: int | None
    """Tokens up to which every layer attends to everything (a sliding window); None: no limit."""

    @property
    def queries_per_key(self) -> int:
        return self.heads // self.kv_heads


def unsupported_reason(policy: nn.Module) -> str | None:
    """Return why the fast path cannot decode this policy; None: it can."""
    inner: Any = innermost(policy)
    # FSDP makes subclasses of these classes, and others do: one that computes something else is not of the family.
    ancestors: tuple[Any, ...] = type(inner).__mro__
    family = [c for c in ancestors if c.__name__ in CLASSES and c.__module__.startswith(PACKAGE)]
    if not family or type(inner).forward is not family[0].forward:
        return f"{type(inner).__name__} is not of the Llama family"
    config = inner.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in STATIC_ROPES:
        return f"its rotary positions depend on the length of the text ({kind})"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    adapters: object = getattr(policy, "peft_config", None)
    if isinstance(adapters, dict) and any(getattr(c, "is_prompt_learning", False) for c in adapters.values()):
        return "its adapter adds virtual tokens"
    return None


def architecture_of(policy: nn.Module) -> Architecture:
    """Return the sizes of a policy that the fast path knows."""
    config: Any = innermost(policy).config
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    return Architecture(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        longest=None if window is None else int(window),
    )
