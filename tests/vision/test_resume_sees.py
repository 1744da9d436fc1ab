"""A run whose policy sees is killed, and ends as one that is not; what would show it other pixels is an error."""

import json
import shutil
import signal

import pytest
import torch
import transformers
from transformers.models.qwen2_vl import Qwen2VLImageProcessorPil

from covey.errors import CheckpointError
from covey.trainer.checkpoint.state import dataset_digest
from tests.trainer.checkpoint.lives import Server
from tests.trainer.harness import make
from tests.vision.tiny_eyes import asked, drawn, picture_rows, tiny_eyes, tiny_eyes_policy


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_eyes_policy(tmp_path_factory.mktemp("policy"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def whole(server, policy, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert server.live("pictures", policy, out, None) == 0, log(out)
    return json.loads((out / "end.json").read_text())


def log(out):
    return (out / "life.log").read_text()[-3000:]


def killed(server, policy, out, count):
    """A run that was killed behind an optimizer step, in the middle of a round."""
    assert server.live("pictures", policy, out, {"point": "optimizer", "count": count}) == signal.SIGKILL, (
        log(out)
    )


@pytest.mark.parametrize("count", [2, 3])
def test_a_run_that_is_killed_between_two_updates_of_a_round_ends_the_same(
    server, policy, whole, tmp_path, count
):
    killed(server, policy, tmp_path, count)
    assert server.live("pictures", policy, tmp_path, None) == 0, log(tmp_path)
    found = json.loads((tmp_path / "end.json").read_text())["end"]
    for part, expected in whole["end"].items():
        assert found[part] == expected, part
    assert "another one than the checkpoint" not in log(tmp_path)


def test_a_picture_that_was_overwritten_meanwhile_is_an_error(server, policy, tmp_path):
    own = tmp_path / "policy"
    shutil.copytree(policy, own)
    killed(server, str(own), tmp_path, 2)
    for number in range(4):
        drawn("gold", (48, 48), 40 + number).save(own / "pictures" / f"{number}.png")
    assert server.live("pictures", str(own), tmp_path, None) != 0
    told = log(tmp_path)
    assert (
        "CheckpointError" in told
        and f"{own / 'pictures'}/" in told
        and "the picture has changed since" in told
    )


def scored(completions, **_):
    return [float(len(c[0]["content"])) for c in completions]


def seen_by(processing, out, **settings):
    small = dict(
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        save_strategy="steps",
        save_steps=1,
    )
    model, _ = tiny_eyes("qwen2_5_vl")
    return make(model, out, scored, picture_rows(2), processing_class=processing, **{**small, **settings})


@pytest.mark.parametrize("iterations", [1, 2], ids=["between two rounds", "inside a round"])
def test_other_pixels_of_a_picture_are_an_error_that_names_both(tmp_path, iterations):
    """The back-ends of transformers differ by up to 0.015 per value, and settings by more."""
    _, processor = tiny_eyes("qwen2_5_vl")
    first = seen_by(processor, tmp_path / "a", num_iterations=iterations, max_steps=1)
    first.train()
    folder = str(tmp_path / "a" / "checkpoint-1")
    limits = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16}
    _, other = tiny_eyes("qwen2_5_vl")
    other.image_processor = Qwen2VLImageProcessorPil(**limits)
    names = (
        r"Qwen2VLImageProcessor on torchvision.*; now it is Qwen2VLImageProcessorPil on pil.*processing_class"
    )
    with pytest.raises(CheckpointError, match=names):
        seen_by(other, tmp_path / "b", num_iterations=iterations, max_steps=2).train(
            resume_from_checkpoint=folder
        )
    with pytest.raises(
        CheckpointError, match=r"settings [0-9a-f]{8}; now it is Qwen2VLImageProcessor on torchvision"
    ):
        again = seen_by(
            processor, tmp_path / "c", num_iterations=iterations, max_steps=2, max_pixels=28 * 28 * 8
        )
        again.train(resume_from_checkpoint=folder)
    from_folder = seen_by(
        transformers.AutoProcessor.from_pretrained(folder),
        tmp_path / "d",
        num_iterations=iterations,
        max_steps=2,
    )
    from_folder.train(resume_from_checkpoint=folder)
    assert from_folder.state.global_step == 2


def test_rows_are_known_again_whatever_objects_their_pictures_are():
    def rows():
        block = [{"type": "image", "image": drawn("red")}, {"type": "text", "text": "Which?"}]
        return [{"prompt": [{"role": "user", "content": block}]}, {"prompt": asked(), "image": drawn("blue")}]

    assert dataset_digest(rows()) == dataset_digest(rows())
    assert dataset_digest(rows()) != dataset_digest(rows()[::-1])


def test_the_best_weights_come_back_under_their_names(tmp_path):
    """transformers writes a policy that sees under other names than it has."""
    _, processor = tiny_eyes("qwen2_5_vl")
    given = dict(
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
        learning_rate=1e-2,
    )
    trainer = seen_by(processor, tmp_path, max_steps=3, eval_dataset=picture_rows(2), **given)
    values, weights = iter([3.0, 1.0, 1.0]), []

    def evaluated(dataset, prefix):
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
        named = {"eval_reward": next(values)}
        trainer.log(named)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, named
        )
        return named

    trainer._evaluate_one = evaluated
    trainer.train()
    assert trainer.state.best_global_step == 1
    assert not torch.equal(weights[2]["lm_head.weight"], weights[0]["lm_head.weight"])
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, weights[0][name]), name
