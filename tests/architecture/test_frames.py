"""Few hops lie between a hook of the Trainer and a user's function: a stack trace names what matters, not what forwards."""

from __future__ import annotations

import sys
from pathlib import Path

import covey
from covey.update.terms import LossTerms
from tests.tiny import tiny_policy
from tests.trainer.harness import make, rows

PACKAGE = str(Path(covey.__file__).parent)


def frames_since(hook: str) -> list[str]:
    """Return the functions of the package from a hook, which comes first, down to the caller's caller."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            names.append(frame.f_code.co_qualname)
            if frame.f_code.co_name == hook:
                return names[::-1]
        frame = frame.f_back
    raise AssertionError(f"{hook} is not below {names}")


def test_few_frames_lead_to_a_reward_and_to_a_loss(tmp_path):
    """At most 8 to a reward and 4 to a loss, the hook and the user's function included."""
    seen: dict[str, list[str]] = {}

    def own_reward(completions):
        seen.setdefault("reward", frames_since("get_batch_samples"))
        return [float(i % 2) for i, _ in enumerate(completions)]

    def own_loss(terms: LossTerms):
        seen.setdefault("loss", frames_since("compute_loss"))
        return -terms.logprobs * terms.advantages

    folder = tiny_policy(tmp_path / "m")
    make(folder, tmp_path / "run", own_reward, rows(8), loss=own_loss).train()
    assert len(seen["reward"]) + 1 <= 8, seen["reward"]
    assert len(seen["loss"]) + 1 <= 4, seen["loss"]
