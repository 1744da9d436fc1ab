"""Numbers that are not finite: the step is not applied, the event names its sample, the run stops in time."""

from types import SimpleNamespace

import pytest
import torch

from covey.errors import CoveyWarning, DivergedError
from covey.trainer.nonfinite import NonfiniteGuard
from tests.tiny import tiny_policy
from tests.trainer.harness import Recorder, logged, make, rows, same, weights

pytestmark = pytest.mark.any_version

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


def poisoned(tmp_path, steps, **given):
    """A trainer whose hidden states become NaN in the forward passes of these optimizer steps."""
    trainer = make(tiny_policy(tmp_path / "m"), tmp_path / "run", Recorder(REWARDS), rows(16), **given)

    def poison(module, inputs, output):
        if torch.is_grad_enabled() and trainer.state.global_step in steps:
            output.last_hidden_state = output.last_hidden_state * float("nan")
        return output

    trainer.model.model.register_forward_hook(poison)
    return trainer


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
def test_a_bad_step_is_not_applied_and_the_run_goes_on(tmp_path, optim):
    trainer = poisoned(tmp_path, {1}, max_steps=3, optim=optim, learning_rate=1e-2, weight_decay=0.1)
    history = []
    trainer.add_callback(_remember(trainer, history))
    with pytest.warns(CoveyWarning, match=r"Step 2: the gradient is not finite.*completion.*of prompt 'say"):
        trainer.train()
    assert same(history[0], history[1]), "the bad step moved something"
    assert not same(history[1], history[2])
    assert logged(trainer, "update/nonfinite_steps") == [0.0, 1.0, 0.0]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert all(v == v for entry in trainer.state.log_history for v in entry.values())


def _remember(trainer, history):
    from transformers import TrainerCallback

    class Remember(TrainerCallback):
        def on_step_end(self, *_, **__):
            history.append(weights(trainer))

    return Remember()


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
def test_too_many_in_a_row_stop_the_run_and_name_the_last_checkpoint(tmp_path):
    trainer = poisoned(
        tmp_path, {2, 3, 4, 5}, max_steps=9, save_strategy="steps", save_steps=1, max_nonfinite_steps=2
    )
    with pytest.raises(DivergedError, match=r"max_nonfinite_steps=2.*checkpoint-3"):
        trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
def test_bad_steps_that_are_not_in_a_row_do_not_stop_it(tmp_path):
    trainer = poisoned(tmp_path, {0, 2, 4}, max_steps=6, max_nonfinite_steps=2, learning_rate=1e-2)
    trainer.train()
    assert trainer.state.global_step == 6


class Engine(torch.nn.Module):
    """Wraps a policy as DeepSpeed does: its `zero_grad` takes no argument."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def zero_grad(self):
        self.policy.zero_grad()


@pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")
def test_gradients_are_dropped_from_a_wrapper_with_its_own_way(tmp_path):
    policy = torch.nn.Linear(2, 2)
    policy(torch.ones(1, 2)).sum().backward()
    batch = SimpleNamespace(old_logprobs=None, row=[], prompts=[[1]], completions=[[2]])
    NonfiniteGuard(3, str(tmp_path), str).drop(Engine(policy), 1, [batch])
    assert [p.grad for p in policy.parameters()] == [None, None]
