"""Tiny random models and a character tokenizer, saved as ordinary folders.

A policy has one vocabulary entry per character, so a test can read what was sampled and knows the ids beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn

Kind = Literal["qwen2", "llama", "qwen3", "mistral", "gpt2"]
KINDS: tuple[Kind, ...] = ("qwen2", "llama", "qwen3", "mistral", "gpt2")

SPECIAL = ["<pad>", "<bos>", "<eos>", "<stop>", "<|user|>", "<|assistant|>"]
PAD, BOS, EOS, STOP, USER, ASSISTANT = range(len(SPECIAL))
CHARACTERS = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
"""Printable ASCII, space and newline in the byte-level alphabet: transformers rebuilds a Qwen2 or GPT-2 tokenizer as a
byte-level one when it is loaded."""
VOCABULARY = len(SPECIAL) + len(CHARACTERS)

CHAT = (
    "{% for message in messages %}"
    "{{ '<|user|>' if message['role'] == 'user' else '<|assistant|>' }}{{ message['content'] }}"
    "{% if message['role'] != 'user' %}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

POLICIES: dict[str, tuple[type, type]] = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
}


def tiny_tokenizer(
    pad: str | None = "<pad>",
    template: str | None = CHAT,
    padding_side: str = "left",
    adds_bos: bool = False,
) -> Any:
    """One token per character; `pad="<eos>"` shares the id as many real tokenizers do, None has no padding token."""
    vocabulary = {token: number for number, token in enumerate(SPECIAL + CHARACTERS)}
    backend = Tokenizer(models.BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", BOS)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token=pad,
        additional_special_tokens=SPECIAL[STOP:],
        padding_side=padding_side,
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(kind: Kind = "qwen2", seed: int = 0, scale: float = 1.0, **config: Any) -> nn.Module:
    """A random policy in eval mode.

    Args:
        scale: multiplies matrices; above 1 the distribution is less uniform than a fresh model's.
        config: fields of the transformers config that differ from the tiny ones.
    """
    torch.manual_seed(seed)
    config_class, model_class = POLICIES[kind]
    sizes = _gpt2_sizes() if kind == "gpt2" else llama_sizes()
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    model = model_class(config_class(**{"vocab_size": VOCABULARY, **ends, **sizes, **config})).eval()
    _stretch(model, scale)
    return model


def tiny_policy(
    folder: str | Path,
    kind: Kind = "qwen2",
    seed: int = 0,
    scale: float = 1.0,
    generation: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    **config: Any,
) -> str:
    """Save a random policy with its tokenizer; returns the folder.

    Args:
        generation: fields of the generation config that is saved with it, for example more end ids.
        tokenizer: by default `tiny_tokenizer()`.
        config: see `tiny_model`.
    """
    tokenizer = tokenizer or tiny_tokenizer()
    model = tiny_model(kind, seed, scale, **{"pad_token_id": tokenizer.pad_token_id, **config})
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    return _saved(folder, model, tokenizer)


def tiny_reward_model(
    folder: str | Path, num_labels: int = 1, seed: int = 1, scale: float = 1.0, tokenizer: Any = None
) -> str:
    """Save a random sequence classifier with its tokenizer; returns the folder."""
    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, num_labels=num_labels, pad_token_id=tokenizer.pad_token_id, **llama_sizes()
    )
    model = transformers.Qwen2ForSequenceClassification(config).eval()
    _stretch(model, scale)
    return _saved(folder, model, tokenizer)


def llama_sizes() -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }


def _gpt2_sizes() -> dict[str, Any]:
    return {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}


def _stretch(model: nn.Module, scale: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)


def _saved(folder: str | Path, model: Any, tokenizer: Any) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
