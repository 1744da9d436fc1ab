"""`rollout_func(prompts, trainer)`: the user samples, and hands back ids.

It is called with each prompt once per completion, in a row, as TRL calls it, and returns a dictionary of lists with one entry
per completion: `prompt_ids`, `completion_ids`, `logprobs` (or None), and maybe `env_mask`. What else it returns goes to the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

from covey.errors import ToolError
from covey.rewards.own import own
from covey.tools.openings import common_start, with_opening
from covey.types import Completion, Group, Prompt
from covey.vision.album import Album

RolloutFunction = Callable[[list[Any], Any], Mapping[str, Any]]
NEEDED = ("prompt_ids", "completion_ids", "logprobs")
OWN = (*NEEDED, "env_mask", "logprob_token_ids")
"""Fields that are read here; all others go to the rewards."""


@dataclass(frozen=True)
class Rollout:
    """Groups that a rollout function handed back."""

    groups: tuple[Group, ...]
    has_logprobs: bool
    """False: it gave none, and those of the completions are zeros that nothing may be read from."""
    columns: Mapping[str, Any]
    """What it gave besides: lists of one value per completion, in their order, and other values as they are."""


def rolled_out(
    function: RolloutFunction,
    prompts: Sequence[Prompt],
    group_size: int,
    trainer: object,
    decode: Callable[[Sequence[int]], str],
    stop_ids: Sequence[int],
    vocabulary: int | None = None,
) -> Rollout:
    """Call a rollout function, and return what it hands back as groups.

    Args:
        decode: ids → text without end and padding tokens.
        stop_ids: a completion whose last id is one of them ended by itself; any other was cut.
        vocabulary: rows of the policy's embedding; None: not known.

    Raises:
        ToolError: a field that is missing, of another length, or holds something else; it names the field and the row.
    """
    album = Album()
    repeated = [own(prompt.content, album) for prompt in prompts for _ in range(group_size)]
    fields = checked_fields(function(repeated, trainer), len(repeated))
    for name in NEEDED[:2]:
        fields[name] = [ids_of(fields, name, row, vocabulary) for row in range(len(repeated))]
    completions = [completion_of(fields, row, decode, stop_ids) for row in range(len(repeated))]
    groups = []
    for number, prompt in enumerate(prompts):
        rows = range(number * group_size, (number + 1) * group_size)
        groups.append(
            group_of(prompt, [fields["prompt_ids"][r] for r in rows], [completions[r] for r in rows])
        )
    more = {name: value for name, value in fields.items() if name not in OWN}
    return Rollout(tuple(groups), fields["logprobs"] is not None, more)


def checked_fields(given: object, size: int) -> dict[str, Any]:
    """Return the fields that a rollout function handed back, each list of them of the right length."""
    if not isinstance(given, Mapping):
        raise ToolError(
            f"rollout_func returned {type(given).__name__}. It returns a dictionary with the fields {', '.join(NEEDED)}."
        )
    fields = dict(given)
    missing = [name for name in NEEDED if name not in fields or (fields[name] is None and name != "logprobs")]
    if missing:
        raise ToolError(
            f"rollout_func returned no {', '.join(map(repr, missing))}; it returned {', '.join(map(repr, fields)) or 'nothing'}. It "
            f"returns {', '.join(NEEDED)}: lists with one entry per completion ('logprobs' may be None)."
        )
    for name in OWN:
        if (value := fields.get(name)) is not None and len(value) != size:
            raise ToolError(
                f"rollout_func returned {len(value)} rows of {name!r}, and was given {size} prompts: each prompt stands in the list "
                "once per completion, and each wants one."
            )
    return fields


def completion_of(
    fields: Mapping[str, Any], row: int, decode: Callable[[Sequence[int]], str], stop_ids: Sequence[int]
) -> Completion:
    """Return one completion; raise a ToolError that names field and row where it cannot be one."""
    ids = fields["completion_ids"][row]
    written = mask_of(fields, row, len(ids))
    given = None if fields["logprobs"] is None else sampled_logprobs(fields, row, ids)
    logprobs = (0.0,) * len(ids) if given is None else logprobs_of(given, row, written)
    return Completion(ids, logprobs, decode(ids), "stop" if ids[-1] in stop_ids else "length", written)


def ids_of(fields: Mapping[str, Any], name: str, row: int, vocabulary: int | None) -> tuple[int, ...]:
    """Return the ids of a row, each of them one that the policy's embedding has."""
    try:
        ids = tuple(int(i) for i in fields[name][row])
    except (TypeError, ValueError):
        raise ToolError(
            f"rollout_func: row {row} of {name!r} is {repr(fields[name][row])[:80]}. It is a list of token ids."
        ) from None
    if not ids or min(ids) < 0:
        what = f"has the id {min(ids)}" if ids else "is empty"
        raise ToolError(
            f"rollout_func: row {row} of {name!r} {what}. It holds at least one token id, none below 0."
        )
    if vocabulary is not None and max(ids) >= vocabulary:
        raise ToolError(
            f"rollout_func: row {row} of {name!r} has the id {max(ids)}, and the policy's embedding has {vocabulary} rows. Give ids "
            "of the policy's own tokenizer, trainer.processing_class."
        )
    return ids


def mask_of(fields: Mapping[str, Any], row: int, size: int) -> tuple[bool, ...] | None:
    """Return which ids of a completion the policy wrote; None: all."""
    if fields.get("env_mask") is None:
        return None
    mask = tuple(bool(value) for value in values_of(fields, "env_mask", row))
    checked_length("env_mask", row, len(mask), size)
    return mask


def values_of(fields: Mapping[str, Any], name: str, row: int) -> list[Any]:
    """Return the values of a row, one per id of the completion."""
    try:
        return list(fields[name][row])
    except TypeError:
        raise ToolError(
            f"rollout_func: row {row} of {name!r} is {repr(fields[name][row])[:80]}. It is a list with one entry per id."
        ) from None


def sampled_logprobs(fields: Mapping[str, Any], row: int, ids: tuple[int, ...]) -> list[Any]:
    """Return the log-probability of each id of a row, where each place may have those of several ids."""
    given = values_of(fields, "logprobs", row)
    checked_length("logprobs", row, len(given), len(ids))
    if not given or not isinstance(given[0], list | tuple):
        return given
    numbered = fields.get("logprob_token_ids")
    if numbered is None:
        return [several[0] for several in given]
    by_id = [
        dict(zip(numbers, several, strict=False))
        for numbers, several in zip(numbered[row], given, strict=True)
    ]
    for place, (found, i) in enumerate(zip(by_id, ids, strict=True)):
        if i not in found:
            raise ToolError(
                f"rollout_func: row {row} of 'logprob_token_ids' has {list(found)} at place {place}, and not {i}, which "
                "'completion_ids' has there."
            )
    return [found[i] for found, i in zip(by_id, ids, strict=True)]


def logprobs_of(given: Sequence[Any], row: int, written: tuple[bool, ...] | None) -> tuple[float, ...]:
    """Return the log-probabilities of a row; 0 where the policy did not write."""
    mask = written if written is not None else (True,) * len(given)
    if wrong := [v for v, own in zip(given, mask, strict=True) if own and not isinstance(v, SupportsFloat)]:
        raise ToolError(
            f"rollout_func: row {row} of 'logprobs' has {wrong[0]!r}. It holds a number per id; 'logprobs' may be None as a whole."
        )
    kept = tuple(float(value) if own else 0.0 for value, own in zip(given, mask, strict=True))
    for place, value in enumerate(kept):
        if not math.isfinite(value) or value > 1e-6:
            raise ToolError(
                f"rollout_func: row {row} of 'logprobs' has {value} at place {place}. A natural log-probability is at most 0."
            )
    return kept


def checked_length(name: str, row: int, found: int, expected: int) -> None:
    if found != expected:
        raise ToolError(
            f"rollout_func: row {row} of {name!r} has {found} entries, and its 'completion_ids' has {expected} ids."
        )


def group_of(prompt: Prompt, own: Sequence[tuple[int, ...]], completions: Sequence[Completion]) -> Group:
    """Return a group: where the prompts of its members differ, what they have in common is the prompt, the rest their opening."""
    shared = common_start(own)
    if not shared:
        raise ToolError(
            f"rollout_func: the 'prompt_ids' of row {prompt.row}'s completions have not one token in common. Begin them alike."
        )
    members = [with_opening(c, member[len(shared) :]) for c, member in zip(completions, own, strict=True)]
    return Group(replace(prompt, ids=shared), tuple(members))
