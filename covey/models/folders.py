"""Whether the name of a model means a folder, so that one that is not there is not looked for on a hub."""

from __future__ import annotations

import os

from covey.errors import LoadingError


def is_folder(name: str) -> bool:
    """Whether a name can only be a folder's: the names of a hub have one slash at most, and start with neither / nor a dot."""
    return name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1


def is_absent(name: str) -> bool:
    """Whether a name means a folder, and there is none."""
    return is_folder(name) and not os.path.isdir(name)


def not_loaded(what: str, name: str, error: Exception) -> LoadingError:
    """The error that says why something cannot be loaded.

    Args:
        what: such as "policy".
        name: as it was given: a folder, or the name of a repository.
        error: what the loader raised.
    """
    reason = str(error)
    if is_absent(name):
        there = "it is a file" if os.path.isfile(name) else "there is no such folder"
        reason = (
            f"{there} (looked for from {os.getcwd()}). Give the folder that holds its config.json, or the name of a "
            "repository, such as 'Qwen/Qwen2.5-0.5B-Instruct'."
        )
    return LoadingError(f"The {what} {name!r} cannot be loaded: {reason}")
