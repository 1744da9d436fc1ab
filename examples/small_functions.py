"""A real model of code learns to write small functions, from tests that run in the sandbox.

    python examples/small_functions.py                       Qwen2.5-Coder-0.5B-Instruct from the hub, an adapter
    python examples/small_functions.py --full --seed 1       all weights, other functions
    python examples/small_functions.py --model FOLDER        from a folder

The functions are described in words, two to four steps each. Small models forget the parentheses: "add 3, multiply by 2" becomes
`x + 3 * 2`. Whether code is right is found by calling it; the prompt shows none of the tests. Results of this command are in
docs/results.md.
"""

from before_and_after import adapter, read_options, settings, train_and_measure

from covey import GRPOConfig, GRPOTrainer
from covey.rewards import CallTests
from covey.tasks.code import CodePuzzle, code_puzzles

MINUTES = 8
QUESTION = "Write a short Python function f(x), without comments: take x, {}; return the result."


def row(puzzle: CodePuzzle) -> dict[str, object]:
    steps = ", ".join(f"{step.verb} {step.operand}" for step in puzzle.steps)
    return {
        "prompt": [{"role": "user", "content": QUESTION.format(steps)}],
        "tests": [{"args": [x], "expected": puzzle.output(x)} for x in puzzle.inputs],
        "entry_point": "f",
    }


def main() -> None:
    options = read_options(
        __doc__, "Qwen/Qwen2.5-Coder-0.5B-Instruct", out="runs/small-functions", lora=True, new_tokens=64
    )
    puzzles = code_puzzles(options.prompts * options.steps, seed=options.seed)
    held_out = code_puzzles(options.held_out, split="held_out")
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=CallTests("all"),
        args=GRPOConfig(**settings(options)),
        train_dataset=[row(puzzle) for puzzle in puzzles],
        eval_dataset={"functions": [row(puzzle) for puzzle in held_out]},
        peft_config=adapter(options),
    )
    train_and_measure(trainer, {"functions": "call_tests"}, options, MINUTES)


if __name__ == "__main__":
    main()
