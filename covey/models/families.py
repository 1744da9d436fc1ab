"""Families of vision-language models that Covey trains with pictures, and what the decoder of each does with a prompt of pictures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FAMILIES = (
    "ernie4_5_vl_moe",
    "gemma3",
    "gemma4",
    "glm4v",
    "idefics3",
    "internvl",
    "llava",
    "llava_next",
    "mistral3",
    "paligemma",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "smolvlm",
)
"""Kinds of models, as configs name them, that train with pictures."""

PICTURES_SEE_THEMSELVES = ("gemma3", "gemma4")
"""Tokens of one picture see one another both ways."""
IN_WINDOWS = ("gemma4",)
"""They do so only in layers with a window, and only where the config says so."""
PROMPT_SEES_ITSELF = ("paligemma",)
"""All tokens of a prompt see one another both ways."""
COUNTS_FROM_ONE = ("paligemma",)
"""The first token has position 1."""


def is_family(config: Any) -> bool:
    """Return whether a model of this config trains with pictures."""
    return getattr(config, "model_type", None) in FAMILIES


def spans_of(config: Any, is_picture: Tensor) -> tuple[tuple[int, int], ...]:
    """Return first place and one past the last of the tokens of a prompt that see one another both ways.

    Args:
        config: of the model.
        is_picture: shape (tokens,), bool.
    """
    kind, text = config.model_type, config.get_text_config()
    if kind in PROMPT_SEES_ITSELF:
        return ((0, len(is_picture)),)
    if kind in IN_WINDOWS and getattr(text, "use_bidirectional_attention", None) != "vision":
        return ()
    return runs_of(is_picture.tolist()) if kind in PICTURES_SEE_THEMSELVES else ()


def runs_of(marks: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return first place and one past the last of each run of true marks."""
    found, place = [], 0
    for mark, run in itertools.groupby(marks):
        size = len(list(run))
        if mark:
            found.append((place, place + size))
        place += size
    return tuple(found)


def type_behind(kind: str) -> int:
    """Return the number that a token behind a prompt has in `token_type_ids`."""
    return 1 if kind in PROMPT_SEES_ITSELF else 0
