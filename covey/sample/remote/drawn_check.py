"""Whether what a server has drawn is an answer to what it was asked: garbage is found before anything learns from it."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from torch import nn

from covey.errors import EngineError
from covey.models.inspect import text_config
from covey.sample.remote.server import Drawn, DrawRequest, Server
from covey.sample.sampling import Sampling

LEAST = -9999.0
"""vLLM's log-probability of what has none."""

ROUNDING = 1e-5
"""Above 0 that a log-probability in float32 may come to, where probabilities are divided by their sum: that of 1 is 0 up to this."""


def draw_checked(server: Server, request: DrawRequest, policy: nn.Module) -> list[Drawn]:
    """Return what a server draws; what is no answer of this policy is an EngineError (see `check_drawn`)."""
    drawn = server.draw(request)
    check_drawn(server.url, request, drawn, getattr(text_config(policy), "vocab_size", None))
    return drawn


def check_drawn(url: str, request: DrawRequest, drawn: Sequence[Drawn], vocabulary: int | None) -> None:
    """Raise an EngineError for an answer that is none, with its server, prompt and completion.

    Args:
        vocabulary: ids that the policy has; None: not known.
    """
    where = f"{url}, prompt row {request.prompt.row}"
    if len(drawn) != request.count:
        raise EngineError(f"{where}: {len(drawn)} completions came, {request.count} were asked for.")
    never, limit = request.settings.never_drawn, request.limit
    for number, one in enumerate(drawn):
        if wrong := _wrong(one, never, limit, vocabulary) or _wrong_end(one, request.settings, limit):
            raise EngineError(f"{where}, completion {request.first + number}: {wrong}.")


def _wrong(drawn: Drawn, never: Set[int], limit: int, vocabulary: int | None) -> str | None:
    """Return what is wrong with ids and log-probabilities."""
    ids, number = drawn.ids, len(drawn.ids)
    if not 1 <= number <= limit:
        return f"{number} tokens came, where there had to be 1 to {limit}"
    if not all(type(i) is int for i in ids):
        return f"id {next(i for i in ids if type(i) is not int)!r} came, which is no whole number"
    if vocabulary is not None and not 0 <= min(ids) <= max(ids) < vocabulary:
        outside = next(i for i in ids if not 0 <= i < vocabulary)
        return f"id {outside} came, and the policy has ids from 0 to {vocabulary - 1}: another model is served there"
    if not never.isdisjoint(ids):
        return f"id {next(i for i in ids if i in never)} is there, which is never to be drawn"
    for name, logprobs in (("log-probabilities", drawn.logprobs), ("policy_logprobs", drawn.policy_logprobs)):
        if logprobs is not None and len(logprobs) != number:
            return f"{len(logprobs)} {name} came with {number} ids"
        for place, value in enumerate(logprobs or ()):
            if value is None or not (math.isfinite(value) and LEAST < value <= ROUNDING):
                return (
                    f"the log-probability of its token {place} is {value}. The logits are garbage: the weights on the server are not "
                    "finite or not those of this policy, or its dtype is too narrow. Nothing of this round is used"
                )
    return None


def _wrong_end(drawn: Drawn, settings: Sampling, limit: int) -> str | None:
    """Return what is wrong with where the turn ends. Stop strings are looked at later, by Covey's own rule."""
    ids, ends = drawn.ids, frozenset(settings.stop_ids)
    early = next((place for place, i in enumerate(ids[:-1]) if i in ends), None)
    if early is not None:
        return (
            f"token {early} is the end id {ids[early]}, and {len(ids) - early - 1} more tokens came behind it"
        )
    if drawn.reason == "stop" and ids[-1] not in ends:
        return f"it ended with id {ids[-1]}, which is no end id of this run ({sorted(ends)}): the server has end ids of its own"
    if drawn.reason == "length" and len(ids) < limit and ids[-1] not in ends:
        return (
            f"{len(ids)} tokens came and the limit is said to have ended them, which is {limit}: the request was given up there, "
            "or the server's own limit is lower"
        )
    return None
