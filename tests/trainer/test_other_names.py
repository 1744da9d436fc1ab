"""Law: a name that scripts know from other trainers acts, or is refused with what to use; nothing is taken and dropped."""

import inspect

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

from covey import GRPOTrainer
from covey.errors import ConfigError, LoadingError, RewardError
from covey.trainer.other_names import ARGUMENTS, HOOKS, PARTS
from tests.tiny import EOS, PAD, tiny_policy, tiny_tokenizer
from tests.trainer.harness import MANY_ENDS, by_length, config, logged, make, rows

pytestmark = pytest.mark.any_version


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), generation=MANY_ENDS)


def construct(policy, folder, **given):
    return GRPOTrainer(
        policy, **{"reward_funcs": by_length, "args": config(folder), "train_dataset": rows()} | given
    )


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_other_trainers_are_refused_by_name_and_none_of_them_is_nothing(name, policy, tmp_path):
    construct(policy, tmp_path, **{name: None})
    with pytest.raises(ConfigError, match=name):
        construct(policy, tmp_path, **{name: object()})


def test_settings_among_the_arguments_are_sent_to_the_config(policy, tmp_path):
    for name in ("reward_weights", "max_prompt_length", "learning_rate", "beta"):
        with pytest.raises(ConfigError, match=rf"GRPOConfig\({name}="):
            construct(policy, tmp_path, **{name: 1})
    with pytest.raises(ConfigError, match="eval_dataset"):
        construct(policy, tmp_path, evaldataset=rows())


def test_tokenizer_is_processing_class(policy, tmp_path):
    own = tiny_tokenizer()
    with pytest.warns(match="processing_class"):
        assert construct(policy, tmp_path, tokenizer=own).processing_class is own
    with pytest.raises(ConfigError, match="processing_class"), pytest.warns(match="tokenizer"):
        construct(policy, tmp_path, tokenizer=own, processing_class=own)


def test_what_is_no_config_is_refused(policy, tmp_path):
    with pytest.raises(ConfigError, match="train_dataset="):
        construct(policy, tmp_path, args=rows())
    with pytest.raises(ConfigError, match="TrainingArguments"):
        construct(policy, tmp_path, args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
    with pytest.raises(RewardError, match="reward_funcs"):
        construct(policy, tmp_path, reward_funcs=None)
    with pytest.raises(LoadingError, match=r"(?s)reward_processing_classes.*must match"):
        construct(policy, tmp_path, reward_processing_classes=[None, None])


CALLED_BY_SCRIPTS = ("get_high_entropy_mask", "get_off_policy_mask")
"""Formulas that can be called, and not overridden: the trainer has its own (tests/trainer/test_padded_formulas.py)."""


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_that_are_never_called_are_refused_in_classes_and_objects(hook, policy, tmp_path):
    mine = type("Mine", (type("Middle", (GRPOTrainer,), {hook: lambda self: None}),), {})
    with pytest.raises(ConfigError, match=f"Mine overrides {hook}"):
        mine(policy, by_length, config(tmp_path), rows())
    trainer = make(policy, tmp_path, by_length, rows())
    with pytest.raises(ConfigError, match=hook):
        setattr(trainer, hook, None)
    inherited = getattr(trainer, hook, None)
    if not hook.startswith("_") and inherited is not None and hook not in CALLED_BY_SCRIPTS:
        with pytest.raises(ConfigError, match="(?s)" + hook):
            inherited()


def test_attributes_that_scripts_read_are_there(policy, tmp_path):
    trainer = make(
        policy,
        tmp_path,
        [by_length, lambda completions: [0.0] * len(completions)],
        rows(),
        reward_weights=[1.0, 0.5],
    )
    assert trainer.reward_weights.tolist() == [1.0, 0.5] and trainer.reward_funcs[0] is by_length
    assert trainer.reward_func_names == [r.name for r in trainer.scorer.rewards]
    assert (trainer.beta, trainer.num_generations, trainer.entropy_coef, trainer.ref_model) == (
        0.0,
        4,
        0.0,
        None,
    )
    assert (trainer.pad_token_id, trainer.eos_token_id, trainer.use_vllm) == (PAD, EOS, False)
    assert (trainer.steps_per_generation, trainer.generation_batch_size, trainer.rollout_func) == (1, 8, None)
    for name in PARTS:
        assert hasattr(trainer, name)
        if name != "reward_weights":
            with pytest.raises(ConfigError, match=name):
                setattr(trainer, name, None)
    with pytest.raises(AttributeError, match="log_metric"):
        trainer._metrics  # noqa: B018
    trainer.of_my_own = 3
    assert trainer.of_my_own == 3 and not hasattr(trainer, "of_nobody")


def test_the_reference_that_is_read_is_the_one_that_is_compared_with(policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows(), beta=0.1)
    trainer.train()
    start = dict(AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).named_parameters())
    read = dict(trainer.ref_model.named_parameters())
    moved = dict(trainer.model.named_parameters())
    assert all(torch.equal(read[n], p) for n, p in start.items())
    assert any(not torch.equal(moved[n], p) for n, p in start.items())


def test_predictions_are_the_rewards_of_the_evaluation(policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows())
    found = trainer.predict(rows(3))
    same = trainer.evaluate(rows(3))
    assert found.predictions.shape == (3, 4) and found.label_ids is None
    assert np.isclose(found.predictions.mean(), found.metrics["test_reward"])
    assert found.metrics["test_reward"] == same["eval_reward"]
    assert logged(trainer, "eval_reward") and not logged(trainer, "test_reward")


def test_the_card_names_model_data_tags_and_rewards(policy, tmp_path):
    trainer = make(policy, tmp_path, by_length, rows())
    trainer.create_model_card(model_name="mine", dataset_name="some/data", tags=["a-tag"], license="mit")
    text = (tmp_path / "README.md").read_text()
    for word in ("mine", "some/data", "a-tag", 'license: "mit"', "grpo", "by_length", policy):
        assert word in text, text
    trainer.create_model_card(tags="one")
    assert '"one", "grpo"' in (tmp_path / "README.md").read_text()


def test_the_loss_of_a_micro_batch_comes_with_what_it_was_made_of(policy, tmp_path):
    class Looks(GRPOTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            assert outputs is inputs
            return loss

    trainer = Looks(policy, by_length, config(tmp_path), rows())
    trainer.train()
    assert trainer.state.global_step == 1


def test_every_argument_has_its_line_in_the_docstring():
    for name in list(inspect.signature(GRPOTrainer.__init__).parameters)[1:-1]:
        assert f"\n    {name}: " in inspect.getdoc(GRPOTrainer).replace("Args:", "\n"), name
