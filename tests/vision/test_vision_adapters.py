"""Adapters of policies that see: in the decoder unless more is asked for, and whatever they reach is sampled, trained and resumed."""

import pytest
import torch
from peft import LoraConfig

from covey.errors import ConfigError
from tests.trainer.harness import make
from tests.vision.tiny_eyes import by_letters, picture_rows, tiny_eyes

pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")

FORMS = {
    "all-linear": (dict(target_modules="all-linear"), {}),
    "bare names": (dict(target_modules=["q_proj", "v_proj"]), {}),
    "DoRA": (dict(target_modules="all-linear", use_dora=True), {}),
    "all": (dict(target_modules="all-linear"), dict(lora_vision=True)),
    "whole modules of the tower": (
        dict(target_modules=["q_proj"], modules_to_save=["patch_embed", "merger"]),
        {},
    ),
    "whole projector": (dict(target_modules=["q_proj"], modules_to_save=["multi_modal_projector"]), {}),
}
"""Arguments of the adapter, and settings."""
KINDS = {name: "llava" if "projector" in name else "qwen2_5_vl" for name in FORMS}


def trainer_with(form, folder, **settings):
    arguments, more = FORMS[form]
    model, processor = tiny_eyes(KINDS[form])
    small = dict(
        per_device_train_batch_size=4, num_generations=4, max_completion_length=6, learning_rate=1e-2
    )
    small |= dict(optim="adamw_torch", beta=0.1, max_steps=2, num_iterations=2)
    return make(
        model, folder, by_letters, picture_rows(4, (1, 0, 2)), processing_class=processor,
        peft_config=LoraConfig(r=2, task_type="CAUSAL_LM", **arguments), **small | more | settings,
    )  # fmt: skip


def weights(trainer):
    return {name: value.detach().clone() for name, value in trainer.policy.named_parameters()}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_adapted_moves_and_the_rest_stays(form, tmp_path):
    """The sampler reads the adapted weights, and the reference is the policy without them."""
    trainer = trainer_with(form, tmp_path)
    before, learned = weights(trainer), {n for n, p in trainer.policy.named_parameters() if p.requires_grad}
    trainer.train()
    moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
    assert moved == learned
    in_eyes = {
        name for name in learned if ".visual." in name or "vision_tower" in name or "projector" in name
    }
    assert bool(in_eyes) == (form not in ("all-linear", "bare names", "DoRA"))
    logs = trainer.state.log_history
    assert max(row["sampling/logp_gap/max"] for row in logs if "sampling/logp_gap/max" in row) < 1e-5
    kl = [row["kl"] for row in logs if "kl" in row]
    assert abs(kl[0]) < 1e-9 and kl[-1] > 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_a_run_with_an_adapter_goes_on_to_the_bit(form, tmp_path):
    """From the middle of a window of two passes."""
    whole = trainer_with(form, tmp_path / "a", max_steps=4, save_strategy="steps", save_steps=1)
    whole.train()
    again = trainer_with(form, tmp_path / "b", max_steps=4)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert again.state.global_step == 4
    for name, value in weights(whole).items():
        assert torch.equal(weights(again)[name], value), name


def test_checkpointing_that_drops_gradients_of_a_tower_is_refused(tmp_path):
    """In Qwen3-VL the adapters of its first layers would stay as they are, without a word."""
    checkpointed = dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True})
    for form in ("all", "whole modules of the tower"):
        with pytest.raises(ConfigError, match=r"use_reentrant.*lora_vision"):
            trainer_with(form, tmp_path, **checkpointed)
        trainer_with(form, tmp_path, gradient_checkpointing=True)
    trainer_with("all-linear", tmp_path, **checkpointed)
