"""The reference swaps its weights into the policy's own module, and always gives the policy's back."""

import pytest
import torch
from torch import nn

from covey.errors import LoadingError
from covey.update.reference import Reference


@pytest.fixture
def policy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    return model


def move(policy, by):
    with torch.no_grad():
        policy[1].weight += by


def test_only_trained_weights_are_kept(policy):
    assert set(Reference(policy).values) == {"1.weight", "1.bias"}


def test_swaps_in_the_weights_of_its_moment(policy):
    x = torch.ones(1, 2)
    before, reference = policy(x), Reference(policy)
    move(policy, 1.0)
    moved = policy(x)
    with reference.swapped_into(policy) as swapped:
        inside = swapped(x)
        assert not inside.requires_grad
    assert torch.equal(inside, before.detach())
    assert torch.equal(policy(x), moved)
    assert not torch.equal(moved, before)


def test_gives_the_weights_back_after_an_error(policy):
    reference = Reference(policy)
    move(policy, 1.0)
    own = policy[1].weight.detach().clone()
    with pytest.raises(RuntimeError, match="inside"), reference.swapped_into(policy):
        raise RuntimeError("inside")
    assert torch.equal(policy[1].weight, own)


def test_moves_by_its_share_and_restores(policy):
    reference = Reference(policy)
    start = policy[1].weight.detach().clone()
    move(policy, 1.0)
    reference.move_towards(policy, 0.6)
    assert torch.allclose(reference.values["1.weight"], start + 0.6)
    fresh = Reference(policy)
    fresh.restore(reference.state())
    assert torch.equal(fresh.values["1.weight"], reference.values["1.weight"])


class Apart(nn.Linear):
    """As DeepSpeed ZeRO-3 makes it: of a parameter a flat shard is kept, and a pass gathers what was given up."""

    def __init__(self, place="none"):
        super().__init__(2, 2, bias=False)
        shard = self.weight.detach().flatten().clone()  # of one process
        shard.final_location = place
        self.weight.ds_id, self.weight.ds_tensor, self.weight.partition = 0, shard, self.give_up
        self.give_up()

    def give_up(self):
        self.weight.data = torch.empty(0)

    def forward(self, x):
        if not self.weight.numel():  # a small one stays whole after the pass
            self.weight.data = self.weight.ds_tensor.view(2, 2).clone()
        return super().forward(x)


def test_shards_of_zero3_are_swapped_though_small_weights_stay_whole_after_a_pass():
    policy, x = Apart(), torch.ones(1, 2)
    reference = Reference(policy)
    before = policy(x).detach()
    policy.weight.ds_tensor += 1.0
    policy.give_up()
    moved = policy(x).detach()
    with reference.swapped_into(policy):
        assert torch.equal(policy(x), before)
    assert torch.equal(policy(x).detach(), moved) and not torch.equal(moved, before)
    reference.move_towards(policy, 1.0)
    with reference.swapped_into(policy):
        assert torch.equal(policy(x), moved)
    assert reference.state()["sharded"] == ["weight"]


def test_weights_that_zero3_keeps_on_a_disk_are_refused():
    policy = Apart("nvme")
    with (
        pytest.raises(LoadingError, match=r"'weight' is not there.*nvme.*beta=0"),
        Reference(policy).swapped_into(policy),
    ):
        pass
