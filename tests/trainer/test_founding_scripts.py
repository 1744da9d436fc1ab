"""The scripts that Covey was asked to run, with only the import changed and hub names replaced by local folders."""

import warnings

import pytest
import torch
from datasets import Dataset
from peft import PeftModel

from covey.errors import ConfigError
from covey.rewards import (
    code_reward_func,
    format_reward_func,
    math_reward_func,
    simple_math_reward_func,
)
from tests.tiny import tiny_policy, tiny_reward_model

COMPLETIONS = [
    "Let's use the numbers 4, 8, 2, and 1 to get 15.\nWe can try: 8 * 2 - 1 = 15... </think>\n<answer> 8 * 2 - 1 </answer>",
    " ... </think>\n<answer> 8 * 2 - 1 </answer>",
    "Using 4, 8, 2, 1, make 15: 8 * 2 - 1 = 15",
    "<answer> 8 + 4 + 2 + 1 </answer>\n<think> This should equal 15 </think>",
    " ... </think>\n<answer> 8 + 4 - 2 </answer>",
    " ... </think>\n<answer> 10 * 2 - 5 </answer>",
]


def test_the_reward_functions_give_the_documents_numbers():
    target, nums = ["15"] * 6, [[4, 8, 2, 1]] * 6
    assert format_reward_func(COMPLETIONS, target) == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert simple_math_reward_func(COMPLETIONS, target, nums=nums) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert code_reward_func(["<code>x = 1</code>", "x = 1"]) == [1.0, 0.0]


def puzzles(count):
    return Dataset.from_dict(
        {
            "prompt": [f"Use 4, 8, 2, 1 to make {i}." for i in range(count)],
            "target": ["15"] * count,
            "nums": [[4, 8, 2, 1]] * count,
        }
    )


def test_rule_based_rewards_on_a_quantised_adapter(tmp_path):
    from covey import GRPOConfig, GRPOTrainer, ModelConfig, get_peft_config

    model_config = ModelConfig(
        model_name_or_path=tiny_policy(tmp_path / "policy"),
        torch_dtype="bfloat16",
        attn_implementation="flash_attention_2",
        use_peft=True,
        load_in_4bit=True,
    )
    training_args = GRPOConfig(
        output_dir=str(tmp_path / "qwen-r1-tiny"),
        learning_rate=5e-7,
        lr_scheduler_type="cosine",
        logging_steps=10,
        max_steps=100,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=True,
        max_prompt_length=256,
        max_completion_length=1024,
        num_generations=2,
        beta=0.001,
    )
    training_args.max_steps, training_args.max_completion_length = 2, 12  # the document trains for longer
    trainer = GRPOTrainer(
        model=model_config.model_name_or_path,
        reward_funcs=[simple_math_reward_func, math_reward_func],
        args=training_args,
        train_dataset=puzzles(16),
        eval_dataset=puzzles(2),
        peft_config=get_peft_config(model_config),
    )
    trainer.train()
    assert trainer.state.global_step == 2
    assert isinstance(trainer.model, PeftModel)
    assert trainer.plan.accumulation == 2 and trainer.plan.prompts_per_step == 1


def test_the_same_model_config_given_as_the_model_loads_what_the_machine_can(tmp_path):
    from covey import GRPOConfig, GRPOTrainer, ModelConfig, get_peft_config

    model_config = ModelConfig(
        model_name_or_path=tiny_policy(tmp_path / "policy"),
        torch_dtype="bfloat16",
        attn_implementation="flash_attention_2",
        use_peft=True,
        load_in_4bit=True,
    )
    args = GRPOConfig(
        output_dir=str(tmp_path / "run"), max_steps=1, max_completion_length=4, num_generations=2
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = GRPOTrainer(
            model_config,
            [simple_math_reward_func],
            args,
            puzzles(4),
            peft_config=get_peft_config(model_config),
        )
    said = " ".join(str(w.message) for w in caught)
    if not torch.cuda.is_available():
        assert "flash_attention_2" in said and "Sdpa is used instead" in said
        assert "load_in_4bit" in said and "Full precision is used instead" in said
    frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
    assert all(p.dtype == torch.bfloat16 for p in frozen)
    trainer.train()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has what is asked for")
def test_strict_hardware_refuses_instead(tmp_path):
    from covey import GRPOConfig, GRPOTrainer, ModelConfig

    model_config = ModelConfig(
        model_name_or_path=tiny_policy(tmp_path / "policy"), attn_implementation="flash_attention_2"
    )
    args = GRPOConfig(output_dir=str(tmp_path / "run"), strict_hardware=True)
    with pytest.raises(ConfigError, match=r"flash_attention_2.*strict_hardware=False"):
        GRPOTrainer(model_config, [simple_math_reward_func], args, puzzles(4))


def test_mixed_function_and_model(tmp_path):
    from covey import GRPOConfig, GRPOTrainer

    dataset = Dataset.from_dict({"prompt": [f"line {i}" for i in range(17)]})

    def reward_func(completions, **kwargs):
        """Reward function that rewards completions longer than the batch average."""
        avg_length = sum(len(c) for c in completions) / len(completions) if completions else 1
        return [float(len(c) / avg_length) for c in completions]

    training_args = GRPOConfig(
        output_dir=str(tmp_path / "run"),
        learning_rate=0.1,
        per_device_train_batch_size=3,
        num_generations=3,
        max_completion_length=32,
        report_to="none",
    )
    training_args.max_steps = 3  # the document goes through the dataset
    trainer = GRPOTrainer(
        model=tiny_policy(tmp_path / "policy"),
        reward_funcs=[reward_func, tiny_reward_model(tmp_path / "judge")],
        args=training_args,
        train_dataset=dataset,
    )
    trainer.train()
    names = {key for entry in trainer.state.log_history for key in entry}
    assert trainer.state.global_step == 3
    assert {"train_loss"} <= names and [r.name for r in trainer.scorer.rewards] == ["reward_func", "judge"]
