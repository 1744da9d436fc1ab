"""The reference: the frozen policy that the trained one is compared with.

It is the policy's own module with the weights it had at the start: their values are kept, and lent to the module for a
forward pass. One mechanism is right for full models, fresh adapters and adapters that were trained before, and the
divergence is 0 at the first step in every case; switching the adapter off would be right only for a fresh one. Only
weights that are trained are kept, so for an adapter the reference costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from covey.errors import LoadingError

WRAPPED = "_checkpoint_wrapped_module."
"""What checkpointing wrappers put into the names of parameters."""


class Reference:
    """Values of the trained weights at one moment; taken before the policy is wrapped for training."""

    def __init__(self, policy: nn.Module) -> None:
        self.values = {n: p.detach().clone() for n, p in policy.named_parameters() if p.requires_grad}
        self._cut: set[str] = set()

    @contextmanager
    def lent_to(self, policy: nn.Module) -> Iterator[nn.Module]:
        """The policy with the reference's weights, without gradients; its own come back whatever happens.

        Raises:
            LoadingError: the policy is sharded in a way that does not allow it (FSDP1, ZeRO-3).
        """
        parameters = self._parameters(policy)
        self._exchange(parameters)
        try:
            with torch.no_grad():
                yield policy
        finally:
            _give_up_gathered(policy)
            self._exchange(parameters)

    @torch.no_grad()
    def move_towards(self, policy: nn.Module, share: float) -> None:
        """reference ← share × policy + (1 - share) × reference (arXiv:2404.09656, section 3)."""
        for name, parameter in self._parameters(policy).items():
            self.values[name].lerp_(_local(parameter.detach()).to(self.values[name]), share)

    @property
    def is_sharded(self) -> bool:
        """Whether this process holds a part of the values."""
        return bool(self._cut)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, once the reference has moved."""
        return {
            "values": {name: value.cpu() for name, value in self.values.items()},
            "cut": sorted(self._cut),
        }

    def restore(self, state: dict[str, Any]) -> None:
        saved = state["values"]
        self.values = {name: saved[name].to(value.device) for name, value in self.values.items()}
        self._cut = set(state["cut"])

    def _parameters(self, policy: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters by name; the values are brought to where they are, and cut as they are."""
        _give_up_gathered(policy)
        parameters = {n.replace(WRAPPED, ""): p for n, p in policy.named_parameters()}
        for name, value in self.values.items():
            if name not in parameters or hasattr(parameters[name], "ds_id"):
                raise LoadingError(
                    f"A reference (beta above 0) needs the policy's weights by name, and {name!r} is not there: FSDP1 and "
                    "DeepSpeed ZeRO-3 take weights apart. Use FSDP2 (fsdp_config={'version': 2}), ZeRO-1 or ZeRO-2, or "
                    "set beta=0."
                )
            self.values[name] = self._placed(name, value, parameters[name])
        return {name: parameters[name] for name in self.values}

    def _placed(self, name: str, value: Tensor, parameter: nn.Parameter) -> Tensor:
        """The value on the parameter's device, cut as the parameter is; of full values the first process's counts."""
        if not isinstance(parameter, DTensor):
            return value.to(parameter.device)
        if name in self._cut:
            return value
        self._cut.add(name)
        whole = value.to(parameter.to_local().device)
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements).to_local().clone()

    @torch.no_grad()
    def _exchange(self, parameters: dict[str, nn.Parameter]) -> None:
        """Policy and reference change places, a parameter at a time.

        Plain parameters change by pointer. Sharded ones are read from a buffer of their own when they are gathered, so
        there the numbers move.
        """
        for name, parameter in parameters.items():
            if isinstance(parameter, DTensor):
                local = _local(parameter)
                own = local.clone()
                local.copy_(self.values[name])
                self.values[name].copy_(own)
            else:
                own, parameter.data = parameter.data, self.values[name]
                self.values[name] = own


def _give_up_gathered(policy: nn.Module) -> None:
    """Let every parameter be its process's part again.

    FSDP2 keeps some weights gathered after a forward pass, those of the head among them, and the next pass would compute
    with them although the parts have changed.
    """
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _local(parameter: Tensor) -> Tensor:
    """This process's part of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
