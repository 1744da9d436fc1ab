"""In a recipe, a function that makes a reward is called with its arguments, and one that is no reward is found before a run."""

import pytest

from covey.errors import CoveyError
from covey.recipes import Recipe

MAKER = """
model: m
data: {file: rows.jsonl}
rewards:
- reward: get_soft_overlong_punishment
"""


def test_what_makes_a_reward_is_called_with_its_arguments(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(MAKER + "  arguments: {max_completion_len: 10, soft_punish_cache: 4}\n")
    (part,) = Recipe.load(path).rewards(load_models=False)
    assert part.name == "soft_overlong_punishment_reward"
    assert part(completion_ids=[[0] * 5, [0] * 8, [0] * 11]) == [0.0, -0.5, -1.0]


@pytest.mark.parametrize("arguments", ["", "  arguments: {max_completion_len: 10}\n"])
def test_one_that_is_not_called_or_lacks_arguments_is_found_with_its_line(tmp_path, arguments):
    path = tmp_path / "r.yaml"
    path.write_text(MAKER + arguments)
    with pytest.raises(CoveyError, match=r"r\.yaml:\d+.*get_soft_overlong_punishment"):
        Recipe.load(path).rewards(load_models=False)
