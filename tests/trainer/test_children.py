"""A run on a child server is the run of the native engine, to the bit: whether the child sleeps, is killed, or is wanted again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from peft import LoraConfig
from transformers import TrainerCallback

from covey.errors import CoveyWarning
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, by_length, make, rows, same, weights

pytestmark = pytest.mark.any_version

LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")


class KillTheChild(TrainerCallback):
    """Kills the server behind the first step."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            os.killpg(self.trainer.engine.launcher.children[0]._group, signal.SIGKILL)


@pytest.mark.parametrize("peft_config", [None, LORA], ids=["full", "lora"])
def test_a_child_that_sleeps_and_is_killed_makes_the_native_run(tmp_path, peft_config):
    policy = tiny_policy(tmp_path / "policy", scale=2.0, generation=MANY_ENDS)
    given = {
        "policy": policy,
        "rewards": by_length,
        "dataset": rows(8),
        "peft_config": peft_config,
        "max_steps": 3,
    }
    native = make(folder=tmp_path / "native", **given, learning_rate=0.5)
    native.train()
    kill = KillTheChild()
    trainer = make(
        folder=tmp_path / "child", **given, learning_rate=0.5, engine="covey", engine_timeout=600.0, callbacks=[kill],
        engine_canary=False,
    )  # fmt: skip
    kill.trainer, trainer.engine.launcher.sleeps = trainer, True
    with pytest.warns(CoveyWarning, match="The child server at .* died and is started again"):
        trainer.train()
    assert same(weights(trainer), weights(native))
    child = trainer.engine.launcher.children[0]
    assert not child.is_running and "start 2:" in Path(child.log).read_text()
    left = [p.name for p in Path("/proc").glob("[0-9]*") if _is_child(p, child.url)]
    assert not left


def _is_child(process: Path, url: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return "serve" in words and url.rpartition(":")[2] in words
