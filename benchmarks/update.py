#!/usr/bin/env python
"""Seconds and peak memory of one update: a plain forward pass, TRL where there is one, and Covey.

    python benchmarks/update.py --model FOLDER
    python benchmarks/update.py --model FOLDER --trl-python ENV/bin/python --cases 8x76x128 8x512x128
    python benchmarks/update.py --vocabulary 151936 --cases 8x512x128
    python benchmarks/update.py --model FOLDER --trl-python ENV/bin/python --whole

A case is completions of one prompt x prompt tokens x new tokens. Every completion has all its tokens and a reward of its
own, so that no row can be left out. An update is what lies between the rewards and the end of the optimizer step: forward,
backward, clipping, AdamW. Two trainers are timed from outside, through a reward and a callback; TRL's sampling is
replaced by random tokens, so that a run takes minutes. With `--whole` it samples by itself, and what is measured is from the end of
one optimizer step to the end of the next. `plain` is the least that a training step without any care for
memory does: one padded forward pass, logits of completion positions in float32, log-soft-max, backward, AdamW.

Each run has a process of its own and one step that is not counted; they take turns, round after round. Ratios are what to
quote; seconds drift. Memory is the most resident memory during an update.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import add_options, forget_peak, in_turns, peak, report, steps_of

CASES = ["8x76x128", "8x512x128"]
RIVALS = ("plain", "trl")


@dataclass(frozen=True)
class Case:
    group: int
    prompt: int
    new: int

    @classmethod
    def of(cls, text: str) -> Case:
        return cls(*map(int, text.split("x")))


# --- models and prompts -----------------------------------------------------------------------------------------------


def make_model(folder: Path, tokenizer_of: str, vocabulary: int, layers: int) -> str:
    """Build a model of a few layers with a large vocabulary, where the logits are most of the memory."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": layers}
    heads: dict[str, Any] = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = Qwen2Config(
        vocab_size=vocabulary, **sizes, **heads, max_position_embeddings=8192, tie_word_embeddings=True
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return str(folder)


def prompt_of(tokenizer: Any, length: int) -> str:
    """Return a text of exactly so many tokens."""
    return str(tokenizer.decode([tokenizer("a b c d")["input_ids"][1]] * length))


# --- one run, in a process of its own ---------------------------------------------------------------------------------


class Meter:
    """Notes time and memory of each update: it begins with `begin` and ends with `end`."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.peak: list[float] = []
        self.at = (0.0, 0.0)

    def begin(self) -> None:
        forget_peak()
        self.at = (time.perf_counter(), time.process_time())

    def end(self) -> None:
        self.wall.append(time.perf_counter() - self.at[0])
        self.cpu.append(time.process_time() - self.at[1])
        self.peak.append(peak())


def run_plain(args: argparse.Namespace, case: Case, meter: Meter) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    ids = random_ids(model, case.group, case.prompt + case.new)
    ids[:, : case.prompt] = ids[:1, : case.prompt]
    advantages = torch.arange(case.group) - (case.group - 1) / 2
    for _ in range(args.steps + 1):
        meter.begin()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            logits = model(ids, logits_to_keep=case.new + 1).logits[:, :-1].float()
            logp = torch.log_softmax(logits, -1).gather(-1, ids[:, -case.new :, None])[..., 0]
        loss = -(torch.exp(logp - logp.detach()) * advantages[:, None]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        meter.end()


def run_trainer(args: argparse.Namespace, case: Case, meter: Meter) -> None:
    """TRL or Covey, from outside."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.end()
            meter.begin()  # a whole step begins here; an update once more, at its reward

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        assert [len(ids) for ids in completion_ids] == [case.new] * case.group
        if not args.whole:
            meter.begin()
        return [float(k) for k in range(len(completion_ids))]

    library = importlib.import_module(args.worker)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    settings: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": min(args.micro, case.group),
        "gradient_accumulation_steps": max(1, case.group // args.micro),
        "num_generations": case.group,
        "max_completion_length": case.new,
        "max_steps": args.steps + 1,
        "learning_rate": 1e-6,
        "use_cpu": True,
        "bf16": args.dtype == "bfloat16",
        "gradient_checkpointing": args.checkpointing,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if args.worker == "trl" and not args.whole:
        model.generate = random_tokens(model, case.new)
    else:
        settings["generation_kwargs"] = {"min_new_tokens": case.new}
    trainer = library.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=library.GRPOConfig(**settings),
        train_dataset=Dataset.from_dict({"prompt": [prompt_of(tokenizer, case.prompt)] * 64}),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    meter.begin()
    trainer.train()


def random_tokens(model: Any, new: int) -> Any:
    def generate(input_ids: Any = None, **_: Any) -> Any:
        import torch

        return torch.cat([input_ids, random_ids(model, len(input_ids), new)], 1)

    return generate


def random_ids(model: Any, rows: int, tokens: int) -> Any:
    """Past the first few, which may be special."""
    import torch

    return torch.randint(10, min(1000, model.config.vocab_size), (rows, tokens))


def work(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(args.threads)
    meter = Meter()
    run = run_plain if args.worker == "plain" else run_trainer
    run(args, Case.of(args.cases[0]), meter)
    Path(args.json).write_text(json.dumps({"wall": meter.wall, "cpu": meter.cpu, "peak": meter.peak}))


# --- the table --------------------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, case: str, dtype: str) -> dict[str, Any]:
    names = [*([] if args.whole else ["plain"]), *(["trl"] if args.trl_python else []), "covey"]
    more = ["--micro", str(args.micro), *(f"--{f}" for f in ("checkpointing", "whole") if getattr(args, f))]
    rounds = in_turns(names, args.rounds, lambda name: steps_of(__file__, name, args, case, dtype, *more))
    row: dict[str, Any] = {"case": case, "dtype": dtype, "micro": args.micro}
    for name, results in rounds.items():
        row[name] = statistics.median(s for r in results for s in r[args.clock])
        row[f"{name} MB"] = max(p for r in results for p in r["peak"])
    return row


def show(row: dict[str, Any]) -> None:
    for name in ("plain", "trl", "covey"):
        if name in row:
            faster, smaller = row[name] / row["covey"], row[f"{name} MB"] / row["covey MB"]
            print(
                f"{row['dtype']:9} {row['case']:11} {name:6} {row[name]:7.2f} s {row[f'{name} MB']:7.0f} MB"
                f"   {faster:5.2f} x the time, {smaller:4.2f} x the memory of covey",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of the model, or of the tokenizer with --vocabulary")
    parser.add_argument("--vocabulary", type=int, help="make a model of a few layers with so many tokens")
    parser.add_argument("--layers", type=int, default=2, help="of that model")
    add_options(parser, CASES, ["float32", "bfloat16"], 2, (*RIVALS, "covey"))
    parser.add_argument("--micro", type=int, default=8, help="completions per micro-batch")
    parser.add_argument(
        "--checkpointing", action="store_true", help="gradient checkpointing, for both trainers"
    )
    parser.add_argument("--whole", action="store_true", help="whole steps, sampling too")
    parser.add_argument("--steps", type=int, default=2, help="updates per round that are counted")
    parser.add_argument("--trl-python", help="the Python of an environment with TRL")
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    if args.vocabulary:
        folder = Path(tempfile.mkdtemp()) / "model"
        args.model = make_model(folder, args.model, args.vocabulary, args.layers)
    report((compare(args, case, dtype) for dtype in args.dtypes for case in args.cases), show, args.json)


if __name__ == "__main__":
    main()
