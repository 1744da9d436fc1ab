"""Train the bundled reward model on pairs of sentences, and write it to `covey/assets/reward_model`.

    python tools/train_bundled_reward_model.py [--steps N] [--out FOLDER]

Bradley-Terry (Bradley and Terry 1952): the model gives every sentence one number, and the chosen one of a pair should
have the larger: loss = -log sigmoid(chosen - rejected).
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

import torch
from bundled_tokenizer import train_tokenizer
from preferences import Preference, preferences
from torch.nn.functional import logsigmoid
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForSequenceClassification

ASSETS = Path(__file__).parents[1] / "covey" / "assets"
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = train_tokenizer()
    ends = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    model = Qwen2ForSequenceClassification(
        Qwen2Config(vocab_size=len(tokenizer), num_labels=1, **SHAPE, **ends)
    )
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, tokenizer, args)
    held_out = list(islice(preferences(args.seed, "held_out"), 2000))
    print(f"held-out pairs ranked right: {accuracy(model, tokenizer, held_out):.3f}")
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"wrote {args.out}")


def train(
    model: Qwen2ForSequenceClassification, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace
) -> None:
    """AdamW with a linear decay to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=args.steps)
    stream = preferences(args.seed)
    start, total = time.monotonic(), 0.0
    for step in range(1, args.steps + 1):
        gaps = score_gaps(model, tokenizer, list(islice(stream, args.batch)))
        loss = -logsigmoid(gaps).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        decay.step()
        total += loss.item()
        if step % args.log_every == 0:
            print(
                f"step {step:5d}  loss {total / args.log_every:.4f}  {time.monotonic() - start:6.0f} s",
                flush=True,
            )
            total = 0.0


def score_gaps(
    model: Qwen2ForSequenceClassification, tokenizer: PreTrainedTokenizerBase, pairs: list[Preference]
) -> torch.Tensor:
    """By how much the model prefers the chosen sentence, `[pairs]`."""
    texts = [_conversation(tokenizer, p, p.chosen) for p in pairs]
    texts += [_conversation(tokenizer, p, p.rejected) for p in pairs]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
    chosen, rejected = logits.chunk(2)
    return chosen - rejected


@torch.inference_mode()
def accuracy(
    model: Qwen2ForSequenceClassification, tokenizer: PreTrainedTokenizerBase, pairs: list[Preference]
) -> float:
    """Share of the pairs in which the chosen sentence has the larger number."""
    model.eval()
    return (score_gaps(model, tokenizer, pairs) > 0).float().mean().item()


def _conversation(tokenizer: PreTrainedTokenizerBase, pair: Preference, answer: str) -> str:
    messages = [*pair.prompt.row()["prompt"], {"role": "assistant", "content": answer}]
    return tokenizer.apply_chat_template(messages, tokenize=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64, help="pairs per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ASSETS / "reward_model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
