"""Threads may parse at the same time."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

from covey.rewards.syntax import parsed

SOURCE = "\n".join(f"assert f([[{n}, [1, [2, (3 + 4) * 5]]]]) == {{'a': [{n}]}}" for n in range(300))


def _some_python(phase, info):
    for _ in range(20):
        pass


def test_threads_that_parse_at_once_do_not_meet():
    """What Python a collection runs in the middle of a parse is where another thread gets in; here that is often."""
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(_some_python)
    gc.set_threshold(20, 1000, 1000)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(parsed, [SOURCE] * 12))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(_some_python)
        sys.setswitchinterval(interval)
    assert [len(tree.body) for tree in trees] == [300] * 12
