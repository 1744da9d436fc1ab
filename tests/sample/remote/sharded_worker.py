"""One of two processes that hold a policy sharded by FSDP2: publish it, prove a server with it, find a stale tensor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from covey.errors import EngineError
from covey.sample.remote.checks import Checks
from covey.sample.remote.weight_sync import WeightSync
from covey.sample.sampling import Sampling
from covey.trainer.distributed import end_processes
from tests.sample.remote.wrong_server import WrongServer
from tests.tiny import tiny_model


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    # They meet at a file: a port that is free now may be another's by then.
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)

    def gather(value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found

    plain = tiny_model("qwen2", scale=3.0, tie_word_embeddings=True)
    policy: Any = tiny_model("qwen2", scale=3.0, tie_word_embeddings=True)
    for layer in policy.model.layers:
        fully_shard(layer)
    fully_shard(policy, ignored_params={policy.model.norm.weight})  # plain beside DTensors
    before = [p.to_local().clone() if hasattr(p, "to_local") else p.clone() for p in policy.parameters()]
    said = []
    stale = "model.layers.1.mlp.up_proj.weight"
    for faults in ({}, {"stale": [stale]}):
        sync = WeightSync("run", folder, gather, rank=rank, folder=folder)
        server = WrongServer(
            tiny_model("qwen2", seed=7 if not faults else 0, scale=3.0, tie_word_embeddings=True), **faults
        )
        try:
            Checks(sync, Sampling(4)).start(policy, [server])
        except EngineError as error:
            said.append(str(error))
        if rank == 0 and not faults:
            state = plain.state_dict()
            assert all(torch.equal(t, state[n]) for n, t in server.served.weights.items())
        assert rank == 0 or server.updates == 0
        sync.close()
    after = [p.to_local() if hasattr(p, "to_local") else p for p in policy.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert len(said) == 1 and "model.layers.1" in said[0] and "up_proj.weight" in said[0], said
    assert gather(said)[0] == said


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_processes()
    # FSDP2 keeps its groups, and one of gloo's threads that lets go of a tensor late aborts an interpreter that ends.
    os._exit(0)
