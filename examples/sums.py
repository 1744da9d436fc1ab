"""A real chat model learns mental arithmetic from one exact rule, and is measured on problems that it never saw.

    python examples/sums.py                          Qwen2.5-Coder-0.5B-Instruct from the hub, an adapter
    python examples/sums.py --full --seed 1          all weights, other problems
    python examples/sums.py --model FOLDER           from a folder

Results of this command, with curves, are in docs/results.md.
"""

import random

from before_and_after import adapter, read_options, settings, train_and_measure

from covey import GRPOConfig, GRPOTrainer
from covey.rewards import NumberMatch

QUESTION = "What is {} * {} {} {}? Answer in one short line that ends with the number."


def problems(held_out: int) -> tuple[list[dict], list[dict]]:
    """Return problems to train on and `held_out` others: a * b + c and a * b - c, each once."""
    found = [
        {
            "prompt": [{"role": "user", "content": QUESTION.format(a, b, sign, c)}],
            "target": a * b + int(f"{sign}{c}"),
        }
        for a in range(11, 60)
        for b in range(3, 10)
        for c in range(11, 60)
        for sign in "+-"
    ]
    random.Random("held out").shuffle(found)
    return found[held_out:], found[:held_out]


def main() -> None:
    options = read_options(
        __doc__, "Qwen/Qwen2.5-Coder-0.5B-Instruct", out="runs/sums", lora=True, new_tokens=32
    )
    rows, held_out = problems(options.held_out)
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=NumberMatch(sources=("number",)),
        args=GRPOConfig(**settings(options)),
        train_dataset=random.Random(options.seed).sample(rows, options.prompts * options.steps),
        eval_dataset={"sums": held_out},
        peft_config=adapter(options),
    )
    train_and_measure(trainer, {"sums": "number_match"}, options)


if __name__ == "__main__":
    main()
