"""Modules that the zygote imports before it forks: a locked child cannot open files, so what is not here cannot be imported."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

MODULES = """
    abc argparse array ast base64 binascii bisect bz2 calendar cmath cProfile codecs collections collections.abc
    colorsys concurrent.futures contextlib contextvars copy copyreg csv dataclasses datetime decimal difflib enum errno
    fractions functools gc graphlib hashlib heapq hmac html html.parser importlib inspect io ipaddress itertools json
    keyword linecache locale logging lzma math numbers operator os os.path pickle platform pprint queue random re
    reprlib sched secrets select shlex shutil signal stat statistics string struct sys tempfile textwrap threading time
    timeit token tokenize traceback types typing unicodedata unittest urllib.parse uuid warnings weakref zlib zoneinfo
    _strptime encodings.ascii encodings.idna encodings.latin_1 encodings.utf_8 encodings.utf_16 encodings.cp1252
    encodings.hex_codec encodings.rot_13 encodings.unicode_escape encodings.utf_32
"""


def preload(extra: Iterable[str]) -> None:
    """Import the usual modules, as many as this Python has, and all of `extra`."""
    for name in MODULES.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for name in extra:
        importlib.import_module(name)
