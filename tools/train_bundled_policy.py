"""Pre-train the bundled policy on careless demonstrations, and write it to `covey/assets/policy`.

    python tools/train_bundled_policy.py [--steps N] [--out FOLDER] [--device cpu|cuda]

Next-token prediction on completions, in plain PyTorch. The split of the puzzles keeps everything held out unseen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from bundled_tokenizer import train_tokenizer
from demonstrations import demonstrations
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

ASSETS = Path(__file__).parents[1] / "covey" / "assets"
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
IGNORED = -100
"""The label that PyTorch's cross-entropy leaves out."""

Batch = tuple[torch.Tensor, torch.Tensor]
"""Ids and labels, both `[sequences, tokens]`."""


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = train_tokenizer()
    model = Qwen2ForCausalLM(_config(tokenizer)).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    tokenizer.save_pretrained(args.out)
    train(model, iter(stream(tokenizer, args)), args)
    model.save_pretrained(args.out)
    print(f"wrote {args.out}")


def train(model: Qwen2ForCausalLM, stream: Iterator[Batch], args: argparse.Namespace) -> None:
    """AdamW with a linear warm-up and a cosine to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=200)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    start, total = time.monotonic(), 0.0
    for step, (ids, labels) in enumerate(islice(stream, args.steps), start=1):
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(ids.to(args.device), labels=labels.to(args.device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warm_up.step() if step < 200 else cosine.step()
        total += loss.item()
        if step % args.log_every == 0:
            print(
                f"step {step:6d}  loss {total / args.log_every:.4f}  {time.monotonic() - start:7.0f} s",
                flush=True,
            )
            total = 0.0
            if args.save_every and step % args.save_every == 0:
                model.save_pretrained(args.out)


def batches(tokenizer: PreTrainedTokenizerBase, size: int, seed: int, pool: int = 16) -> Iterator[Batch]:
    """An endless stream of batches; sequences of similar length share one, so that little is padding."""
    stream = demonstrations(seed)
    generator = torch.Generator().manual_seed(seed)
    while True:
        drawn = [_encode(tokenizer, d.prompt, d.completion) for d in islice(stream, size * pool)]
        drawn.sort(key=lambda pair: len(pair[0]))
        for i in torch.randperm(pool, generator=generator).tolist():
            yield _padded(drawn[i * size : (i + 1) * size])


class Batches(IterableDataset[Batch]):
    """The same stream for several processes: each draws demonstrations of its own."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int, seed: int) -> None:
        self.tokenizer, self.size, self.seed = tokenizer, size, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        return batches(self.tokenizer, self.size, self.seed + 1000 * (worker.id if worker else 0))


def stream(tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace) -> DataLoader[Batch]:
    """Batches, drawn by `args.workers` processes; 0: by this one."""
    return DataLoader(Batches(tokenizer, args.batch, args.seed), batch_size=None, num_workers=args.workers)


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Ids of the whole conversation, and labels for what the assistant says, its end token included."""
    head = tokenizer(f"<|user|>{prompt}<|end|><|assistant|>")["input_ids"]
    body = tokenizer(f"{completion}<|end|>")["input_ids"]
    return head + body, [IGNORED] * len(head) + body


def _padded(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    width = max(len(ids) for ids, _ in pairs)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in pairs])
    labels = torch.tensor([row + [IGNORED] * (width - len(row)) for _, row in pairs])
    return ids, labels


def _config(tokenizer: PreTrainedTokenizerBase) -> Qwen2Config:
    ends = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    return Qwen2Config(vocab_size=len(tokenizer), **SHAPE, **ends)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=128, help="demonstrations per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that draw demonstrations")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ASSETS / "policy")
    return parser.parse_args()


if __name__ == "__main__":
    main()
