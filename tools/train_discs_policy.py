"""Make the policy of the discs task and show it a few pictures, and write it with its processor to `covey/assets/discs_policy`.

    python tools/train_discs_policy.py [--steps N] [--out FOLDER]

A Qwen2.5-VL of a quarter of a million weights. Next-token prediction on right answers, in plain PyTorch, and stopped early: it then sees
badly, says two letters always, and is right about one picture in three. All pictures are of the train split.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from pathlib import Path

import torch
from bundled_tokenizer import ROLES, tokenizer_of
from PIL import Image
from torch import Tensor
from train_bundled_policy import ASSETS, IGNORED
from transformers import (
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from covey.tasks.discs import QUESTION, SIDE, DiscPuzzle, disc_puzzles

PATCH = 8
"""Pixels; a token is made of 2 × 2 patches, so a picture is four tokens."""
HIDDEN = 64
SPREAD = 0.1
"""Of the first weights. With the usual 0.02 a model of this size takes five times as long to learn anything."""

VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""As Qwen writes pictures: a placeholder between two marks."""


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    processor = new_processor()
    model = new_policy(processor.tokenizer)
    print(
        f"{sum(p.numel() for p in model.parameters()):,} weights, {len(processor.tokenizer)} tokens",
        flush=True,
    )
    train(model, processor, args)
    processor.save_pretrained(args.out)
    model.save_pretrained(args.out)
    print(f"wrote {args.out}")


def new_processor() -> Qwen2_5_VLProcessor:
    """Return a processor that shows pictures as they are: no larger, no smaller."""
    tokenizer = tokenizer_of([QUESTION] * 2, [*ROLES, *VISION], [], CHAT_TEMPLATE)
    cut = {"patch_size": PATCH, "min_pixels": SIDE * SIDE, "max_pixels": SIDE * SIDE}
    image, video = Qwen2VLImageProcessor(**cut), Qwen2VLVideoProcessor(**cut)
    return Qwen2_5_VLProcessor(image, tokenizer, video, chat_template=CHAT_TEMPLATE)


def new_policy(tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLForConditionalGeneration:
    """Return a policy with random weights."""
    layers = {"hidden_size": HIDDEN, "initializer_range": SPREAD}
    text = layers | {
        "vocab_size": len(tokenizer),
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = layers | {
        "depth": 2,
        "intermediate_size": 2 * HIDDEN,
        "num_heads": 4,
        "out_hidden_size": HIDDEN,
        "patch_size": PATCH,
        "window_size": SIDE,
        "fullatt_block_indexes": [0, 1],
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = dict(zip(names, tokenizer.convert_tokens_to_ids(VISION), strict=True))
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, initializer_range=SPREAD, **ids
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def train(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, args: argparse.Namespace
) -> None:
    """Take AdamW steps at one rate, each on pictures that were not shown before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    puzzles, start = disc_puzzles(args.steps * args.batch, seed=args.seed), time.monotonic()
    for step in range(1, args.steps + 1):
        batch = encoded(processor, puzzles[(step - 1) * args.batch : step * args.batch])
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % args.log_every == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - start:5.0f} s", flush=True)


def encoded(processor: Qwen2_5_VLProcessor, puzzles: list[DiscPuzzle]) -> dict[str, Tensor]:
    """Return what the model takes for right answers to pictures, and labels for the answers with their end."""
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    asked = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    pictures = [[Image.open(io.BytesIO(p.picture()))] for p in puzzles]
    batch = dict(
        processor(images=pictures, text=[f"{asked}{p.answer}<|end|>" for p in puzzles], return_tensors="pt")
    )
    said = len(processor.tokenizer(f"{puzzles[0].answer}<|end|>")["input_ids"])
    labels = batch["input_ids"].clone()
    labels[:, :-said] = IGNORED
    return batch | {"labels": labels}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--steps", type=int, default=162)
    parser.add_argument("--batch", type=int, default=48, help="pictures per step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=25)
    parser.add_argument("--out", type=Path, default=ASSETS / "discs_policy")
    return parser.parse_args()


if __name__ == "__main__":
    main()
