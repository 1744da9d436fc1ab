"""A real model learns to write small functions, from tests that run in the sandbox.

    python examples/small_functions.py                       SmolLM2-135M-Instruct from the hub, all weights
    python examples/small_functions.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --lora --seed 1
    python examples/small_functions.py --model FOLDER        from a folder

The functions are described in words, two steps each, and the answer is opened up to `return`, so that few tokens remain. Small models
forget the parentheses: "add 3, multiply by 2" becomes `x + 3 * 2`. Whether code is right is found by calling it; the prompt shows
none of the tests. Results of this command are in docs/results.md.
"""

from before_and_after import adapter, read_options, settings, train_and_measure

from covey import GRPOConfig, GRPOTrainer
from covey.rewards import CallTests
from covey.tasks.code import CodePuzzle, code_puzzles

QUESTION = "Write a Python function f(x): take x, {}, and return the result."
OPENED = "```python\ndef f(x):\n    return"
LEVEL = "easy"


def row(puzzle: CodePuzzle) -> dict[str, object]:
    steps = ", ".join(f"{step.verb} {step.operand}" for step in puzzle.steps)
    return {
        "prompt": [
            {"role": "user", "content": QUESTION.format(steps)},
            {"role": "assistant", "content": OPENED},
        ],
        "tests": [{"args": [x], "expected": puzzle.output(x)} for x in puzzle.inputs],
        "entry_point": "f",
    }


def main() -> None:
    options = read_options(
        __doc__, "HuggingFaceTB/SmolLM2-135M-Instruct", out="runs/small-functions", new_tokens=20
    )
    puzzles = code_puzzles(options.prompts * options.steps, seed=options.seed, level=LEVEL)
    held_out = code_puzzles(options.held_out, split="held_out", level=LEVEL)
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=CallTests("all"),
        args=GRPOConfig(**settings(options)),
        train_dataset=[row(puzzle) for puzzle in puzzles],
        eval_dataset={"functions": [row(puzzle) for puzzle in held_out]},
        peft_config=adapter(options),
    )
    train_and_measure(trainer, {"functions": "call_tests"}, options)


if __name__ == "__main__":
    main()
