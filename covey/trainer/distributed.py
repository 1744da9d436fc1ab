"""The end of a run of several processes."""

from __future__ import annotations

import gc

import torch.distributed


def end_processes() -> None:
    """Leave the group of processes and end its threads. The last thing a script does, after `del trainer`.

    Without it the interpreter may be aborted while it ends (SIGABRT), after all work is done: gloo's threads hold tensors, and
    to let go of one needs an interpreter that is alive. A group's threads live as long as anything refers to the group, so
    leaving it is not enough: DDP's wrapper refers to it, and dies only when cyclic garbage is collected.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gc.collect()
