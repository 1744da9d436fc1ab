"""What TRL's own tests of policies that see demand, written anew: its arguments, its columns, and what its users rely on.

Models and pictures are local stand-ins; everything goes through `from covey import GRPOConfig, GRPOTrainer`.
"""

import pytest
import torch
from datasets import Dataset, Features, Image, List, Value
from peft import LoraConfig
from PIL.Image import Image as PilImage
from transformers import AutoProcessor

from covey import GRPOConfig, GRPOTrainer
from tests.vision.tiny_eyes import COLOURS, drawn, tiny_eyes_policy

pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")

TRLS = ("gemma3", "gemma4", "llava_next", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe")
"""Families of its tests."""
CHAT = [{"role": Value("string"), "content": Value("string")}]
LINES = ("Beautiful", "Explicit", "Simple", "Complex", "Flat", "Sparse", "Readable", "Special", "Practical")


def rows_with(column, pictures):
    """Seventeen questions, and pictures for each in one column."""
    feature = Image() if column == "image" else List(Image())
    table = {
        "prompt": [[{"role": "user", "content": f"{LINES[i % 9]}?"}] for i in range(len(pictures))],
        column: pictures,
    }
    return Dataset.from_dict(table, features=Features({"prompt": CHAT, column: feature}))


def picture(i):
    return drawn(list(COLOURS)[i % 4], (32 + 4 * (i % 3), 32), seed=i)


@pytest.fixture(scope="module")
def one_each():
    """A picture for each question."""
    return rows_with("image", [picture(i) for i in range(17)])


@pytest.fixture(scope="module")
def several():
    """Two pictures, one, or none for each question."""
    return rows_with("images", [[picture(i + j) for j in range((2, 1, 0)[i % 3])] for i in range(17)])


def by_length(completions, **_):
    """The reward of its tests: how long the answer is."""
    return [float(len(completion[0]["content"])) for completion in completions]


def trained(folder, tmp_path, dataset, reward=by_length, peft_config=None, **settings):
    """A trainer as its tests make one, after training, and the weights before."""
    args = {
        "learning_rate": 0.1,
        "per_device_train_batch_size": 3,
        "num_generations": 3,
        "max_completion_length": 8,
    }
    args |= {"max_steps": 3, "report_to": "none"}
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(tmp_path / "out"), **args | settings),
        train_dataset=dataset,
        peft_config=peft_config,
    )
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] is not None
    return trainer, before


def stayed(trainer, before):
    """Names of weights that are what they were."""
    return {name for name, value in trainer.model.named_parameters() if torch.equal(value, before[name])}


@pytest.mark.parametrize("kind", TRLS)
def test_train_vlm(kind, tmp_path, one_each):
    trainer, before = trained(tiny_eyes_policy(tmp_path / "policy", kind), tmp_path, one_each)
    left = stayed(trainer, before)
    # Of LLaVA's tower the features behind the last layer but one are taken.
    assert all(kind == "llava_next" and (".layers.2." in n or "post_layernorm" in n) for n in left), left
    assert all(value.isfinite().all() for value in trainer.model.parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {"pad_to_multiple_of": 7},
        {"beta": 0.1},
        {"steps_per_generation": 2},
        {"importance_sampling_level": "sequence", "steps_per_generation": 2, "num_iterations": 2},
        {"log_completions": True, "log_multimodal": False, "logging_steps": 1},
        {"log_completions": True, "log_multimodal": True, "logging_steps": 1},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_settings_of_its_tests(settings, tmp_path, one_each):
    trainer, before = trained(tiny_eyes_policy(tmp_path / "policy"), tmp_path, one_each, **settings)
    assert not stayed(trainer, before)
    kl = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    assert ("beta" not in settings) or kl


def test_padding_to_a_multiple_changes_no_weight(tmp_path, one_each):
    """Nothing is padded, so there is nothing that it could change."""
    folder = tiny_eyes_policy(tmp_path / "policy")
    ends = [dict(trained(folder, tmp_path / name, one_each, max_steps=1, **more)[0].model.named_parameters())
            for name, more in (("a", {}), ("b", {"pad_to_multiple_of": 7}))]  # fmt: skip
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "gemma3"])
def test_train_vlm_peft(kind, tmp_path, one_each):
    """All weights of the adapter move, and none of the model's own."""
    adapter = LoraConfig(target_modules=["q_proj", "v_proj"])
    folder = tiny_eyes_policy(tmp_path / "policy", kind)
    trainer, before = trained(folder, tmp_path, one_each, peft_config=adapter)
    adapted = {name for name in before if "lora_" in name}
    assert adapted and stayed(trainer, before) == before.keys() - adapted


@pytest.mark.parametrize("kind", TRLS)
def test_train_vlm_multi_image(kind, tmp_path, several):
    """Rows with two pictures, one and none stand in one batch."""
    folder = tiny_eyes_policy(tmp_path / "policy", kind)
    trainer, before = trained(folder, tmp_path, several, per_device_train_batch_size=9)
    left = stayed(trainer, before)
    assert all(kind == "llava_next" and (".layers.2." in n or "post_layernorm" in n) for n in left), left


def test_a_trained_folder_has_its_processor(tmp_path, one_each):
    trainer, _ = trained(tiny_eyes_policy(tmp_path / "policy"), tmp_path, one_each, max_steps=1)
    trainer.save_model()
    assert type(AutoProcessor.from_pretrained(tmp_path / "out")) is type(trainer.processing_class)


# --- what rewards get -----------------------------------------------------------------------------------------------------


def test_rewards_get_chats_with_pictures_and_the_column(tmp_path, one_each):
    """Pictures come before the first text of a user, as PIL images, and each completion has its row's."""
    calls = []

    def reward(prompts, completions, completion_ids, image, **_):
        calls.append((prompts, completions, completion_ids, image))
        return [float(len(ids)) for ids in completion_ids]

    trained(tiny_eyes_policy(tmp_path / "policy"), tmp_path, one_each, reward, max_steps=1)
    [(prompts, completions, ids, images)] = calls
    assert len(prompts) == len(completions) == len(ids) == len(images) == 3
    for prompt, completion, shown in zip(prompts, completions, images, strict=True):
        [message] = prompt
        first, second = message["content"]
        assert first["type"] == "image" and isinstance(first["image"], PilImage)
        assert second["type"] == "text" and second["text"].endswith("?")
        assert isinstance(shown, PilImage) and shown.tobytes() == first["image"].tobytes()
        [answer] = completion
        assert answer["role"] == "assistant" and isinstance(answer["content"], str)


def shown_to_rewards(tmp_path, messages, images):
    """The prompt that rewards get for one row."""
    seen = []

    def reward(prompts, completions, **_):
        seen.append(prompts[0])
        return [float(len(c[0]["content"])) for c in completions]

    rows = Dataset.from_list([{"prompt": messages, "images": images}]) if not any(map(has_blocks, messages)) else [{"prompt": messages, "images": images}]  # fmt: skip
    trained(tiny_eyes_policy(tmp_path / "policy"), tmp_path, rows, reward, max_steps=1)
    return seen[0]


def has_blocks(message):
    return not isinstance(message["content"], str)


def kinds(message):
    """The parts of a message: pictures by their width, texts by their words."""
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [part["image"].width if part["type"] == "image" else part["text"] for part in content]


SYSTEM, ASKED, SAID = ({"role": role, "content": f"{role}!"} for role in ("system", "user", "assistant"))


def test_pictures_come_before_the_first_text_of_a_user(tmp_path):
    shown = shown_to_rewards(
        tmp_path, [SYSTEM, ASKED, SAID, ASKED], [drawn(size=(32, 32)), drawn(size=(40, 32))]
    )
    assert [kinds(message) for message in shown] == [
        ["system!"],
        [32, 40, "user!"],
        ["assistant!"],
        ["user!"],
    ]


def test_blocks_say_where_pictures_stand(tmp_path):
    block, text = {"type": "image"}, {"type": "text", "text": "which?"}
    messages = [{"role": "user", "content": [text, block]}, SAID, {"role": "user", "content": [block, text]}]
    shown = shown_to_rewards(tmp_path, messages, [drawn(size=(32, 32)), drawn(size=(40, 32))])
    assert [kinds(message) for message in shown] == [["which?", 32], ["assistant!"], [40, "which?"]]


def test_a_block_that_holds_its_picture_keeps_it(tmp_path):
    own = {"type": "image", "image": drawn(size=(48, 32))}
    messages = [{"role": "user", "content": [own, {"type": "image"}, {"type": "text", "text": "which?"}]}]
    assert kinds(shown_to_rewards(tmp_path, messages, [drawn(size=(32, 32))])[0]) == [48, 32, "which?"]


# --- errors ---------------------------------------------------------------------------------------------------------------


def refused(tmp_path, kind, match, rows, **given):
    """Raise the error that building a trainer gives, before anything is sampled."""
    folder = tiny_eyes_policy(tmp_path / "policy")
    args = GRPOConfig(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=3, num_generations=3, report_to="none"
    )
    with pytest.raises(kind, match=match):
        GRPOTrainer(model=folder, reward_funcs=by_length, args=args, train_dataset=rows, **given)


def test_numbers_of_pictures_and_places_must_match(tmp_path):
    content = [{"type": "image"}, {"type": "text", "text": "Which?"}]
    rows = [{"prompt": [{"role": "user", "content": content}], "images": [drawn(), drawn()]}]
    refused(tmp_path, ValueError, r"Row 0.* 1 blocks for pictures, and 'images' has 2 pictures", rows)


def test_pictures_want_a_chat_or_a_text_with_places(tmp_path):
    refused(tmp_path, ValueError, r"Row 0.* 0 places for pictures", [{"prompt": "Which?", "image": drawn()}])


def test_an_unknown_role_is_named(tmp_path):
    rows = [{"prompt": [{"role": "painter", "content": "Which?"}], "image": drawn()}]
    refused(tmp_path, ValueError, "painter", rows)


def test_another_kind_of_processing_class_is_refused(tmp_path, one_each):
    refused(tmp_path, TypeError, "processing_class", one_each, processing_class="a name")


def test_no_pictures_in_any_row_are_no_pictures(tmp_path):
    """A column of empty lists is text, and trains as text does."""
    rows = rows_with("images", [[]] * 4)
    trained(tiny_eyes_policy(tmp_path / "policy"), tmp_path, rows, max_steps=1)
