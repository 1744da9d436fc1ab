"""A score that is missing through our own fault."""

from __future__ import annotations

import math


class Failure(float):
    """NaN with a reason. A reward returns it where it could not judge a completion, and that is not the policy's fault.

    The sample is left out; it does not count as 0. To other libraries it is a plain NaN.

        >>> scores = [1.0, Failure("the judge did not answer"), 0.0]
    """

    reason: str

    def __new__(cls, reason: str) -> Failure:
        failure = super().__new__(cls, math.nan)
        failure.reason = reason
        return failure

    def __reduce__(self) -> tuple[type[Failure], tuple[str]]:
        return Failure, (self.reason,)

    def __repr__(self) -> str:
        return f"Failure({self.reason!r})"
