#!/usr/bin/env python
"""Seconds, memory and calls of the vision tower in whole steps of a policy that sees: TRL where there is one, and Covey.

    python benchmarks/vision.py --trl-python ENV/bin/python
    python benchmarks/vision.py --trl-python ENV/bin/python --clock cpu --threads 1 --rounds 1

A case is completions of one prompt x new tokens x pixels of a side. The policy is a Qwen2.5-VL of about 60 million weights with
random values (a fifth of them in the tower), made on the spot: nothing is downloaded. Every prompt shows a picture of its own, every
completion has all its tokens and a reward of its own, and everything is trained. A whole step is from the end of one optimizer step
to the end of the next: pictures are processed, completions sampled and scored, log-probabilities and gradients computed.

Both trainers are timed from outside, through a callback; each has a process of its own; they take turns, round after round. Ratios
are what to quote. One step of TRL is not counted, and four of Covey: there it compares its fast ways with the model's own (again at
step 8, 16, 32, ...), and such a step is longer, as `slowest` tells, which counts all but the first. Memory is the most resident memory
during any of these. `tower` counts calls, and pictures that went through it in all of them, per counted step. `--frozen` freezes tower and projector (by hand for TRL, which has no setting).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import add_options, in_turns, report, steps_of
from update import Meter

CASES = ["8x64x448"]
SKIPPED = {"trl": 1, "covey": 4}
"""Steps at the beginning that are not counted."""
WORDS = 16_384
"""Tokens of the vocabulary, words all of them but the last few."""
PICTURE = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %} w9{% endif %}"
)


@dataclass(frozen=True)
class Case:
    group: int
    new: int
    side: int

    @classmethod
    def of(cls, text: str) -> Case:
        return cls(*map(int, text.split("x")))


# --- the policy -------------------------------------------------------------------------------------------------------


def make_tokenizer() -> Any:
    """Return a tokenizer whose every id is a word, so that whatever is drawn can be read."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ("<pad>", "<eos>", *PICTURE)
    words = [f"w{i}" for i in range(WORDS - len(special))]
    vocabulary = {word: i for i, word in enumerate([*words, *special])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = dict(zip(("vision_start_token", "vision_end_token", "image_token", "video_token"), PICTURE, strict=True))  # fmt: skip
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", extra_special_tokens=named, chat_template=TEMPLATE
    )  # fmt: skip


def make_model(folder: Path) -> str:
    """Save a random policy with the proportions of Qwen2.5-VL, and its processor."""
    import torch
    import transformers

    tokenizer = make_tokenizer()
    image, video = transformers.Qwen2VLImageProcessor(), transformers.Qwen2VLVideoProcessor()
    processor = transformers.Qwen2_5_VLProcessor(image, tokenizer, video, chat_template=TEMPLATE)
    wide: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 10}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    text = {**wide, **heads, "vocab_size": WORDS, "tie_word_embeddings": True, "rope_parameters": rope}
    ends = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 8,
        "hidden_size": 320,
        "intermediate_size": 864,
        "num_heads": 8,
        "out_hidden_size": 512,
    }
    vision |= {"window_size": 112, "fullatt_block_indexes": [1, 3, 5, 7]}
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
           for name, token in zip(("vision_start", "vision_end", "image", "video"), PICTURE, strict=True)}  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(
        text_config={**text, **ends}, vision_config=vision, tie_word_embeddings=True, **ids
    )
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million weights, "
          f"{sum(p.numel() for p in model.model.visual.parameters()) / 1e6:.1f} of them in the tower")  # fmt: skip
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def rows(case: Case, number: int) -> list[dict[str, Any]]:
    """Return questions, each about a picture of noise of its own."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    found = []
    for row in range(number):
        pixels = random.integers(0, 256, (case.side, case.side, 3), dtype=np.uint8)
        question = " " + " ".join(f"w{random.integers(10, 1000)}" for _ in range(24))
        found.append(
            {"prompt": [{"role": "user", "content": question}], "images": [Image.fromarray(pixels)], "row": row}
        )  # fmt: skip
    return found


# --- one run, in a process of its own ---------------------------------------------------------------------------------


class Towers:
    """Counts calls of the tower and pictures in them, in the step that runs."""

    def __init__(self, tower: Any) -> None:
        self.calls: list[int] = []
        self.pictures: list[int] = []
        self.now = [0, 0]
        tower.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        grid = given["grid_thw"] if "grid_thw" in given else args[1]
        self.now[0] += 1
        self.now[1] += len(grid)

    def end(self) -> None:
        self.calls.append(self.now[0])
        self.pictures.append(self.now[1])
        self.now = [0, 0]


def run(args: argparse.Namespace, case: Case) -> dict[str, list[float]]:
    """Train by TRL or Covey; return what each step took."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback

    torch.set_num_threads(args.threads)
    library = importlib.import_module(args.worker)
    processor = AutoProcessor.from_pretrained(args.model)
    model = AutoModelForImageTextToText.from_pretrained(args.model, dtype=torch.float32)
    meter, towers = Meter(), Towers(model.model.visual)

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.end()
            towers.end()
            meter.begin()

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        assert [len(ids) for ids in completion_ids] == [case.new] * case.group
        return [float(k) for k in range(len(completion_ids))]

    never = processor.tokenizer.convert_tokens_to_ids(list(PICTURE))
    settings: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": case.group,
        "num_generations": case.group,
        "max_completion_length": case.new,
        "generation_kwargs": {"min_new_tokens": case.new},
        "max_steps": args.steps + SKIPPED[args.worker],
        "learning_rate": 1e-6,
        "use_cpu": True,
        "bf16": args.dtype == "bfloat16",
        "gradient_checkpointing": args.checkpointing,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if args.worker == "trl":
        settings["generation_kwargs"]["suppress_tokens"] = never  # a drawn placeholder ends its run
        if args.frozen:
            model.model.visual.requires_grad_(False)
    elif args.frozen:
        settings |= {"freeze_vision_tower": True, "freeze_projector": True}
    trainer = library.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=library.GRPOConfig(**settings),
        train_dataset=Dataset.from_list(rows(case, args.steps + SKIPPED[args.worker])),
        processing_class=processor,
        callbacks=[Clock()],
    )
    meter.begin()
    trainer.train()
    return {
        "wall": meter.wall,
        "cpu": meter.cpu,
        "peak": meter.peak,
        "calls": towers.calls,
        "pictures": towers.pictures,
    }


# --- the table --------------------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, case: str, dtype: str) -> dict[str, Any]:
    names = [*(["trl"] if args.trl_python else []), "covey"]
    more = [f"--{flag}" for flag in ("checkpointing", "frozen") if getattr(args, flag)]
    rounds = in_turns(names, args.rounds, lambda name: steps_of(__file__, name, args, case, dtype, *more))
    row: dict[str, Any] = {"case": case, "dtype": dtype, "frozen": args.frozen}
    for name, results in rounds.items():
        counted = slice(SKIPPED[name] - 1, None)
        row[name] = statistics.median(s for r in results for s in r[args.clock][counted])
        row[f"{name} slowest"] = max(s for r in results for s in r[args.clock])
        row[f"{name} MB"] = max(p for r in results for p in r["peak"])
        for what in ("calls", "pictures"):
            row[f"{name} {what}"] = statistics.median(n for r in results for n in r[what][counted])
    return row


def show(row: dict[str, Any]) -> None:
    for name in ("trl", "covey"):
        if name in row:
            print(
                f"{row['dtype']:9} {row['case']:9} {name:6} {row[name]:7.2f} s (slowest {row[f'{name} slowest']:6.2f}) {row[f'{name} MB']:7.0f} MB"
                f"   tower {row[f'{name} calls']:2.0f} calls, {row[f'{name} pictures']:3.0f} pictures"
                f"   {row[name] / row['covey']:5.2f} x the time, {row[f'{name} MB'] / row['covey MB']:4.2f} x the memory of covey",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help=argparse.SUPPRESS)
    add_options(parser, CASES, ["float32"], 2, SKIPPED)
    parser.add_argument(
        "--checkpointing", action="store_true", help="gradient checkpointing, for both trainers"
    )
    parser.add_argument(
        "--frozen", action="store_true", help="tower and projector are not trained, for both trainers"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps per round that are counted")
    parser.add_argument("--trl-python", help="the Python of an environment with TRL, Pillow and torchvision")
    args = parser.parse_args()
    if args.worker:
        Path(args.json).write_text(json.dumps(run(args, Case.of(args.cases[0]))))
        return
    args.model = make_model(Path(tempfile.mkdtemp()) / "model")
    report((compare(args, case, dtype) for dtype in args.dtypes for case in args.cases), show, args.json)


if __name__ == "__main__":
    main()
