"""One uniform number per token, drawn per sequence.

The numbers of a sequence depend on the run's seed, the step, the prompt and the index in its group, and on nothing
else. So what a sequence says does not depend on the batch it is decoded in, on the number of processes, or on what was
sampled before, and a resumed run needs no generator state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def uniforms(key: Sequence[int], count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) from a counter-based generator (Philox 4x64, Salmon et al. 2011).

    Args:
        key: non-negative integers: seed, step, prompt, index.
        count: how many; the first numbers do not depend on it.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(_words(key)))).random(count)


def _words(key: Sequence[int]) -> list[int]:
    """Two 32-bit words per part, behind their number: numpy takes (1,) and (1, 0) for the same seed."""
    return [len(key), *(word for part in key for word in (part & 0xFFFFFFFF, part >> 32))]
