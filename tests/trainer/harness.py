"""A trainer on a tiny policy, a reward that records what it was shown, and a slow oracle for one update."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey import GRPOConfig, GRPOTrainer
from tests.tiny import EOS

TRAINER_ARGUMENTS = (
    "eval_dataset",
    "peft_config",
    "callbacks",
    "processing_class",
    "reward_processing_classes",
    "optimizers",
    "loss",
)
MANY_ENDS = {"eos_token_id": [EOS, *range(30, 42)]}
"""A generation config under which random completions end early and at different lengths."""


def rows(count: int = 8, **columns: list[Any]) -> Dataset:
    return Dataset.from_dict(
        {"prompt": [f"say {chr(97 + i % 26)}{'!' * (i % 3)}" for i in range(count)], **columns}
    )


def chats(count: int = 8, **columns: list[Any]) -> Dataset:
    prompts = [[{"role": "user", "content": f"say {chr(97 + i % 26)}"}] for i in range(count)]
    return Dataset.from_dict({"prompt": prompts, **columns})


def config(folder: Any, **given: Any) -> GRPOConfig:
    """One optimizer step is one SGD step of size 1 on the loss of two groups of four."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_grad_norm": 1e9,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "seed": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "use_cpu": True,
    }
    return GRPOConfig(**{**settings, **given})


def make(policy: Any, folder: Any, rewards: Any, dataset: Any, **given: Any) -> GRPOTrainer:
    extra = {name: given.pop(name) for name in TRAINER_ARGUMENTS if name in given}
    return GRPOTrainer(
        model=policy, reward_funcs=rewards, args=config(folder, **given), train_dataset=dataset, **extra
    )


def train(policy: Any, folder: Any, rewards: Any, dataset: Any, **given: Any) -> GRPOTrainer:
    trainer = make(policy, folder, rewards, dataset, **given)
    trainer.train()
    return trainer


class Recorder:
    """A reward that remembers its calls. `values` is a list, or a function of the completion ids."""

    def __init__(self, values: Any, name: str = "recorder") -> None:
        self.values, self.__name__, self.calls = values, name, []

    def __call__(self, prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[Any]:
        given = self.values(completion_ids) if callable(self.values) else self.values[: len(completions)]
        self.calls.append(
            {
                "prompts": list(prompts),
                "completions": list(completions),
                "ids": [list(i) for i in completion_ids],
                "rewards": list(given),
                "columns": columns,
            }
        )
        return list(given)

    def all(self, key: str) -> list[Any]:
        return [value for call in self.calls for value in call[key]]


def by_length(completion_ids: Any) -> list[float]:
    return [float(len(ids) % 3) for ids in completion_ids]


def advantages(rewards: list[Any], size: int, epsilon: float = 1e-4) -> list[float]:
    """Group-relative advantages with the standard library."""
    out: list[float] = []
    for first in range(0, len(rewards), size):
        group = rewards[first : first + size]
        kept = [r for r in group if r is not None]
        mean = statistics.fmean(kept) if kept else 0.0
        spread = statistics.stdev(kept) if len(kept) > 1 else 0.0
        out += [0.0 if r is None else (r - mean) / (spread + epsilon) for r in group]
    return out


def prompt_ids(tokenizer: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    return list(
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    )


def expected_step(
    folder: str,
    prompts: list[Any],
    ids: list[list[int]],
    advantages: list[float],
    loss_type: str = "dapo",
    temperature: float = 1.0,
    max_length: int = 8,
    kept: list[bool] | None = None,
    micro: int = 8,
) -> dict[str, torch.Tensor]:
    """Change of every parameter in one SGD step of size 1, in float64, one plain forward pass per completion."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kept = kept or [True] * len(ids)
    sums, counts = [], []
    for prompt, completion, advantage, keep in zip(prompts, ids, advantages, kept, strict=True):
        start = prompt_ids(tokenizer, prompt)
        logits = (
            model(input_ids=torch.tensor([start + completion])).logits[0, len(start) - 1 : -1] / temperature
        )
        logp = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        sums.append(-logp.sum() * advantage * float(keep))
        counts.append(len(completion) if keep else 0)
    total = len(ids)
    if loss_type == "dapo":
        loss = sum(sums) / max(sum(counts), 1)
    elif loss_type == "grpo":
        loss = sum(s / max(c, 1) for s, c in zip(sums, counts, strict=True)) / total
    elif loss_type == "dr_grpo":
        loss = sum(sums) / (total * max_length)
    else:
        cuts = [range(i, min(i + micro, total)) for i in range(0, total, micro)]
        loss = sum(sum(sums[i] for i in cut) / max(sum(counts[i] for i in cut), 1) for cut in cuts) / len(
            cuts
        )
    loss.backward()
    return {name: -p.grad for name, p in model.named_parameters() if p.grad is not None}


def step_taken(trainer: GRPOTrainer, folder: str) -> dict[str, torch.Tensor]:
    before = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    return {name: (p.detach() - before[name]).double() for name, p in trainer.model.named_parameters()}


def relative_error(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    gap = sum(float((got[n] - e).pow(2).sum()) for n, e in expected.items())
    size = sum(float(e.pow(2).sum()) for e in expected.values())
    return math.sqrt(gap / max(size, 1e-30))


def logged(trainer: GRPOTrainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
