"""Faults of a call."""

from __future__ import annotations


class CallTimeout(Exception):
    """A reward took longer than it may."""


class CallLost(Exception):
    """The process or thread that a reward ran in is gone, or could not be had."""


FAULTS = (Exception, SystemExit)
"""Exceptions that a reward may raise. `sys.exit()` in a reward must not end the run as if it had succeeded; Ctrl-C must."""
