"""Covey is imported, and trains, where the modules of Unix are missing, as on Windows; what needs them says so when it is made."""

from __future__ import annotations

import os
import subprocess
import sys

BLOCKED = (
    "fcntl",
    "resource",
    "pwd",
    "grp",
    "termios",
    "tty",
    "pty",
    "syslog",
    "posix_ipc",
    "crypt",
    "spwd",
    "nis",
)

WITHOUT = f"""
import sys
import accelerate, datasets, jsonschema, math_verify, peft, pyarrow.parquet, rich.live, torch, transformers  # as they are on this machine
from transformers import Trainer
for name in {BLOCKED!r}:
    sys.modules[name] = None
"""
"""Their own packages bring what these need; Covey's modules see none of the blocked ones."""

WALK = """
import importlib, pkgutil
import covey
faults = []
for module in pkgutil.walk_packages(covey.__path__, "covey."):
    if ".sandbox.inside." in module.name or module.name.endswith("__main__") or "reasoning_gym" in module.name:
        continue
    try:
        importlib.import_module(module.name)
    except Exception as error:
        faults.append(f"{module.name}: {type(error).__name__}: {error}")
assert not faults, "\\n".join(faults)
"""

TRAINS = """
from datasets import Dataset
from covey import GRPOConfig, GRPOTrainer
from covey.rewards import Countdown
from covey.tasks import assets
rows = Dataset.from_list([{"prompt": "Numbers: 3 4. Target: 7."}] * 4)
config = GRPOConfig(output_dir=sys.argv[1], max_steps=2, num_generations=2, per_device_train_batch_size=4, max_completion_length=8,
                    save_strategy="steps", save_steps=1, logging_steps=1, log_completions=True, use_cpu=True, report_to="none")
trainer = GRPOTrainer(str(assets.POLICY), lambda completions, **_: [float(len(c)) for c in completions], config, rows)
trainer.train()
assert trainer.state.log_history[0]["memory/peak_mb"] > 10
"""

REFUSES = """
from covey.errors import SandboxError
from covey.rewards import AssertTests, CallTests, JsonFormat, ReasoningGym, Reward, SameAnswer, Sandbox, StdioTests
from covey.rewards.contract import Reward
from covey.rewards.options import RewardOptions

def own(completions): return [0.0 for _ in completions]

made = {
    **{kind.__name__: kind for kind in (AssertTests, CallTests, ReasoningGym, SameAnswer, Sandbox, StdioTests)},
    "JsonFormat": lambda: JsonFormat({"type": "string", "pattern": "a*"}),
    "own": lambda: Reward(own, "own", RewardOptions.of("own", where="process", timeout=1.0)),
}
for name, make in made.items():
    try:
        make()
    except SandboxError as error:
        assert name in str(error) or name == "ReasoningGym" or name == "Sandbox", error
        assert "Linux" in str(error) and "fcntl and the module resource" in str(error), error
    else:
        raise AssertionError(f"{name} was made")
SameAnswer(symbolic=False), JsonFormat(), JsonFormat({"type": "string"}), Sandbox(otherwise="monty")
"""


def without_unix(code: str, *arguments: str) -> None:
    """Run code in a process whose modules of Unix are blocked."""
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT + code, *arguments],
        capture_output=True, encoding="utf-8", errors="replace", env=settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_module_is_imported_what_runs_code_says_what_it_needs_and_a_run_trains(tmp_path):
    without_unix(WALK + REFUSES + TRAINS, str(tmp_path))
