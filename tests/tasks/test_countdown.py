"""Countdown: solvable by construction, verified exactly."""

import inspect

import pytest

from covey.tasks.countdown import LEVELS, countdown_puzzles, countdown_reward, countdown_rows
from tests.clocks import own_seconds

PUZZLES = countdown_puzzles(300)


def reward(completion, nums, target):
    (score,) = countdown_reward([completion], [nums], [target])
    return score


@pytest.mark.parametrize("level", LEVELS)
def test_every_puzzle_has_the_solution_it_was_made_from(level):
    puzzles = countdown_puzzles(200, level=level)

    solved = countdown_reward(
        [f"<answer>{p.solution}</answer>" for p in puzzles],
        [p.nums for p in puzzles],
        [p.target for p in puzzles],
    )

    assert solved == [1.0] * len(puzzles)
    assert all(len(p.nums) == LEVELS[level].numbers for p in puzzles)
    assert all(1 <= p.target <= LEVELS[level].largest_target for p in puzzles)
    assert all(1 <= n <= LEVELS[level].largest for p in puzzles for n in p.nums)


def test_a_corrupted_answer_is_wrong():
    for p in PUZZLES:
        assert reward(f"<answer>{p.solution}+1</answer>", p.nums, p.target) == 0.0
        assert reward(f"<answer>{p.solution}</answer>", p.nums, p.target + 1) == 0.0
        assert reward(f"<answer>{p.solution}</answer>", (*p.nums, 1), p.target) == 0.0
        assert reward(f"<answer>{p.target}</answer>", p.nums, p.target) == 0.0


@pytest.mark.parametrize(
    ("answer", "nums", "target", "expected"),
    [
        ("8*2-4/4", [4, 8, 2, 1], 15, 0.0),  # 4 twice
        ("1+2+4+8", [4, 8, 2, 1], 15, 1.0),
        ("4*4-1", [4, 4, 1], 15, 1.0),  # given twice, used twice
        ("4*4-1", [4, 4, 4, 1, 2], 15, 0.0),  # some are left
        ("8/(3-8/3)", [3, 3, 8, 8], 24, 1.0),  # through thirds
        ("7/2", [7, 2], "7/2", 1.0),
        (
            "100000000*1000000000+1",
            [100000000, 1000000000, 1],
            100000000000000000,
            0.0,
        ),  # floats agree, integers do not
        ("8/(4-2*2)", [8, 4, 2, 2], 15, 0.0),  # division by zero
        ("x+1", [1, 2], 3, 0.0),
    ],
)
def test_worked_cases(answer, nums, target, expected):
    assert reward(f"<think>so</think>\n<answer>{answer}</answer>", nums, target) == expected


def test_attacks_are_not_paid_and_do_not_take_long(attacks):
    p = PUZZLES[0]
    prompt = p.row()["prompt"][0]["content"]
    texts = attacks(prompt, "answer", p.solution)

    # Quadratic work on 100 kB would be 10^10 steps, minutes; all of them together take some milliseconds.
    with own_seconds(2):
        paid = [name for name, text in texts.items() if reward(text, p.nums, p.target)]

    assert not paid


def test_messages_are_read_like_text_and_other_rows_are_left_alone():
    p = PUZZLES[0]
    said = [{"role": "assistant", "content": f"<think>\n</think>\n<answer>{p.solution}</answer>"}]

    assert countdown_reward([said, said], [p.nums, None], [p.target, None]) == [1.0, None]


def test_the_reward_asks_only_for_its_columns():
    columns = set(countdown_rows(1)[0])

    assert {"nums", "target"} <= columns
    assert set(inspect.signature(countdown_reward).parameters) == {"completions", "nums", "target", "_"}
