"""What waits for the backward pass lies on the host; gradients are the same."""

import pytest
import torch
from torch import nn

from covey.update import offload
from covey.update.offload import offloaded

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="activations of a GPU are offloaded")


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8))).to(device)


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def test_what_is_on_the_host_already_stays_as_it_is():
    model, x = network("cpu"), torch.randn(1024, 512)
    plain = gradients(model, x)
    with offloaded(model):
        out = model(x)
    model.zero_grad()
    out.square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))


@needs_gpu
def test_memory_of_the_gpu_falls_and_gradients_stay():
    model, x = network("cuda"), torch.randn(8192, 512, device="cuda")
    plain = gradients(model, x)
    held = {}
    for name, context in (("plain", torch.enable_grad()), ("offloaded", offloaded(model))):
        model.zero_grad(set_to_none=True)
        before = torch.cuda.memory_allocated()
        with context:
            out = model(x)
        held[name] = torch.cuda.memory_allocated() - before
        out.square().sum().backward()
    assert held["offloaded"] < held["plain"] / 4
    assert all(torch.allclose(a, p.grad, rtol=1e-5) for a, p in zip(plain, model.parameters(), strict=True))


@needs_gpu
def test_weights_and_small_tensors_are_not_moved(monkeypatch):
    model, moved = network("cuda"), []
    monkeypatch.setattr(
        offload.torch, "empty", lambda *shape, **k: moved.append(shape) or torch.zeros(*shape)
    )
    with offloaded(model):
        model(torch.randn(4, 512, device="cuda"))
    assert moved == []
