"""Packed completions never see one another: decided by the architecture, found by changing neighbours, and watched."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from covey.update.forward import Forward, plain_logprobs
from tests.families import tiny_of
from tests.tiny import tiny_model
from tests.update.test_forward import batch_of

GROUPS = [(7, (5, 9, 4)), (3, (8, 3, 6))]

JOINED = (
    "lfm2",
    "mamba",
    "mamba2",
    "jamba",
    "falcon_h1",
    "qwen3_next",
    "qwen3_5_text",
    "granitemoehybrid",
    "bamba",
    "rwkv",
    "minimax",
)
"""Families with a layer in which tokens meet other than by attention."""


@pytest.mark.parametrize("family", JOINED)
def test_layers_that_carry_a_state_are_never_packed(family):
    """However small its numbers are: a fresh model's state leaks by less than rounding."""
    model = tiny_of(family)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.1)
    assert not Forward(model).is_fast


class Leak(nn.Module):
    """Adds to each token a part of the mean of all that stand before it, whoever's they are."""

    def __init__(self, inner, part):
        super().__init__()
        self.inner, self.part = inner, part

    def forward(self, x):
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.inner(x) + self.part * mean


def leaking(part):
    model = tiny_model("qwen2", scale=3.0)
    model.model.layers[0].mlp = Leak(model.model.layers[0].mlp, part)
    return model


@pytest.mark.parametrize("part", [1e-4, 1e-1])
def test_a_neighbour_that_moves_a_number_is_found_at_first_use(part, caplog):
    forward = Forward(model := leaking(part))
    batch = batch_of(GROUPS)
    with caplog.at_level(logging.WARNING, logger="covey.update.forward"):
        got = forward(model, batch)[0]
    assert not forward.is_fast and "row by row" in caplog.text
    assert torch.allclose(got, plain_logprobs(model, batch)[0], atol=1e-6)


def test_what_begins_to_leak_in_training_is_found_at_a_later_step():
    events = []
    forward = Forward(model := leaking(0.0), note_event=events.append)
    for step in range(1, 5):
        forward.next_step()
        forward(model, batch_of(GROUPS, step))
        assert forward.is_fast == (step < 4), step
        if step == 2:
            model.model.layers[0].mlp.part = 1e-3
    assert len(events) == 1 and "row by row" in events[0]


def test_the_ways_are_compared_at_growing_distances():
    forward = Forward(model := tiny_model("qwen2"))
    passes, checked = [], []
    model.register_forward_pre_hook(lambda *_: passes.append(None))
    for step in range(1, 20):
        forward.next_step()
        passes.clear()
        forward(model, batch_of(GROUPS))
        if len(passes) > 1:
            checked.append(step)
    assert checked == [1, 2, 4, 8, 16] and forward.is_fast


def test_a_model_with_a_bias_by_distance_of_its_own_is_not_packed_however_small_its_numbers():
    """BLOOM does not ask the attention interface: its neighbours are seen, by less than any bound on outputs."""
    model = tiny_of("bloom")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.3)
    forward = Forward(model)
    forward(model, batch_of(GROUPS))
    assert not forward.is_fast


def test_experts_do_not_count_as_neighbours():
    """Tokens that share an expert share its rounding, and nothing else: mixtures are packed."""
    forward = Forward(model := tiny_of("qwen3_moe"))
    forward(model, batch_of(GROUPS))
    assert forward.is_fast
