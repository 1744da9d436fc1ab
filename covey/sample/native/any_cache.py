"""Rows and bytes of a cache that a model has made: the general path chooses among the first and counts the second.

Whatever a model keeps between two tokens may come here: a cache of transformers, a cache of the model's own, lists of tensors.
Rows are the first dimension of every tensor. Whether that is true of a model is not taken on trust: `covey.sample.native.ways`
compares what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

NAMES = ("cache", "past_key_values", "cache_params", "state")
"""What outputs and arguments of forward passes call the cache."""


def select_rows(cache: object, index: Tensor) -> object:
    """Return the cache with these rows; one that is named more than once is repeated.

    The class of the cache and of each layer is asked: `batch_select_indices`, or `reorder_cache` where that was written later, as
    in layers with a recurrent state, which inherit the first for their keys alone.
    """
    parts = [cache, *(getattr(cache, "layers", None) or ())]
    if all(_is_written(part, "batch_select_indices", "reorder_cache") for part in parts):
        cache.batch_select_indices(index)  # type: ignore[attr-defined]
    elif hasattr(cache, "reorder_cache"):
        cache.reorder_cache(index)
    else:
        return _selected(cache, index)
    return cache


def _is_written(value: object, name: str, other: str) -> bool:
    """Return whether a class has a method, and none of its heirs has written `other` after it."""
    for kind in type(value).__mro__:
        if name in vars(kind):
            return True
        if other in vars(kind):
            return False
    return False


def _selected(value: object, index: Tensor) -> object:
    """Return a copy with these rows of all tensors; an object that holds some is changed in place."""
    if isinstance(value, Tensor):
        return value.index_select(0, index) if value.ndim > 1 else value
    if isinstance(value, dict):
        return {name: _selected(part, index) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_selected(part, index) for part in value)
    if hasattr(value, "__dict__") and any(True for _ in tensors_in(value)):
        vars(value).update({name: _selected(part, index) for name, part in vars(value).items()})
    return value


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield all tensors in a cache."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        yield from tensors_in(vars(value))


def bytes_of(cache: object) -> int:
    """Return the bytes that a cache holds; a tensor that is in it twice counts once."""
    found = {id(t): t.numel() * t.element_size() for t in tensors_in(cache)}
    return sum(found.values())
