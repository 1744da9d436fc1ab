"""A tiny random policy must learn what it is paid for, and must not where the sign is flipped."""

import pytest
from peft import LoraConfig

from tests.tiny import VOCABULARY, tiny_policy
from tests.trainer.harness import logged, rows, train

PAID = frozenset(range(10, 10 + VOCABULARY // 2))
"""Half of the vocabulary: a random policy begins at about 0.5."""


def share_paid(completion_ids):
    return [sum(i in PAID for i in ids) / len(ids) for ids in completion_ids]


def curve(folder, out, reward, **given):
    settings = {
        "learning_rate": 2e-2,
        "optim": "adamw_torch",
        "max_steps": 40,
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "max_completion_length": 6,
        "max_grad_norm": 1.0,
    }
    return logged(train(folder, out, reward, rows(8), **{**settings, **given}), "reward")


def pays(completion_ids, **_):
    return share_paid(completion_ids)


@pytest.mark.parametrize(
    "given",
    [
        dict(loss_type="dapo"),
        dict(loss_type="grpo", num_iterations=2, learning_rate=1e-2),
        dict(loss_type="dr_grpo", scale_rewards="none", learning_rate=3e-2),
        # The head is trained too: a frozen random one of this size cannot say what is paid for.
        dict(beta=0.001, peft_config=LoraConfig(r=8, target_modules=["q_proj"], modules_to_save=["lm_head"])),
    ],
    ids=["dapo", "grpo, two passes", "dr_grpo", "adapter with kl"],
)
def test_the_policy_learns_what_it_is_paid_for(tmp_path, given):
    rewards = curve(tiny_policy(tmp_path / "m"), tmp_path / "run", pays, **given)
    assert rewards[0] < 0.65 and rewards[-1] > 0.9, (rewards[0], rewards[-1])


def test_with_the_sign_flipped_it_learns_the_opposite(tmp_path):
    def costs(completion_ids, **_):
        return [-r for r in share_paid(completion_ids)]

    rewards = curve(tiny_policy(tmp_path / "m"), tmp_path / "run", costs)
    assert -rewards[0] > 0.35 and -rewards[-1] < 0.1, (rewards[0], rewards[-1])
