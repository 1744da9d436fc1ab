"""What waits for the backward pass lies on the host; gradients are the same."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from covey.update import activation_offload as offload
from covey.update.activation_offload import offloaded

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


@pytest.fixture
def moved(monkeypatch):
    """Shapes of what is moved, where this machine's memory is not taken for the host's; no GPU is needed for that."""
    shapes, original = [], torch.empty

    def empty(*args, pin_memory=False, **kwargs):
        if pin_memory:
            shapes.append(tuple(args[0]))
        return original(*args, **kwargs)

    monkeypatch.setattr(offload, "HOST", "elsewhere")
    monkeypatch.setattr(torch, "empty", empty)
    return shapes


def test_weights_and_small_tensors_are_not_moved(moved):
    model = network("cpu")
    with offloaded(model):
        model(torch.randn(4, 512))
    assert moved == []


def test_what_is_moved_comes_back(moved):
    """1,024 rows of 512 numbers are 2 MB. A layer keeps its input, and what is between its matrix and its function."""
    model, x = network("cpu"), torch.randn(1024, 512)
    plain = gradients(model, x)
    with offloaded(model):
        out = model(x)
    assert len(moved) == 16 and set(moved) == {(1024, 512)}
    model.zero_grad()
    out.square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))


@pytest.mark.parametrize("checkpointing", [True, False])
def test_copies_of_weights_in_half_precision_are_moved_unless_layers_run_again(
    monkeypatch, moved, checkpointing
):
    monkeypatch.setattr(offload, "LEAST_BYTES", 2**19)
    model = network("cpu")
    with offloaded(model), torch.autocast("cpu", torch.bfloat16):
        x = torch.randn(4, 512, requires_grad=True)
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False) if checkpointing else layer(x)
    assert moved == ([] if checkpointing else [(512, 512)] * 8)
