"""Seeds for servers that draw with random numbers of their own: one for each turn of each completion."""

from __future__ import annotations

import numpy as np

from covey.sample.remote.server import DrawRequest

HIGHEST = 2**63 - 2**32
"""Seeds lie below, so that those of a group, which count up from the first one, are 63 bits too."""


def request_seed(request: DrawRequest) -> int:
    """Return the seed of a request's first completion; that of completion i after it is i higher.

    It hangs on the run's seed, the step, the prompt's `seed_key`, the index in the group and the place of the turn, and on nothing
    else: sent again, to another server or beside other prompts, a request draws the same.
    """
    settings, place = request.settings, len(request.given) - request.opening
    key = (settings.seed, *settings.step, *request.prompt.seed_key, *((place,) if place else ()))
    # Two 32-bit words per part, behind their number: numpy takes (1,) and (1, 0) for the same seed.
    words = [len(key), *(word for part in key for word in (part & 0xFFFFFFFF, part >> 32))]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
    return int(generator.integers(HIGHEST)) + request.first
