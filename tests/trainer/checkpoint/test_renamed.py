"""Mixtures of experts, whose weights are saved under other names than they have: a run goes on with them, not with those of the start."""

import pytest
import torch
from transformers import TrainerCallback

from covey.trainer.checkpoint.renamed import names_in
from tests.families import tiny_of
from tests.tiny import tiny_tokenizer
from tests.trainer.harness import make, rows

RENAMED = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
"""Families that transformers saves as their makers published them."""


def by_ids(completion_ids, **_):
    """Other values for other answers."""
    return [float((sum(ids) + 3 * len(ids)) % 7) for ids in completion_ids]


def run(family, folder, seed=0, **settings):
    """A trainer of a tiny mixture; every weight is trained."""
    more = dict(
        optim="adamw_torch", learning_rate=1e-2, save_strategy="steps", save_steps=1, router_aux_loss_coef=0.1
    )
    return make(
        tiny_of(family, seed), folder, by_ids, rows(8), processing_class=tiny_tokenizer(), **more | settings
    )


def weights(trainer):
    return {name: value.detach().clone() for name, value in trainer.policy.named_parameters()}


@pytest.mark.parametrize("family", RENAMED)
def test_a_mixture_goes_on_to_the_bit(family, tmp_path):
    whole = run(family, tmp_path / "a", max_steps=3)
    whole.train()
    folder = tmp_path / "a" / "checkpoint-2"
    assert not names_in(folder) <= set(whole.policy.state_dict()), "this family shows nothing"
    again = run(family, tmp_path / "b", seed=1, max_steps=3)
    other = weights(again)
    again.train(resume_from_checkpoint=str(folder))
    for name, value in weights(whole).items():
        assert torch.equal(weights(again)[name], value), name
    assert not any(torch.equal(other[n], v) for n, v in weights(whole).items() if "expert" in n)


def test_the_best_weights_of_a_mixture_come_back(tmp_path):
    """The first evaluation is the best; its weights are loaded when training ends."""
    scores, kept = iter((3.0, 2.0, 1.0)), {}

    def reward(completion_ids, part, **_):
        return [next(scores)] * len(part) if part[0] == "held out" else by_ids(completion_ids)

    class Note(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            kept[state.global_step] = weights(trainer)

    best = dict(
        load_best_model_at_end=True, metric_for_best_model="eval_reward", eval_strategy="steps", eval_steps=1
    )
    best |= dict(
        optim="adamw_torch", learning_rate=1e-2, save_strategy="steps", save_steps=1, num_generations=4
    )
    sets = dict(
        eval_dataset=rows(1, part=["held out"]), callbacks=[Note()], processing_class=tiny_tokenizer()
    )
    trainer = make(
        tiny_of("qwen3_moe"), tmp_path, reward, rows(8, part=["train"] * 8), max_steps=3, **best, **sets
    )
    trainer.train()
    assert str(trainer.state.best_model_checkpoint).endswith("checkpoint-1")
    for name, value in weights(trainer).items():
        assert torch.equal(kept[1][name], value), name
    assert not all(torch.equal(kept[3][name], value) for name, value in kept[1].items())
