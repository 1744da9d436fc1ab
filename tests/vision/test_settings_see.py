"""Settings that cost or save memory, sample otherwise or ask for more, on policies that see: the same step, or an error before the first."""

import json

import pytest
import torch

from covey import GRPOConfig, GRPOTrainer
from covey.errors import ConfigError, CoveyWarning, DatasetError
from covey.trainer.parts import make_updater
from covey.update import activation_offload, updater
from covey.vision.eyes import ProcessorEyes, size_of
from tests.tools.chats import HERMES
from tests.trainer.harness import make
from tests.vision.tiny_eyes import EYES, by_letters, picture_rows, tiny_eyes

SMALL = dict(
    num_generations=4, per_device_train_batch_size=12, max_completion_length=6, learning_rate=0.01, max_steps=2, beta=0.1
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")


def trained(
    tmp_path, kind="qwen2_5_vl", change=lambda trainer: None, reward=by_letters, rows=None, **settings
):
    """A trainer after two steps on rows with one picture, none and two."""
    model, processor = tiny_eyes(kind)
    settings.pop("processor", lambda processor: None)(processor)
    processor = settings.pop("as_given", lambda processor: processor)(processor)
    rows = picture_rows(6, (1, 0, 2)) if rows is None else rows
    trainer = make(model, tmp_path, reward, rows, processing_class=processor, **{**SMALL, **settings})
    change(trainer)
    trainer.train()
    return trainer


@pytest.fixture(scope="module", params=["qwen2_5_vl", "gemma3"])
def plain(request, tmp_path_factory):
    return request.param, trained(tmp_path_factory.mktemp("plain"), request.param)


def logged(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


def assert_same(one, other, tolerance=2e-6):
    """Weights of two runs, and what they logged. Small: a step moves a weight by 0.01."""
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert (a - b).abs().max() < tolerance, name
    for name in ("loss", "kl", "entropy", "reward"):
        assert logged(one, name) == pytest.approx(logged(other, name), rel=1e-4, abs=1e-6), name


# --- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        dict(gradient_checkpointing=True),
        dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}),
        dict(max_tokens_per_forward=40),
        dict(per_device_train_batch_size=4, gradient_accumulation_steps=3),
    ],
    ids=str,
)
def test_what_saves_memory_changes_no_step(plain, tmp_path, settings):
    kind, whole = plain
    assert_same(whole, trained(tmp_path, kind, **settings))


class Small:
    """A forward pass in a memory for so many completions."""

    def __init__(self, inner, rows):
        self.inner, self.rows = inner, rows

    def __getattr__(self, name):
        if "inner" not in vars(self):  # while it is copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __call__(self, model, batch):
        if torch.is_grad_enabled() and batch.num_rows > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.inner(model, batch)


def test_a_step_that_ran_out_of_memory_is_repeated(plain, tmp_path):
    kind, whole = plain

    def change(trainer):
        trainer.updater.forward = Small(trainer.updater.forward, 5)

    with pytest.warns(CoveyWarning, match="ran out of memory with 12 completion"):
        small = trained(tmp_path, kind, change)
    assert_same(whole, small)
    assert logged(small, "update/out_of_memory")[0] >= 1


def test_a_number_for_people_that_finds_no_memory_is_left_out(plain, tmp_path, monkeypatch):
    """`vision/effect` makes all logits of a pass: a run that fits without goes on without it."""
    kind, whole = plain

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(updater, "picture_effect", full)
    with pytest.warns(CoveyWarning, match="vision/effect is not logged"):
        without = trained(tmp_path, kind)
    assert_same(whole, without, tolerance=1e-30)
    assert logged(whole, "vision/effect") and not logged(without, "vision/effect")


def test_memory_that_runs_out_in_the_tower_is_met_too(plain, tmp_path):
    """In the backward pass, when the decoder has its gradients already."""
    kind, whole = plain
    calls = []

    def change(trainer):
        encoder = trainer.policy.get_encoder(modality="image")

        def hook(gradient):
            calls.append(1)
            if len(calls) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        next(p for p in encoder.parameters() if p.ndim > 1).register_hook(hook)

    with pytest.warns(CoveyWarning, match="ran out of memory"):
        small = trained(tmp_path, kind, change)
    assert len(calls) > 2
    assert_same(whole, small)


def test_activations_may_wait_in_another_memory(plain, tmp_path, monkeypatch):
    """There is no other here: the host is taken for one, and all that is saved is moved."""
    kind, whole = plain
    moved, empty = [], torch.empty

    def pinned(*args, pin_memory=False, **more):
        moved.append(1) if pin_memory else None
        return empty(*args, **more)

    monkeypatch.setattr(activation_offload, "LEAST_BYTES", 0)
    monkeypatch.setattr(activation_offload, "HOST", "elsewhere")
    monkeypatch.setattr(activation_offload.torch, "empty", pinned)

    def change(trainer):
        trainer.updater.offloads_activations = True

    assert_same(whole, trained(tmp_path, kind, change))
    assert moved


# --- what is the same to the bit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_on_which_the_processor_pads_changes_no_bit(plain, tmp_path, side):
    kind, whole = plain

    def turned(processor):
        processor.tokenizer.padding_side = side

    assert_same(whole, trained(tmp_path, kind, processor=turned), tolerance=1e-30)


def test_positions_left_on_the_policy_change_no_bit(tmp_path):
    """Stale `rope_deltas`, as `generate` leaves them: neither sampler nor update, reference nor evaluation reads them."""
    clean = trained(tmp_path / "a", num_iterations=2, per_device_train_batch_size=4)
    left = torch.tensor([[7]])

    def change(trainer):
        trainer.policy.model.rope_deltas = left

    stale = trained(tmp_path / "b", change=change, num_iterations=2, per_device_train_batch_size=4)
    assert_same(clean, stale, tolerance=1e-30)
    assert stale.policy.model.rope_deltas is left and clean.policy.model.rope_deltas is None


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "idefics3", "gemma3"])
def test_text_alone_trains_as_without_eyes(kind, tmp_path):
    """A policy that sees, on rows of text: with its processor, and with its tokenizer alone, which shows it nothing."""
    rows = [{"prompt": [{"role": "user", "content": f"What {i}?"}]} for i in range(6)]
    sees = trained(tmp_path / "a", kind, rows=rows)
    reads = trained(tmp_path / "b", kind, rows=rows, as_given=lambda processor: processor.tokenizer)
    assert sees.prompts.reader.eyes is not None and reads.prompts.reader.eyes is None
    assert_same(sees, reads, tolerance=1e-30)
    start = dict(tiny_eyes(kind)[0].named_parameters())
    moved = {n for n, p in sees.model.named_parameters() if not torch.equal(p, start[n])}
    assert moved and not any("visual" in n or "vision" in n for n in moved)


# --- once for each prompt -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generations", [4, 12])
def test_a_prompt_is_processed_once_whatever_its_completions(tmp_path, generations, monkeypatch):
    """For sampler, two passes of the update, the reference and the rewards; its pixels are held once. Grey and blank ones aside."""
    calls, processed = [], ProcessorEyes._processed

    def counted(eyes, text, images):
        if any(low != high for image in images for low, high in image.getextrema()):
            calls.append(len(images))
        return processed(eyes, text, images)

    monkeypatch.setattr(ProcessorEyes, "_processed", counted)
    more = dict(num_generations=generations, per_device_train_batch_size=3 * generations, num_iterations=2)
    trainer = trained(
        tmp_path,
        change=lambda _: calls.clear(),
        rows=picture_rows(3, (1, 2)),
        max_steps=4,
        max_completion_length=3,
        **more,
    )
    assert sorted(calls) == [1, 1, 1, 1, 2, 2], "three prompts of two rounds"
    eyes = trainer.prompts.reader.eyes
    sights = [sight for (_, digests), sight in eyes.kept.items() if digests]
    assert sum(len(s.inputs["image_grid_thw"]) for s in sights) - 4 in (0, 3, 4), "and grey ones"
    assert eyes.num_bytes == sum(map(size_of, sights))


# --- more of sampling and rewards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EYES)
def test_the_divergence_as_a_reward_is_none_at_first(kind, tmp_path):
    trainer = trained(tmp_path, kind, kl_in_reward=True)
    assert max(logged(trainer, "sampling/logp_gap/max")) < 1e-5
    first, second = logged(trainer, "kl")
    assert abs(first) < 1e-6 < abs(second)


def test_groups_without_spread_are_sampled_again_with_their_pictures(tmp_path):
    """Another prompt takes the place of one whose rewards are all alike; it is read with its own picture."""
    given = []

    def rarely(completions, completion_ids, prompts, **_):
        given.extend(sum(p["type"] == "image" for p in m["content"]) if isinstance(m["content"], list) else 0
                     for prompt in prompts for m in prompt)  # fmt: skip
        return [float(sum(ids) % 5 == 0) for ids in completion_ids]

    more = dict(
        dynamic_sampling=True, dynamic_sampling_rounds=3, per_device_train_batch_size=4, num_generations=4
    )
    rows = picture_rows(24, (1, 0, 2, 3))
    trainer = trained(tmp_path, reward=rarely, rows=rows, max_steps=4, **more)
    assert len(given) > 4 * 4, "nothing was sampled again"
    assert {0, 1, 2, 3} >= set(given) and len(set(given)) > 2
    assert max(logged(trainer, "sampling/logp_gap/max")) < 1e-5


def test_rounds_that_are_sampled_ahead_keep_their_pictures(tmp_path):
    """In memory and in a checkpoint: a run that goes on from one is the run that was not stopped."""
    settings = dict(async_lag=1, save_strategy="steps", save_steps=1, max_steps=4)
    whole = trained(tmp_path / "a", **settings)
    folder = tmp_path / "a" / "checkpoint-2"
    again = trained(tmp_path / "b", resume_from_checkpoint=str(folder), **settings)
    assert json.loads((folder / "covey" / "ahead0.json").read_text())["pictures"]
    for (name, one), other in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other), name
    gaps = logged(whole, "sampling/logp_gap/max")
    assert gaps[0] < 1e-5 < gaps[1], "weights that are one step old"


# --- what cannot show pictures is an error before the first step ---------------------------------------------------------------


def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return str(a + b)


class Room:
    """An environment."""

    def reset(self, **_):
        return None

    def look(self) -> str:
        """Looks around."""
        return "dark"


SHOWN_TEXT = "has pictures, and a run with tools or environments shows the policy text alone"


@pytest.mark.parametrize(
    ("more", "settings", "told"),
    [
        (dict(tools=[add]), {}, SHOWN_TEXT),
        (dict(environment_factory=Room), {}, SHOWN_TEXT),
        (dict(rollout_func=lambda prompts, trainer: {}), {}, "a rollout function shows the policy text alone"),
        *((dict(), dict(engine=name, engine_urls="http://127.0.0.1:9"), f"engine='{name}' samples from text alone")
          for name in ("covey", "vllm", "sglang")),
    ],
    ids=["tools", "environments", "rollout_func", "covey", "vllm", "sglang"],
)  # fmt: skip
def test_what_shows_text_alone_refuses_pictures_when_it_is_built(tmp_path, more, settings, told):
    model, processor = tiny_eyes()
    processor.tokenizer.chat_template = HERMES.replace("<|im_end|>", "<eos>")  # it shows tools
    args = GRPOConfig(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=4, num_generations=4, **settings
    )
    with pytest.raises(DatasetError, match="Row 0: .*" + told):
        GRPOTrainer(model, by_letters, args, picture_rows(2), processing_class=processor, **more)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_sharded_weights_and_pictures_are_refused_by_name(tmp_path, kind):
    trainer = trained(tmp_path, max_steps=1)

    class Sharded:
        class distributed_type:
            value = kind

        def __getattr__(self, name):
            return getattr(trainer.accelerator, name)

    eyes = trainer.prompts.reader.eyes
    with pytest.raises(ConfigError, match="pictures is not trained with sharded weights"):
        make_updater(trainer.args, trainer.policy, None, Sharded(), trainer.run_log, lambda: 1, eyes)
