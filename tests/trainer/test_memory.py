"""Where memory runs out the step is repeated in smaller parts, and comes out the same."""

import pytest
import torch

from covey.errors import ConfigError, CoveyWarning
from covey.update.micro_batch import MicroBatch
from covey.update.oom_retry import OomRetry, TokenBudget
from tests.tiny import tiny_policy
from tests.trainer.harness import MANY_ENDS, Recorder, by_length, config, make, rows

CPU = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."
SETTINGS = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=2, learning_rate=0.5)


class Small:
    """A forward pass that has room for so many completions."""

    def __init__(self, forward, most, error):
        self.forward, self.most, self.error = forward, most, error
        self.sizes = []

    def __getattr__(self, name):
        return getattr(self.forward, name)

    def __call__(self, model, batch):
        self.sizes.append(batch.num_rows)
        if batch.num_rows > self.most:
            raise self.error
        return self.forward(model, batch)


def trained(tmp_path, name, change=None, **settings):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    trainer = make(folder, tmp_path / name, Recorder(by_length), rows(16), **{**SETTINGS, **settings})
    if change is not None:
        change(trainer)
    trainer.train()
    return trainer


def assert_same(a, b):
    for (name, x), y in zip(a.model.named_parameters(), b.model.parameters(), strict=True):
        assert torch.allclose(x, y, atol=2e-6, rtol=1e-4), (name, (x - y).abs().max())
    for key in ("loss", "entropy", "kl", "update/dropped_share"):
        assert logged(a, key) == pytest.approx(logged(b, key), rel=1e-4, abs=1e-6), key


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(CPU)])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
def test_a_step_that_ran_out_of_memory_is_repeated(tmp_path, error, loss_type):
    plain = trained(tmp_path, "plain", loss_type=loss_type, beta=0.1)

    def change(trainer):
        trainer.updater.forward = Small(trainer.updater.forward, 3, error)

    with pytest.warns(
        CoveyWarning, match=r"ran out of memory with 8 completion.*Set max_tokens_per_forward="
    ):
        small = trained(tmp_path, "small", change, loss_type=loss_type, beta=0.1)
    assert_same(plain, small)
    times = logged(small, "update/out_of_memory")
    assert times[0] >= 1
    assert times[1] == 0, "the smaller size stays"
    assert logged(plain, "update/out_of_memory") == [0, 0]


def test_gradients_of_a_failed_pass_are_taken_away(tmp_path):
    """Memory runs out in the second micro-batch's backward pass, when the head has its gradient already."""
    plain = trained(tmp_path, "plain")
    calls = []

    def change(trainer):
        def hook(gradient):
            calls.append(1)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        trainer.model.get_input_embeddings().weight.register_hook(hook)

    with pytest.warns(CoveyWarning, match="ran out of memory"):
        small = trained(tmp_path, "small", change)
    assert len(calls) > 4
    assert_same(plain, small)


def test_a_completion_that_does_not_fit_alone_is_an_error(tmp_path):
    def change(trainer):
        trainer.updater.forward = Small(
            trainer.updater.forward, 0, torch.OutOfMemoryError("CUDA out of memory.")
        )

    with (
        pytest.warns(CoveyWarning, match="ran out of memory"),
        pytest.raises(torch.OutOfMemoryError, match=r"computed alone already.*max_completion_length"),
    ):
        trained(tmp_path, "small", change)


def test_several_processes_cannot_repeat_a_step():
    """Where they take each pass together. The error names what the step would have been repeated with."""
    retry = OomRetry(TokenBudget(), lambda: 3, print, rank=0, ranks=2, joint=True)

    def work(batch):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    batch = MicroBatch([(1, 2)] * 4, [(3,) * n for n in (2, 3, 4, 5)], [0] * 4, *[torch.zeros(0)] * 4)
    said = r"Step 3 .* process 0.*Other processes wait.*Resume .*max_tokens_per_forward=8,"
    with pytest.raises(torch.OutOfMemoryError, match=said):
        retry.attempt(work, batch)


def test_other_errors_come_through(tmp_path):
    def change(trainer):
        trainer.updater.forward = Small(
            trainer.updater.forward, 3, RuntimeError("shapes cannot be multiplied")
        )

    with pytest.raises(RuntimeError, match="shapes"):
        trained(tmp_path, "small", change)


def test_a_limit_of_tokens_changes_the_passes_and_not_the_step(tmp_path):
    seen = []

    def change(trainer):
        trainer.updater.forward = Small(trainer.updater.forward, 99, None)
        seen.append(trainer.updater.forward.sizes)

    plain = trained(tmp_path, "plain", change, num_iterations=2, beta=0.1)
    small = trained(tmp_path, "small", change, num_iterations=2, beta=0.1, max_tokens_per_forward=20)
    assert max(seen[1]) < max(seen[0]) == 8
    assert sum(seen[1]) == sum(seen[0])
    assert_same(plain, small)


def test_offloading_has_no_effect_without_a_gpu_and_says_so(tmp_path):
    with pytest.warns(CoveyWarning, match="activation_offloading"):
        assert config(tmp_path, activation_offloading=True).activation_offloading is False
    with pytest.raises(ConfigError, match="activation_offloading"):
        config(tmp_path, activation_offloading=True, strict_hardware=True)


def test_the_update_does_not_hold_the_sampler_s_copy_of_the_weights(tmp_path):
    held = []

    def watch(trainer):
        step = trainer.training_step

        def training_step(*args, **kwargs):
            held.append(trainer.engine.weights)
            return step(*args, **kwargs)

        trainer.training_step = training_step

    trained(tmp_path, "run", watch)
    assert held == [None] * 4
