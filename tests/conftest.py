"""Nothing in the tests reaches a hub, and tiny models compute on one thread."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("covey", deadline=None)
settings.load_profile("covey")
