"""Pre-train the bundled policy on demonstrations, careful ones first, and write it to `covey/assets/policy`.

    python tools/train_bundled_policy.py [--careful-steps N] [--careless-steps N] [--out FOLDER]
    python tools/train_bundled_policy.py --start FOLDER ...        go on from a policy that was written before

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
from demonstrations import CAREFUL, CARELESS, Author, demonstrations
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

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
WARM_UP = 100
"""Steps."""
IGNORED = -100
"""The label that PyTorch's cross-entropy leaves out."""

Batch = tuple[torch.Tensor, torch.Tensor]
"""Ids and labels, both `[sequences, tokens]`."""
Labelled = tuple[list[int], list[int]]
"""Ids and labels of one sequence."""


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.start) if args.start else train_tokenizer()
    model = new_policy(args.start, tokenizer, SHAPE).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    tokenizer.save_pretrained(args.out)
    print("careful authors", flush=True)
    train(model, iter(stream(tokenizer, args, CAREFUL, args.seed)), args.careful_steps, args.lr, args)
    print("careless authors", flush=True)
    train(
        model, iter(stream(tokenizer, args, CARELESS, args.seed + 1)), args.careless_steps, args.lr / 4, args
    )
    model.save_pretrained(args.out)
    print(f"wrote {args.out}")


def train(
    model: Qwen2ForCausalLM, stream: Iterator[Batch], steps: int, lr: float, args: argparse.Namespace
) -> None:
    """AdamW with a short linear warm-up and a cosine to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=WARM_UP)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    start, total = time.monotonic(), 0.0
    for step, (ids, labels) in enumerate(islice(stream, steps), start=1):
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(ids.to(args.device), labels=labels.to(args.device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warm_up.step() if step < WARM_UP else cosine.step()
        total += loss.item()
        if step % args.log_every == 0:
            print(
                f"step {step:6d}  loss {total / args.log_every:.4f}  {time.monotonic() - start:7.0f} s",
                flush=True,
            )
            total = 0.0
            if args.save_every and step % args.save_every == 0:
                model.save_pretrained(args.out)


def batches(encoded: Iterator[Labelled], size: int, seed: int, pool: int = 16) -> Iterator[Batch]:
    """Yield an endless stream of batches; sequences of similar length share one, so that little is padding."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        drawn = list(islice(encoded, size * pool))
        drawn.sort(key=lambda pair: len(pair[0]))
        for i in torch.randperm(pool, generator=generator).tolist():
            yield _padded(drawn[i * size : (i + 1) * size])


class Batches(IterableDataset[Batch]):
    """The same stream for several processes: each draws demonstrations of its own."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int, seed: int, author: Author) -> None:
        self.tokenizer, self.size, self.seed, self.author = tokenizer, size, seed, author

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        seed = self.seed + 1000 * (worker.id if worker else 0)
        drawn = demonstrations(seed, self.author)
        return batches((_encode(self.tokenizer, d.prompt, d.completion) for d in drawn), self.size, seed)


def stream(
    tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace, author: Author, seed: int
) -> DataLoader[Batch]:
    """Batches, drawn by `args.workers` processes; 0: by this one."""
    return DataLoader(Batches(tokenizer, args.batch, seed, author), batch_size=None, num_workers=args.workers)


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str) -> Labelled:
    """Ids of the whole conversation, and labels for what the assistant says, its end token included."""
    head = tokenizer(f"<|user|>{prompt}<|end|><|assistant|>")["input_ids"]
    body = tokenizer(f"{completion}<|end|>")["input_ids"]
    return head + body, [IGNORED] * len(head) + body


def _padded(pairs: list[Labelled]) -> Batch:
    width = max(len(ids) for ids, _ in pairs)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in pairs])
    labels = torch.tensor([row + [IGNORED] * (width - len(row)) for _, row in pairs])
    return ids, labels


def new_policy(
    start: Path | None, tokenizer: PreTrainedTokenizerBase, shape: dict[str, int | bool]
) -> Qwen2ForCausalLM:
    """Return the policy to go on from, or one of this shape with random weights."""
    if start is not None:
        return Qwen2ForCausalLM.from_pretrained(start, dtype=torch.float32)
    ends = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **shape, **ends))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--start", type=Path, help="a policy to go on from; default: random weights")
    parser.add_argument("--careful-steps", type=int, default=6000)
    parser.add_argument("--careless-steps", type=int, default=200)
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
