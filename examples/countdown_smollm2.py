"""A real chat model learns a format and Countdown, from rules alone.

    python examples/countdown_smollm2.py                         SmolLM2-135M-Instruct from the hub
    python examples/countdown_smollm2.py --model FOLDER          from a folder

The prompt ends with an opened `<think>`, so the model goes on from there. A model of 135 M weights seldom writes the
format at first, so a third reward pays for each step towards it; it is worth least. In 48 steps on a CPU the mean reward
rose from 0.06 to 1.5: the model had learned the whole format, and no Countdown yet. That takes a larger model or a longer
run; `--model Qwen/Qwen2.5-1.5B-Instruct` on a GPU is a start.
"""

import argparse

from datasets import Dataset

from covey import GRPOConfig, GRPOTrainer
from covey.rewards import Countdown, format_reward_func
from covey.tasks import countdown_rows

QUESTION = (
    "Using the numbers {nums}, create an equation that equals {target}. You can use + - * and each number once. Show your "
    "work in <think> </think> tags and return the final equation in <answer> </answer> tags, for example <answer> "
    "(1 + 2) * 3 </answer>."
)
OPENED = "Let me solve this step by step.\n<think>"


def rows(count: int, split: str) -> Dataset:
    """Three numbers from 1 to 12 and a target that they reach."""
    puzzles = countdown_rows(count, split=split)
    return Dataset.from_list([{**puzzle, "prompt": conversation(puzzle)} for puzzle in puzzles])


def conversation(puzzle: dict) -> list[dict]:
    question = QUESTION.format(nums=puzzle["nums"], target=puzzle["target"])
    return [{"role": "user", "content": question}, {"role": "assistant", "content": OPENED}]


def steps_to_the_format(completions, **kwargs):
    """Give a third for each of `</think>`, `<answer>` and `</answer>` that stands there once and in this order."""
    rewards = []
    for completion in completions:
        text = completion[0]["content"].removeprefix(OPENED)
        places = [text.find(tag) for tag in ("</think>", "<answer>", "</answer>") if text.count(tag) == 1]
        kept = sum(a >= 0 and a == max(places[: i + 1]) for i, a in enumerate(places))
        rewards.append(kept / 3)
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--out", default="runs/countdown-smollm2")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=64, help="longest completion")
    options = parser.parse_args()

    args = GRPOConfig(
        output_dir=options.out,
        max_steps=options.steps,
        learning_rate=2e-5,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=options.new_tokens,
        reward_weights=[1.0, 1.0, 0.5],
        bf16=True,
        logging_steps=1,
        log_completions=True,
        save_strategy="no",
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=[format_reward_func, Countdown(), steps_to_the_format],
        args=args,
        train_dataset=rows(4 * options.steps, "train"),
    )
    trainer.train()
    trainer.save_model(f"{options.out}/model")


if __name__ == "__main__":
    main()
