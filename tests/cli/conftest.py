"""A recipe that runs in a second: a random policy, rows in a file, a reward of the working directory."""

import json
import sys

import pytest

from tests.tiny import tiny_policy

RECIPE = """
model: {policy}
data:
  file: rows.jsonl
eval:
  file: rows.jsonl
rewards:
  - reward: rewards_of_the_cli:short
train:
  learning_rate: 1e-2
  lr_scheduler_type: constant
  max_steps: 2
  num_generations: 4
  per_device_train_batch_size: 8
  max_completion_length: 8
  num_generations_eval: 2
  per_device_eval_batch_size: 8
  logging_steps: 1
  save_strategy: steps
  save_steps: 1
  save_only_model: false
  gradient_checkpointing: false
  use_cpu: true
  disable_tqdm: true
  report_to: none
"""

REWARDS = """
def short(completions, **_): return [float(len(c) < 8) for c in completions]
def broken(completions, **_): raise ZeroDivisionError("by me")
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Path of the recipe, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tiny_policy(tmp_path / "policy", generation={"eos_token_id": [2, *range(30, 42)]})
    rows = [{"prompt": f"say {chr(97 + i)}", "task": "odd" if i % 2 else "even"} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "rewards_of_the_cli.py").write_text(REWARDS)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(policy="policy").lstrip())
    yield path
    sys.modules.pop("rewards_of_the_cli", None)
