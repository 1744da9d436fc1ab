"""The split is a property of the puzzle: no seed, level or order moves one across."""

from collections import Counter
from dataclasses import dataclass

import pytest

from covey.errors import DatasetError
from covey.tasks.code import code_puzzles
from covey.tasks.countdown import LEVELS, countdown_puzzles
from covey.tasks.friendly_text import draw_prompt
from covey.tasks.split import HELD_OUT_SHARE, draw_distinct, split_of

DRAW = {
    "countdown": lambda seed, split: countdown_puzzles(400, seed=seed, split=split),
    "code": lambda seed, split: code_puzzles(400, seed=seed, split=split),
    "text": lambda seed, split: draw_distinct(draw_prompt, 120, f"text {seed}", split),
}


@dataclass(frozen=True)
class Number:
    key: int


@pytest.mark.parametrize("task", DRAW)
def test_no_seed_draws_a_training_puzzle_into_held_out(task):
    train = {p.key for seed in range(4) for p in DRAW[task](seed, "train")}
    held_out = {p.key for seed in range(4, 8) for p in DRAW[task](seed, "held_out")}

    assert not train & held_out


@pytest.mark.parametrize("task", DRAW)
def test_the_same_seed_gives_the_same_puzzles_and_another_seed_others(task):
    first, again, other = (DRAW[task](seed, "train") for seed in (3, 3, 4))

    assert first == again
    assert first != other


@pytest.mark.parametrize("task", DRAW)
def test_puzzles_of_one_draw_are_different(task):
    keys = [p.key for p in DRAW[task](0, "train")]

    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_countdown_is_split(level):
    train = {p.key for p in countdown_puzzles(200, seed=1, level=level)}
    held_out = {p.key for p in countdown_puzzles(200, seed=2, split="held_out", level=level)}

    assert not train & held_out


def test_about_a_fifth_is_held_out():
    shares = Counter(split_of(("key", n)) for n in range(20_000))

    # Four standard deviations of a binomial share at n = 20,000.
    assert shares["held_out"] / 20_000 == pytest.approx(HELD_OUT_SHARE, abs=0.0114)


def test_the_hash_is_the_same_in_every_process():
    # Written down once. A change here moves puzzles into the held-out split that the bundled policy was trained on.
    held_out = [n for n in range(1, 9) if split_of(((1, 2, 3), n)) == "held_out"]

    assert held_out == [2, 4]


def test_more_puzzles_than_there_are_is_an_error_that_says_so():
    with pytest.raises(DatasetError, match="Asked for 50 different puzzles of split 'train'"):
        draw_distinct(lambda rng: Number(rng.randrange(20)), 50, "seed", "train", patience=300)


def test_an_unknown_split_or_level_is_named():
    with pytest.raises(DatasetError, match="split is 'test'"):
        countdown_puzzles(1, split="test")
    with pytest.raises(DatasetError, match="level is 'trivial'"):
        countdown_puzzles(1, level="trivial")
    with pytest.raises(DatasetError, match="level is 'trivial'"):
        code_puzzles(1, level="trivial")
