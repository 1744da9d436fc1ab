"""A plugin of pytest: what was imported for the tests is left out of every later collection of garbage.

accelerate collects at the end of each training, which takes half a second where transformers, torch and the tests are looked
through, and little where only the run's own objects are.
"""

import gc


def pytest_collection_finish() -> None:
    """Collect once, and take what is left out of the collector's sight."""
    gc.collect()
    gc.freeze()
