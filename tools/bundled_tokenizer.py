"""The tokenizer of the bundled models: byte-level BPE, so any text survives, with one token per number to 99, per word
of the three tasks and per tag, and a chat template.

It is a `Qwen2Tokenizer`, because that is what `AutoTokenizer` makes of any tokenizer beside a Qwen2 model. That class
brings its own rule for cutting text into pieces, which splits numbers into digits; so numbers of two digits are added
tokens, like the tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import islice

from demonstrations import demonstrations
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

END, PAD = "<|end|>", "<|pad|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<code>", "</code>"]
NUMBERS = [str(n) for n in range(10, 100)]

WORDS = re.compile(" ?[A-Za-z]+")
"""What tokens are learned from. Everything else is one token a byte, or an added token."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer() -> Qwen2Tokenizer:
    """Learn the words of the three tasks from demonstrations."""
    drawn = islice(demonstrations(seed=0), 20_000)
    return tokenizer_of(
        (f"{d.prompt}\n{d.completion}" for d in drawn), ROLES, [*NUMBERS, *TAGS], CHAT_TEMPLATE
    )


def tokenizer_of(texts: Iterable[str], roles: list[str], tags: list[str], template: str) -> Qwen2Tokenizer:
    """Learn the words of texts; `roles` are control tokens, `tags` are further tokens, of what is written."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        special_tokens=[PAD, END, *roles],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    learner.train_from_iterator((word for text in texts for word in WORDS.findall(text)), trainer)
    model = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        unk_token=PAD,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=roles,
        chat_template=template,
        padding_side="left",
        model_max_length=256,
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in tags])
    return tokenizer
