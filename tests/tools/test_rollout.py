"""`rollout_func`: what it is given, and what it may hand back."""

import pytest

from covey.errors import ToolError
from covey.tools.rollout import rolled_out
from covey.types import Prompt

CHATS = [[{"role": "user", "content": name}] for name in "ab"]
PROMPTS = [Prompt(chat, (1, 2, n), {}, n, (n, 0)) for n, chat in enumerate(CHATS)]


def given(**changes):
    fields = {
        "prompt_ids": [[1, 2, 0]] * 2 + [[1, 2, 1]] * 2,
        "completion_ids": [[5, 9], [6, 6, 9], [7], [8, 8, 9]],
        "logprobs": [[-1.0, -2.0], [-1.0, -1.5, 0.0], [-0.5], [-1.0, -2.0, -3.0]],
    }
    return {k: v for k, v in {**fields, **changes}.items() if v is not ...}


def roll(seen=None, **changes):
    def function(prompts, trainer):
        if seen is not None:
            seen.append((prompts, trainer))
        return given(**changes)

    return rolled_out(function, PROMPTS, 2, "the trainer", lambda ids: " ".join(map(str, ids)), [9], 100)


def test_it_is_given_each_prompt_once_per_completion_in_a_row():
    seen = []
    roll(seen)
    assert seen == [([CHATS[0], CHATS[0], CHATS[1], CHATS[1]], "the trainer")]
    seen[0][0][0].append("spoilt")
    assert PROMPTS[0].content == [{"role": "user", "content": "a"}]


def test_groups_have_what_it_handed_back():
    result = roll()
    assert [g.prompt for g in result.groups] == PROMPTS and result.has_logprobs and result.columns == {}
    completions = [c for g in result.groups for c in g.completions]
    assert [c.ids for c in completions] == [(5, 9), (6, 6, 9), (7,), (8, 8, 9)]
    assert completions[1].logprobs == (-1.0, -1.5, 0.0) and completions[0].written is None
    assert [c.finish for c in completions] == ["stop", "stop", "length", "stop"]


def test_without_log_probabilities_it_says_so():
    result = roll(logprobs=None)
    assert not result.has_logprobs and result.groups[0].completions[1].logprobs == (0.0,) * 3


def test_the_mask_says_what_the_policy_wrote():
    """What the sampler had to say of places between is not read, be it no number."""
    nan = float("nan")
    result = roll(
        env_mask=[[1, 1], [1, 0, 1], [1], [0, 0, 1]],
        logprobs=[[-1.0, -2.0], [-1.0, nan, 0.0], [-0.5], [5.0, None, -3.0]],
    )
    first, second = (g.completions[1] for g in result.groups)
    assert first.written == (True, False, True) and first.logprobs == (-1.0, 0.0, 0.0)
    assert second.logprobs == (0.0, 0.0, -3.0) and second.num_written == 1


def test_prompts_that_differ_within_a_group_have_openings():
    result = roll(prompt_ids=[[1, 2, 3], [1, 4], [1, 2, 1], [1, 2, 1]])
    group = result.groups[0]
    assert group.prompt.ids == (1,) and [c.opening for c in group.completions] == [2, 1]
    assert group.completions[0].ids == (2, 3, 5, 9) and group.completions[0].written == (
        False,
        False,
        True,
        True,
    )
    assert group.completions[1].logprobs == (0.0, -1.0, -1.5, 0.0)
    assert result.groups[1].prompt.ids == (1, 2, 1) and result.groups[1].completions[0].opening == 0


def test_other_values_go_to_the_rewards():
    assert roll(points=[1, 2, 3, 4], version="v1").columns == {"points": [1, 2, 3, 4], "version": "v1"}


def test_of_several_log_probabilities_the_sampled_ids_is_taken():
    nested = [[[-1.0, -3.0], [-2.0, -4.0]]] + [[[-1.0, -2.0]] * n for n in (3, 1, 3)]
    assert roll(logprobs=nested).groups[0].completions[0].logprobs == (-1.0, -2.0)
    numbers = [[[0, 5], [9, 0]]] + [[[i, 0] for i in ids] for ids in given()["completion_ids"][1:]]
    assert roll(logprobs=nested, logprob_token_ids=numbers).groups[0].completions[0].logprobs == (-3.0, -2.0)


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"completion_ids": ...}, ("completion_ids",)),
        ({"prompt_ids": None}, ("prompt_ids",)),
        ({"logprobs": ...}, ("logprobs",)),
        ({"completion_ids": [[1]] * 3}, ("completion_ids", "3", "4")),
        ({"env_mask": [[1]] * 5}, ("env_mask", "5", "4")),
        ({"env_mask": [[1, 1], [1, 1], [1], [1, 1, 1]]}, ("env_mask", "row 1", "2", "3")),
        ({"logprobs": [[-1.0, -2.0], [-1.0] * 3, [-1.0] * 2, [-1.0] * 3]}, ("logprobs", "row 2", "2", "1")),
        ({"logprobs": [[-1.0, float("nan")], [-1.0] * 3, [-1.0], [-1.0] * 3]}, ("logprobs", "row 0", "nan")),
        ({"logprobs": [[-1.0, 2.0], [-1.0] * 3, [-1.0], [-1.0] * 3]}, ("logprobs", "row 0", "2.0")),
        ({"env_mask": [[1, 1], None, [1], [1, 1, 1]]}, ("env_mask", "row 1", "None")),
        ({"logprobs": [-1.0] * 4}, ("logprobs", "row 0", "-1.0")),
        ({"logprobs": [[-1.0, None], [-1.0] * 3, [-1.0], [-1.0] * 3]}, ("logprobs", "row 0", "None")),
        (
            {
                "logprobs": [[[-1.0]] * 2, [[-1.0]] * 3, [[-1.0]], [[-1.0]] * 3],
                "logprob_token_ids": [[[77777]] * 2, [[77777]] * 3, [[77777]], [[77777]] * 3],
            },
            ("logprob_token_ids", "row 0", "77777"),
        ),
        ({"completion_ids": [[5, 9], [], [7], [8]]}, ("completion_ids", "row 1", "empty")),
        ({"completion_ids": [[5, 9], ["x"], [7], [8]]}, ("completion_ids", "row 1", "'x'")),
        ({"completion_ids": [[5, 9], [-100], [7], [8]]}, ("completion_ids", "row 1", "-100")),
        ({"completion_ids": [[5, 9], [100, 9], [7], [8]]}, ("completion_ids", "row 1", "100", "embedding")),
        ({"prompt_ids": [[1, 2], [1, 2], [1, 2], [1, 640]]}, ("prompt_ids", "row 3", "640", "embedding")),
        ({"prompt_ids": [[1], [2], [1], [1]]}, ("prompt_ids", "row 0", "common")),
    ],
)
def test_what_cannot_be_read_names_the_field_and_the_row(changes, words):
    with pytest.raises(ToolError, match="rollout_func") as e:
        roll(**changes)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_no_dictionary_is_refused():
    with pytest.raises(ToolError, match="rollout_func returned list"):
        rolled_out(lambda p, t: [], PROMPTS, 2, None, str, [9])
