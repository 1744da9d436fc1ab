"""The tokenizer of the bundled models: byte-level BPE, so any text survives, with one token per number to 99 and per
word of the three tasks, and a chat template.
"""

from __future__ import annotations

from itertools import islice

from demonstrations import demonstrations
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1024
END, PAD = "<|end|>", "<|pad|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<code>", "</code>"]
"""One token each, and not special: they belong to the text."""

PIECES = r"[0-9]{1,2}| ?[A-Za-z]+|\n| |[^\sA-Za-z0-9]|\s"
"""A number of up to two digits, a word with the blank before it, or one character: no token crosses these."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the words of the tasks from demonstrations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    samples = islice(demonstrations(seed=0), 20_000)
    numbers = (str(n) for n in range(100) for _ in range(50))
    tokenizer.train_from_iterator([*(f"{d.prompt}\n{d.completion}" for d in samples), *numbers], trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=ROLES,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
