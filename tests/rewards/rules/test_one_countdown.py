"""One law of Countdown: the recipes' two rewards give every completion the same score."""

import json
from collections import Counter
from pathlib import Path
from random import Random

from covey.recipes.recipe import Recipe
from covey.rewards import RewardBatch
from covey.tasks.countdown import countdown_puzzles

ROOT = Path(__file__).parents[3]
CASES = json.loads((Path(__file__).parent / "countdown_cases.json").read_text())
COUNT = 5_000
ALPHABET = "0123456789+-*/() \t\n.^=xX,_<>²８"


def right(rng, puzzle):
    return puzzle.solution


def negated_twice(rng, puzzle):
    return f"-(-({puzzle.solution}))"


def signed(rng, puzzle):
    return rng.choice(["-", "--", "---", "+", "- "]) + puzzle.solution


def spaced(rng, puzzle):
    return "".join(
        rng.choice(["", " ", "\t", "\n", "\f"]) * (rng.random() < 0.1) + c for c in puzzle.solution
    )


def in_parentheses(rng, puzzle):
    depth = rng.choice([1, 20, 62, 63, 64, 65, 100, 10_000])
    return "(" * depth + puzzle.solution + ")" * depth


def another_value(rng, puzzle):
    return puzzle.solution.replace(rng.choice("+-*/"), rng.choice("+-*/"))


def one_number_too_many(rng, puzzle):
    return rng.choice([f"{puzzle.solution}+0", f"{puzzle.solution}*1", f"{puzzle.solution}/1"])


def the_target(rng, puzzle):
    return str(puzzle.target)


def an_equation(rng, puzzle):
    return f"{puzzle.solution}={puzzle.target}"


def long(rng, puzzle):
    return puzzle.solution + rng.choice([" ", "+0", "*1", "9", "(", "-"]) * rng.choice(
        [100, 300, 600, 100_000]
    )


def by_zero(rng, puzzle):
    first, *others = puzzle.nums
    return f"{first}/({'-'.join(map(str, others))})"


def garbled(rng, puzzle):
    text = list(puzzle.solution)
    for _ in range(rng.randint(1, 3)):
        text.insert(rng.randrange(len(text) + 1), rng.choice(ALPHABET))
    return "".join(text)


def noise(rng, puzzle):
    return "".join(rng.choices(ALPHABET, k=rng.randint(0, 40)))


def hostile(rng, puzzle):
    return rng.choice(
        ["9**9**9**9", "__import__('os')", "1e9", "0x1", "01+1", "1_0", "٣+١", "True", "\\frac{1}{2}"]
    )


ANSWERS = (
    *(right, right, right, spaced, negated_twice, signed, in_parentheses, another_value, one_number_too_many),
    *(the_target, an_equation, long, by_zero, garbled, noise, hostile),
)
FRAMES = (
    *["<think>so</think>\n<answer>{}</answer>"] * 5,
    *["so</think> <answer> {}\n</answer>\n"] * 3,
    *["<answer>{}</answer>"] * 3,
    " \n<think>\n</think><answer>{}</answer>",
    "<think>a</think><think>b</think><answer>{}</answer>",
    "so <answer>{}</answer>",
    "<think><answer>{}</answer></think>",
    "<answer>{0}</answer><answer>{0}</answer>",
    "<answer><answer>{}</answer></answer>",
    "</think><answer>{}</answer> I hope!",
    "</think><answer>{}",
    "</think>{}",
)


def generated():
    """Puzzles and completions, half of them text and half messages."""
    rng = Random(0)
    puzzles = [p for level in ("easy", "medium", "hard") for p in countdown_puzzles(100, level=level)]
    for number in range(COUNT):
        puzzle = rng.choice(puzzles)
        text = rng.choice(FRAMES).format(rng.choice(ANSWERS)(rng, puzzle))
        yield puzzle, [{"role": "assistant", "content": text}] if number % 2 else text


def the_reward(recipe, name, batch):
    """Scores by the mixture of a recipe, of one of its rewards."""
    mixture = Recipe.load(ROOT / "recipes" / recipe).rewards()
    return [score.value for score in mixture.score(batch).scores[name]]


def test_the_recipes_score_five_thousand_answers_alike():
    puzzles, completions = zip(*generated(), strict=True)
    columns = {"nums": [list(p.nums) for p in puzzles], "target": [p.target for p in puzzles]}
    batch = RewardBatch(["p"] * COUNT, list(completions), columns=columns)

    tiny = the_reward("tiny.yaml", "countdown_reward", batch)

    assert tiny == the_reward("countdown.yaml", "countdown_all", batch)
    assert min(Counter(tiny)[score] for score in (0.0, 1.0)) > 1_000


def test_and_the_known_cases():
    cases = [case for case in CASES if case["rule"] == "all"]
    columns = {name: [case[name] for case in cases] for name in ("nums", "target")}
    batch = RewardBatch(["p"] * len(cases), [case["completion"] for case in cases], columns=columns)
    expected = [float(case["expected"]) for case in cases]

    assert the_reward("tiny.yaml", "countdown_reward", batch) == expected
    assert the_reward("countdown.yaml", "countdown_all", batch) == expected
