"""Settings with which nothing can be drawn are refused where they are made."""

import pytest
import torch

from covey.errors import ConfigError
from covey.sample.native.draw import keep_min_p, keep_top_p
from covey.sample.sampling import Sampling

WRONG = [
    {"max_new_tokens": 0},
    {"temperature": 0.0},
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"top_p": 1.1},
    {"top_p": -0.1},
    {"min_p": 2.0},
    {"top_k": -1},
    {"repetition_penalty": 0.0},
    {"min_new_tokens": 9},
    {"no_repeat_ngram_size": -2},
    {"stop_strings": ("\n\n", "")},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_a_number_with_which_nothing_can_be_drawn_is_named(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is "):
        Sampling(**{"max_new_tokens": 8, **options})


@pytest.mark.parametrize("keep", [lambda x: keep_top_p(x, 0.0), lambda x: keep_min_p(x, 1.0)])
def test_the_strictest_limits_keep_the_most_probable_token(keep):
    logits = torch.tensor([[0.5, 3.0, -1.0], [2.0, 1.0, 1.5]])
    assert torch.isfinite(keep(logits)).tolist() == [[False, True, False], [True, False, False]]
