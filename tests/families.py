"""Tiny random models of every causal family of transformers, from the family's own default config made small."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.tiny import BOS, EOS, PAD, VOCABULARY

FAMILIES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))

SIZES: dict[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    32: "hidden_size n_embd d_model dim dim_model embed_dim emb_dim word_embed_proj_dim lru_width",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_blocks",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads linear_num_key_heads "
    "linear_num_value_heads num_experts num_local_experts n_routed_experts moe_num_experts mamba_n_heads",
    8: "head_dim kv_channels attention_head_dim d_kv linear_key_head_dim linear_value_head_dim v_head_dim "
    "qk_nope_head_dim qk_rope_head_dim global_head_dim hidden_size_per_layer_input mamba_d_state state_size",
    64: "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim ffn_hidden_size dim_ff dff "
    "intermediate_dim sliding_window mamba_d_ssm",
    16: "moe_intermediate_size shared_expert_intermediate_size expert_intermediate_size expert_ffn_hidden_size q_lora_rank "
    "kv_lora_rank moe_shared_expert_intermediate_size moe_ffn_hidden_size shared_intermediate_size expert_ffn_size "
    "mamba_d_head",
    512: "max_position_embeddings n_positions max_seq_len n_ctx max_sequence_length context_length",
    1: "n_shared_experts num_shared_experts n_group topk_group",
}
SMALL: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()} | {
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "mamba_expand"), 2),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "top_k_experts"), 2),
    **dict.fromkeys(("num_experts_per_token", "experts_per_token"), 2),
    **{"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS},
}

LATENT = {"num_key_value_heads": 4}
NO_TYPES = {"layer_types": ...}
"""The field is derived from others."""
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ["axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear", "longcat_flash", "minicpm3", "sarvam_mla", "youtu"],
        LATENT,
    ),
    "bamba": {"attn_layer_indices": [1], **NO_TYPES},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_theta": 1e4, "rope_type": "default"}}},
    "codegen": {"rotary_dim": 4},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_text": {**LATENT, "head_dim": 16, "per_layer_config": None},
    "falcon_h1": NO_TYPES,
    "falcon_mamba": NO_TYPES,
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 64},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16},
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 8, "use_mamba_kernels": False, **NO_TYPES,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba": NO_TYPES,
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4, **NO_TYPES},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 64, **NO_TYPES},
    "qwen4_exp_text": {
        "indexer_budget": 64, "indexer_compress_ratio": 4, "indexer_head_dim": 8, "indexer_kv_heads": 1, "indexer_n_heads": 4,
        "ngram_vocab_size_base": 500, "split_ngram_parts": 1, "hc_lowrank": 8, "ple_embed_dim": 8,
    },
    "reformer": {
        "is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 32], "num_hashes": 1, "hidden_size": 32,
    },
    "xlstm": {"num_heads": 4, "head_dim": 8, "qk_dim_factor": 1.0, "v_dim_factor": 1.0, "chunk_size": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid"] * 2, "attention_hidden_size": 64,
        "attention_head_dim": 16, "num_key_value_heads": 4, "mamba_dt_rank": 2, "use_mamba_kernels": False,
    },
    "zamba2": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Fields of families whose small sizes do not fit together, or that differ from what is small for others."""


def tiny_config(family: str, **fields: Any) -> Any:
    """The family's default config, made small; `fields` are set besides, and `...` leaves one to the config."""
    return _shrunk(CONFIG_MAPPING[family], {**OVERRIDES.get(family, {}), **fields})


def tiny_of(family: str, seed: int = 0, **fields: Any) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(tiny_config(family, **fields)).float().eval()
    return model


def _shrunk(kind: Any, fields: dict[str, Any]) -> Any:
    default = kind()
    known = {*vars(default), *getattr(kind, "attribute_map", {})}
    small = {name: size for name, size in SMALL.items() if name in known}
    for name, value in vars(default).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            small[name] = _shrunk(type(value), OVERRIDES.get(value.model_type, {}))
    types = getattr(default, "layer_types", None)
    if types:  # two layers, and one of each kind
        kinds = list(dict.fromkeys(types))
        small["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        if "num_hidden_layers" in small:
            small["num_hidden_layers"] = len(small["layer_types"])
    small |= fields
    return kind(**{name: value for name, value in small.items() if value is not ...})
