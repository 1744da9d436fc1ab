"""Adapters that travel alone to a server that has the weights beneath them: plain LoRA of linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from covey.models.inspect import innermost

NO_ADAPTER = "the policy has none"


def adapter_of(policy: nn.Module) -> tuple[str, list[tuple[str, Any]]]:
    """Return the name of the active LoRA adapter, and its layers by their path in the model."""
    causal: Any = innermost(policy)
    found = [
        (path, m) for path, m in causal.named_modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")
    ]
    if not found:
        return NO_ADAPTER, []
    active = found[0][1].active_adapters[0]
    return active, [(path, layer) for path, layer in found if active in layer.lora_A]


def why_not_adapter(policy: nn.Module, largest_rank: int) -> str | None:
    """Return why the policy's adapter cannot be sent without the weights beneath it; None: it can.

    Args:
        largest_rank: that all servers take; 0: one of them takes none.
    """
    causal: Any = innermost(policy)
    modules = list(causal.modules())
    tuners = [m for m in modules if hasattr(m, "base_layer")]
    keepers = [m for m in modules if hasattr(m, "original_module")]
    if not tuners and not keepers:
        return NO_ADAPTER
    head = causal.get_output_embeddings() if hasattr(causal, "get_output_embeddings") else None
    actives = {name for m in tuners for name in m.active_adapters}
    biases = [p for m in tuners for name, p in m.named_parameters() if name.endswith("bias")]
    ranks = [m.r[name] for m in tuners for name in actives if name in getattr(m, "r", ())]

    def any_says(attribute: str) -> bool:
        return any(getattr(m, attribute, {}).get(name) for m in tuners for name in actives)

    for is_so, reason in (
        (keepers, "it trains whole modules beside (modules_to_save, or single tokens)"),
        (
            any(hasattr(m, "parameter_name") for m in tuners),
            "it adapts single parameters (target_parameters)",
        ),
        (any(not hasattr(m, "lora_A") for m in tuners), "it is no LoRA"),
        (len(actives) != 1, f"{len(actives)} adapters are active"),
        (any(len(getattr(m, "lora_embedding_A", ())) for m in tuners), "it adapts the embedding"),
        (hasattr(head, "base_layer"), "it adapts the head"),
        (any_says("use_dora") or any_says("lora_variant"), "it is a variant of LoRA (DoRA or another)"),
        (any_says("lora_bias") or any(p.requires_grad for p in biases), "it trains biases"),
        (any(m.merged_adapters for m in tuners), "it is merged into the weights"),
        (not largest_rank, "a server takes no adapters"),
        (
            max(ranks, default=0) > largest_rank,
            f"its rank is {max(ranks, default=0)}, and a server takes {largest_rank} at most",
        ),
    ):
        if is_so:
            return reason
    return None


@contextmanager
def without_adapter(policy: nn.Module) -> Iterator[None]:
    """Switch the policy's adapters off inside."""
    current: Any = policy
    while current is not None and not hasattr(current, "disable_adapter"):
        current = getattr(current, "_modules", {}).get("_orig_mod") or getattr(current, "module", None)
    if current is None:
        yield
        return
    with current.disable_adapter():
        yield
