"""One error per boundary.

    CoveyError
    ├── ConfigError       a setting is wrong, misspelt or contradicts another one        (ValueError)
    ├── DatasetError      a row, a column or a prompt cannot be used                     (ValueError)
    ├── LoadingError      a model, tokenizer or adapter cannot be used as asked          (ValueError)
    ├── RewardError       a reward broke its contract, or raised                         (ValueError)
    ├── ToolError         a tool or an environment cannot be used, or broke its contract (ValueError)
    ├── SandboxError      code cannot be run at the isolation that was asked for         (RuntimeError)
    ├── EngineError       the sampler cannot serve a request                             (RuntimeError)
    │   └── ServerLost    a server is gone, or gave a request up                         (RuntimeError)
    ├── CheckpointError   a checkpoint is damaged or does not belong to this run         (RuntimeError)
    └── DivergedError     loss or gradients were not finite too many steps in a row      (RuntimeError)

    CoveyWarning          something the user asked for is done differently, and how      (UserWarning)

A message says where, what came, what was expected and what to do. Mistakes of the user are one of these; mistakes of
ours are `assert`.
"""

import sys
import warnings

from covey.text.foreign import fit

PASSED_OVER = frozenset({"covey", "transformers", "accelerate", "torch", "peft", "contextlib", "threading"})
"""Packages that call one another between a user's script and a warning of Covey's."""


class CoveyError(Exception):
    """Base class of every error that Covey raises on purpose. Its text may quote completions, so it is made fit for a terminal."""

    def __str__(self) -> str:
        return fit(super().__str__(), 20_000)


class ConfigError(CoveyError, ValueError):
    """A setting is wrong, misspelt or contradicts another one."""


class DatasetError(CoveyError, ValueError):
    """A row, a column or a prompt of the dataset cannot be used."""


class LoadingError(CoveyError, ValueError):
    """A model, a tokenizer or an adapter cannot be used as asked."""


class RewardError(CoveyError, ValueError):
    """A reward broke its contract, or raised."""


class ToolError(CoveyError, ValueError):
    """A tool or an environment cannot be used as asked, or broke its contract."""


class SandboxError(CoveyError, RuntimeError):
    """Code cannot be run at the isolation level that was asked for."""


class EngineError(CoveyError, RuntimeError):
    """The sampler cannot serve a request."""


class ServerLost(EngineError):
    """A server is gone, or gave a request up. The request may be sent again, to it or to another one."""


class CheckpointError(CoveyError, RuntimeError):
    """A checkpoint is damaged, or does not belong to this run."""


class DivergedError(CoveyError, RuntimeError):
    """Loss or gradients were not finite too many optimizer steps in a row."""


class CoveyWarning(UserWarning):
    """Something the user asked for is done differently; the message says how."""


def warn(message: str) -> None:
    """Warn, with the line of the user's script that led here: a line of Covey's own says nothing to its reader."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(fit(message), CoveyWarning, stacklevel=level)
