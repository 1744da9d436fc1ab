"""A tiny random model of each family that the fast path knows, with everything on that the family can do.

Weights are large enough that a wrong mask, cap or position is seen; windows are shorter than the texts.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.tiny import BOS, EOS, PAD, VOCABULARY, llama_sizes

WINDOW = 7
HALF = ["sliding_attention", "full_attention"] * 2
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
PART = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
GEMMA = {"sliding_window": WINDOW, "query_pre_attn_scalar": 5, "layer_types": HALF}

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {"sliding_window": WINDOW},
    "Qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": HALF},
    "Qwen3": {},
    "SmolLM3": {"no_rope_layers": [1, 0, 1, 0]},
    "Phi3": {"sliding_window": WINDOW, "original_max_position_embeddings": 512, "rope_parameters": PART},
    "Granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
        "attention_bias": True,
    },
    "Olmo2": {},
    "Olmo3": {"sliding_window": WINDOW, "layer_types": HALF},
    "Starcoder2": {"sliding_window": WINDOW, "use_bias": True},
    "Mixtral": {"sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2},
    "Qwen2Moe": {"shared_expert_intermediate_size": 24, "decoder_sparse_step": 2, **EXPERTS},
    "Qwen3Moe": {"norm_topk_prob": True, "mlp_only_layers": [1], **EXPERTS},
    "Olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "GptOss": {"sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2},
    "Glm": {"rope_parameters": PART},
    "Glm4": {"rope_parameters": PART, "attention_bias": True},
    "Cohere": {"use_qk_norm": True, "logit_scale": 0.5},
    "Cohere2": {"sliding_window": WINDOW, "layer_types": HALF, "logit_scale": 0.5},
    "Gemma": {},
    "Gemma2": {
        "attn_implementation": "eager",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        **GEMMA,
    },
    "Gemma3": {"final_logit_softcapping": 9.0, **GEMMA},
}


def family_model(name: str, seed: int = 0, **config: Any) -> Any:
    """A model in eval mode; norms, biases and sinks are random too."""
    config_class = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    ids = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    sizes = {**llama_sizes(), "num_hidden_layers": 4}
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(
        config_class(**{**ids, **sizes, **FAMILIES[name], **config})
    )
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(0, 1.0 if parameter.ndim == 1 else 0.3)
    return model.eval()
