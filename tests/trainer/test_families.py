"""Families learn exactly: sampler and update agree, all weights move, whatever the settings around them."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig

from covey.errors import CoveyWarning
from covey.models.balancing import balancing_coef
from tests.families import tiny_of
from tests.tiny import tiny_tokenizer
from tests.trainer import harness as H

ROWS = Dataset.from_dict({"prompt": ["ab", "abcdefghi"] * 4})
ENDS = {"eos_token_id": list(range(30, 42))}
MANY = ("lfm2", "mamba", "jamba", "falcon_h1", "qwen3_5_text", "minimax", "mpt", "gpt_oss", "deepseek_v3")


def trained(model, folder, **given):
    tokenizer = tiny_tokenizer()
    return H.train(
        model, folder, H.by_length, ROWS, processing_class=tokenizer, generation_kwargs=ENDS, **given
    )


def gap_of(trainer):
    return max(entry["sampling/logp_gap/mean"] for entry in trainer.state.log_history if "loss" in entry)


@pytest.mark.parametrize("family", MANY)
def test_all_weights_move_and_the_sampler_agrees(family, tmp_path):
    model = tiny_of(family)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = trained(model, tmp_path)
    assert gap_of(trainer) < 1e-4
    matrices = {n: p.detach() for n, p in model.named_parameters() if p.ndim > 1}
    # Experts may get no token; decays, whose gradients are tiny, may stay by rounding.
    excused = ("experts", "A_log", "conv", "slope")
    still = {n for n, p in matrices.items() if torch.equal(p, before[n]) and not any(w in n for w in excused)}
    assert still == set()


@pytest.mark.parametrize("family", ["lfm2", "jamba"])
def test_with_iterations_evaluation_and_an_adapter(family, tmp_path):
    adapter = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    trainer = trained(
        tiny_of(family), tmp_path, peft_config=adapter, num_iterations=2, max_steps=3, learning_rate=0.1,
        eval_dataset=ROWS, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    first = next(e["sampling/logp_gap/mean"] for e in trainer.state.log_history if "loss" in e)
    assert first < 1e-4 and any("eval_reward" in entry for entry in trainer.state.log_history)


def test_the_balancing_loss_is_that_of_plain_padded_rows(tmp_path):
    """A constant reward: nothing but the balance moves, by the gradient of the model's own loss over all completions."""
    model = tiny_of("qwen3_moe", output_router_logits=True, router_aux_loss_coef=0.1)
    fresh = tiny_of("qwen3_moe", output_router_logits=True, router_aux_loss_coef=0.1)
    fresh.load_state_dict(model.state_dict())
    recorder = H.Recorder([1.0] * 8)
    trainer = H.train(
        model, tmp_path, recorder, ROWS, processing_class=tiny_tokenizer(), generation_kwargs=ENDS
    )
    prompts = [tiny_tokenizer()(p)["input_ids"] for p in recorder.all("prompts")]
    texts = [torch.tensor([*p, *c]) for p, c in zip(prompts, recorder.all("ids"), strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(t) for t in texts], batch_first=True)
    loss = fresh(input_ids=ids, attention_mask=mask).aux_loss
    (0.1 * loss).backward()
    logged = [entry["aux_loss"] for entry in trainer.state.log_history if "aux_loss" in entry]
    assert logged[0] == pytest.approx(float(loss), rel=1e-5)
    for (name, p), q in zip(fresh.named_parameters(), model.parameters(), strict=True):
        if "gate.weight" in name:
            assert torch.allclose(q, p - p.grad, atol=1e-6) and not torch.equal(q, p), name


@pytest.mark.parametrize(("family", "given", "is_logged"), [
    ("qwen3_moe", None, True), ("mixtral", None, True), ("qwen3_moe", 0.5, True), ("qwen3_moe", 0.0, False), ("lfm2", None, False),
])  # fmt: skip
def test_the_balancing_loss_is_in_the_log_where_the_config_or_the_settings_have_a_coefficient(
    family, given, is_logged, tmp_path
):
    """The config's own coefficient is enough; `output_router_logits` need not be on. Rows stay packed."""
    trainer = trained(tiny_of(family), tmp_path, router_aux_loss_coef=given)
    assert any("aux_loss" in entry for entry in trainer.state.log_history) is is_logged
    assert trainer.updater.forward.is_fast or family == "lfm2"


def test_a_coefficient_without_experts_acts_nowhere_and_is_said():
    """Jamba's config has one whatever its layers; with a single expert there is nothing to balance."""
    assert balancing_coef(tiny_of("jamba", num_experts=1, num_local_experts=1), None) == 0.0
    with pytest.warns(CoveyWarning, match="router_aux_loss_coef=0.1 has no effect"):
        assert balancing_coef(tiny_of("llama"), 0.1) == 0.0
