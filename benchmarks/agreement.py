#!/usr/bin/env python
"""Sampler and update agree from the first step to the last: families trained for some steps, the gap measured at each.

    python benchmarks/agreement.py                                nine small random models, 50 steps each, minutes
    python benchmarks/agreement.py --families lfm2 jamba --steps 200
    python benchmarks/agreement.py --model FOLDER --steps 5          a real model

The gap is |log p of the sampler - log p of the update| of each sampled token, in nats: the metric `sampling/logp_gap`. It holds as
long as its mean is within the bound of the engine's own comparison (`covey.sample.native.selfcheck.BOUND`) at the first step and
at the last. The learning rate is large, so that weights move far: how far is in the table, as a share of their length.

Exit status: 0 every model agrees, 1 one does not.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from covey import GRPOConfig, GRPOTrainer
from covey.sample.native.selfcheck import BOUND

TOKENIZER = Path(__file__).resolve().parents[1] / "covey" / "assets" / "policy"

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 16},
    "lfm2": {
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    },
    "qwen3_next": {
        **EXPERTS,
        **LINEAR,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "shared_expert_intermediate_size": 32,
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "use_mamba_kernels": False,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 16},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
}
"""Windows, hybrids and mixtures of experts: what their small configs have besides `SMALL`. Windows are shorter than the texts."""


@dataclass(frozen=True)
class Row:
    """What came of one model."""

    name: str
    gaps: list[tuple[float, float]]
    """Mean and largest gap of each step, in nats."""
    moved: float
    """Distance of the last weights from the first, as a share of the length of these."""
    samples: str
    updates: str


def small_model(family: str) -> tuple[nn.Module, Any]:
    """Return a random model of a family, and the bundled policy's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    fields = {**SMALL, **FAMILIES[family], "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields)).float(), tokenizer


def dice(completions: Sequence[Any], **_: Any) -> list[float]:
    """Return numbers that mean nothing: they never become equal, as those of a goal do once it is reached."""
    return [zlib.crc32(str(completion).encode()) % 1000 / 1000 for completion in completions]


def train(name: str, model: nn.Module, tokenizer: Any, args: argparse.Namespace) -> Row:
    first = [p.detach().clone() for p in model.parameters()]
    words = ("red apple", "old book", "big dog and small cat", "warm sun")
    rows = [{"prompt": f"Write of a {words[i % 4]}."} for i in range(4 * args.steps)]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=args.steps,
            learning_rate=args.learning_rate,
            lr_scheduler_type="constant",
            num_generations=4,
            per_device_train_batch_size=8,
            max_completion_length=args.new,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            record=False,
            display="plain",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(model, dice, settings, Dataset.from_list(rows), processing_class=tokenizer)
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()
    logs = [log for log in trainer.state.log_history if "sampling/logp_gap/mean" in log]
    moved = sum(
        float((p - q).detach().float().square().sum()) for p, q in zip(model.parameters(), first, strict=True)
    )
    return Row(
        name,
        [(log["sampling/logp_gap/mean"], log["sampling/logp_gap/max"]) for log in logs],
        (moved / sum(float(p.detach().float().square().sum()) for p in first)) ** 0.5,
        "fast" if trainer.engine.reason is None else "general",
        "packed" if trainer.updater.forward.is_fast else "row by row",
    )


def show(row: Row, bound: float) -> bool:
    """Print a row; return whether the model agrees."""
    (first, first_max), (last, last_max) = row.gaps[0], row.gaps[-1]
    agrees = first <= bound and last <= bound
    print(
        f"{row.name:12} {row.samples:8} {row.updates:11} {len(row.gaps):5}  {first:8.1e} {first_max:8.1e}  {last:8.1e} {last_max:8.1e}  "
        f"{max(mean for mean, _ in row.gaps):8.1e}  {row.moved:6.1%}  {'agrees' if agrees else 'DRIFTS'}",
        flush=True,
    )
    return agrees


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--model", type=Path, help="folder of a real model, in place of the families")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--new", type=int, default=32, help="tokens of a completion at most")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dtype = getattr(torch, args.dtype)
    print(f"bound {BOUND[dtype]} nats, {args.dtype}, learning rate {args.learning_rate}")
    print(
        f"{'model':12} {'sampler':8} {'update':11} steps  first: mean max     last: mean max      worst     moved"
    )
    agree = []
    for name in [args.model.name] if args.model else args.families:
        if args.model:
            model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(args.model)
        else:
            model, tokenizer = small_model(name)
            model = model.to(dtype)
        agree.append(show(train(name, model, tokenizer, args), BOUND[dtype]))
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
