"""A pass under DDP in two processes, of which the second is shown no picture: python -m tests.vision.two_processes FOLDER RANK."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from covey.trainer.distributed import end_processes
from covey.update.forward import Forward
from tests.vision.test_update import batch_of
from tests.vision.tiny_eyes import tiny_eyes

GROUPS = ([(1, (3, 2)), (2, (4,)), (3, (2, 2))], [(0, (2, 5)), (0, (3, 1))])
"""Of each process."""


def gradient_of(folder: str, rank: int) -> None:
    """Save the gradient that DDP leaves in a process."""
    from covey.vision.eyes import ProcessorEyes

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    policy, processor = tiny_eyes()
    eyes = ProcessorEyes(processor, policy)
    forward, model = Forward(policy, eyes=eyes), DistributedDataParallel(policy)
    batch = batch_of(eyes, GROUPS[rank], seed=rank)
    with forward.layout(batch):
        logprobs, _ = forward(model, batch)
        (logprobs * batch.advantage_of_token).sum().backward()
    torch.save({n: p.grad for n, p in policy.named_parameters()}, f"{folder}/{rank}.pt")
    dist.barrier()


if __name__ == "__main__":
    gradient_of(sys.argv[1], int(sys.argv[2]))
    end_processes()
