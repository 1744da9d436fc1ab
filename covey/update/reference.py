"""The reference: the frozen policy that the trained one is compared with.

It is the policy's own module with the weights it had at the start: their values are kept, and swapped into the module for
a forward pass. One mechanism is right for full models, fresh adapters and adapters that were trained before, and the
divergence is 0 at the first step in every case; switching the adapter off would be right only for a fresh one. Only
weights that are trained are kept, so for an adapter the reference costs next to nothing. Where processes hold shards of
the policy (FSDP2, DeepSpeed ZeRO-3), each keeps that shard of the reference: its memory is that of the policy's weights,
divided by the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from covey.errors import CheckpointError, LoadingError

WRAPPED = "_checkpoint_wrapped_module."
"""Part of the names of parameters inside checkpointing wrappers."""


class ReferenceState(TypedDict):
    """A reference as a checkpoint holds it."""

    values: dict[str, Tensor]
    sharded: list[str]
    """Names of the values of which this process holds a shard."""


class Reference:
    """The values of the trained weights at one moment, copied before the policy is wrapped for training."""

    def __init__(self, policy: nn.Module) -> None:
        self.values: dict[str, Tensor] = {}
        self.sharded: set[str] = set()
        """Names of the values of which this process holds a shard."""
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad:
                shard = getattr(parameter, "ds_tensor", None)  # ZeRO-3 may shard a policy while it is loaded
                self.values[name] = (parameter if shard is None else shard).detach().clone()
                if shard is not None:
                    self.sharded.add(name)

    @contextmanager
    def swapped_into(self, policy: nn.Module) -> Iterator[nn.Module]:
        """Give the policy the reference's weights, without gradients; its own come back whatever happens.

        Raises:
            LoadingError: the policy is sharded in a way that does not allow it (FSDP1; ZeRO-3 with weights on a disk).
        """
        parameters = self._parameters(policy)
        self._swap(parameters)
        try:
            with torch.no_grad():
                yield policy
        finally:
            _reshard(policy)
            self._swap(parameters)

    @torch.no_grad()
    def move_towards(self, policy: nn.Module, share: float) -> None:
        """Set reference ← share × policy + (1 - share) × reference (arXiv:2404.09656, section 3)."""
        for name, parameter in self._parameters(policy).items():
            self.values[name].lerp_(_own(parameter).detach().to(self.values[name]), share)

    def state(self) -> ReferenceState:
        """Return what `restore` needs, once the reference has moved."""
        values = {name: value.cpu() for name, value in self.values.items()}
        return {"values": values, "sharded": sorted(self.sharded)}

    def restore(self, state: ReferenceState) -> None:
        """Continue from a saved state, on the devices of the present values.

        Raises:
            CheckpointError: it is that of other weights.
        """
        saved = state["values"]
        if other := sorted(set(self.values) ^ set(saved)):
            raise CheckpointError(
                f"The reference in the checkpoint holds {len(saved)} weights, and this policy trains {len(self.values)}: {other[0]!r} "
                "is in one of them alone. Resume with the model, adapter and version that the run was started with."
            )
        self.values = {name: saved[name].to(value.device) for name, value in self.values.items()}
        self.sharded = set(state["sharded"])

    def _parameters(self, policy: nn.Module) -> dict[str, nn.Parameter]:
        """Return the policy's trained parameters by name; the values move to their devices, sharded as they are."""
        _reshard(policy)
        parameters = {n.replace(WRAPPED, ""): p for n, p in policy.named_parameters()}
        for name, value in self.values.items():
            if name not in parameters or _is_on_disk(parameters[name]):
                raise LoadingError(
                    f"A reference (beta above 0) needs the policy's weights by name, and {name!r} is not there: FSDP1 takes "
                    "weights apart, and DeepSpeed's NVMe offloading keeps them elsewhere. Use FSDP2 "
                    "(fsdp_config={'version': 2}), ZeRO-3 without offload_param to 'nvme', or set beta=0."
                )
            parameter = parameters[name]
            if not _is_shard(parameter):
                self.values[name] = value.to(parameter.device)
            elif name not in self.sharded:  # with full values, those of the first process are taken
                self.sharded.add(name)
                self.values[name] = _shard_of(value, parameter)
        return {name: parameters[name] for name in self.values}

    @torch.no_grad()
    def _swap(self, parameters: dict[str, nn.Parameter]) -> None:
        """Let policy and reference change places, a parameter at a time.

        Plain parameters change by pointer. Sharded ones are read from a buffer of their own when they are gathered, so
        there the numbers move.
        """
        for name, parameter in parameters.items():
            if _is_shard(parameter):
                local = _own(parameter)
                own = local.clone()
                local.copy_(self.values[name])
                self.values[name].copy_(own)
            else:
                own, parameter.data = parameter.data, self.values[name]
                self.values[name] = own


def _reshard(policy: nn.Module) -> None:
    """Let every parameter be its process's shard again.

    FSDP2 keeps some weights gathered after a forward pass, those of the head among them, and ZeRO-3 small ones; the next
    pass would compute with them although the shards have changed.
    """
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    shards: list[Any] = [p for p in policy.parameters() if hasattr(p, "ds_id")]
    for shard in shards:
        shard.partition()


def _is_shard(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor) or hasattr(parameter, "ds_tensor")


def _is_on_disk(parameter: Any) -> bool:
    place = getattr(getattr(parameter, "ds_tensor", None), "final_location", None)
    return place is not None and str(getattr(place, "value", place)) == "nvme"


def _own(parameter: Any) -> Tensor:
    """Return what this process holds of a parameter: a shard of it (FSDP2's has its shape, ZeRO-3's is flat), or all."""
    own: Tensor = (
        parameter.to_local() if isinstance(parameter, DTensor) else getattr(parameter, "ds_tensor", parameter)
    )
    return own


def _shard_of(value: Tensor, parameter: Any) -> Tensor:
    """Return this process's shard of a whole value, cut as the parameter is."""
    own = _own(parameter)
    if isinstance(parameter, DTensor):
        whole = value.to(own.device)
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements).to_local().clone()
    shard, start = torch.zeros_like(own), torch.distributed.get_rank(parameter.ds_process_group) * own.numel()
    part = value.flatten()[start : start + own.numel()]
    shard[: len(part)].copy_(part)  # the last shard is filled up with zeros
    return shard
