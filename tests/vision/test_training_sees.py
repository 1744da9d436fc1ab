"""Policies that see, trained from end to end by the trainer: each family, what it keeps, and that nobody is trained blind."""

import copy

import pytest
import torch
import transformers
from peft import LoraConfig
from transformers import AutoModelForImageTextToText, AutoProcessor

from covey import GRPOConfig, GRPOTrainer
from covey.config import hardware
from covey.errors import ConfigError, DatasetError, LoadingError
from covey.models.adapters import eye_modules, with_adapter
from covey.trainer.parts import why_blind
from covey.vision.eyes import ProcessorEyes, blindness
from covey.vision.pictures import read_picture
from tests.tiny import tiny_policy, tiny_tokenizer
from tests.trainer.harness import make
from tests.vision.tiny_eyes import (
    EYES,
    FAST,
    MAKERS,
    PACKED,
    asked,
    by_letters,
    drawn,
    picture_rows,
    tiny_eyes,
    tiny_eyes_policy,
)

SMALL = dict(per_device_train_batch_size=4, num_generations=4, max_completion_length=6, learning_rate=1e-3)
pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")


def trained(folder, tmp_path, rows=None, reward=by_letters, max_steps=2, **settings):
    rows = picture_rows(4) if rows is None else rows
    trainer = make(folder, tmp_path, reward, rows, max_steps=max_steps, **SMALL | settings)
    trainer.train()
    return trainer


def numbers(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.mark.parametrize("kind", EYES)
def test_every_family_trains_with_its_tower(kind, tmp_path):
    """Sampler and update say the same, the reference is the policy at step 1, and every weight moves that a token reads."""
    folder = tiny_eyes_policy(tmp_path / "policy", kind)
    before = dict(AutoModelForImageTextToText.from_pretrained(folder).named_parameters())
    trainer = trained(folder, tmp_path, picture_rows(4, (1, 2)), beta=0.1, optim="adamw_torch")
    assert max(numbers(trainer, "sampling/logp_gap/max")) < 1e-5
    assert numbers(trainer, "kl")[0] < 1e-9
    assert trainer.updater.forward.is_fast == (kind in PACKED)
    assert (trainer.engine.reason is None) == (kind in FAST)
    assert kind in FAST or trainer.engine.decoding[1].way.caches
    after = dict(trainer.policy.named_parameters())
    stayed = {n for n in before if torch.equal(before[n], after[n])}
    last = {"llava": (".layers.2.", "post_layernorm"), "ernie4_5_vl_moe": ("e_score_correction_bias",)}
    unread = last.get(kind.removesuffix("_next"), ())  # LLaVA takes the last layer but one
    assert all(any(part in n for part in unread) for n in stayed), stayed
    assert_kept(trainer, tmp_path / "kept")


def assert_kept(trainer, folder):
    """What is saved loads again: the weights, and a processor that reads a prompt as the trainer's does."""
    trainer.save_model(str(folder))
    model, after = (
        AutoModelForImageTextToText.from_pretrained(folder),
        dict(trainer.policy.named_parameters()),
    )
    assert all(torch.equal(value, after[name]) for name, value in model.named_parameters())
    eyes, pair = ProcessorEyes(AutoProcessor.from_pretrained(folder), model), read_picture(drawn())
    ids, theirs = (e.read(f"a{e.image_token}b", [pair]) for e in (eyes, trainer.prompts.reader.eyes))
    assert ids == theirs
    seen, shown = (e.look(ids, [pair[0]]).inputs for e in (eyes, trainer.prompts.reader.eyes))
    assert all(torch.equal(value, shown[name]) for name, value in seen.items())


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "idefics3", "gemma3"])
def test_what_is_saved_can_see(kind, tmp_path):
    """Processor and model load from checkpoint and folder, and answer as the trainer does."""
    trainer = trained(
        tiny_eyes_policy(tmp_path / "policy", kind), tmp_path, save_strategy="steps", save_steps=2
    )
    trainer.save_model(str(tmp_path / "kept"))
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    found = []
    for folder in (tmp_path / "kept", next(tmp_path.glob("**/checkpoint-2"))):
        processor, model = (
            AutoProcessor.from_pretrained(folder),
            AutoModelForImageTextToText.from_pretrained(folder),
        )
        text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        read = processor(images=[drawn()], text=[text], return_tensors="pt")
        with torch.no_grad():
            found.append(model(**read).logits)
            theirs = trainer.policy.eval()(**read).logits
        assert (found[-1] - theirs).abs().max() < 1e-5
    assert torch.equal(*found)


def test_settings_of_pixels_are_kept_with_the_processor(tmp_path):
    folder = tiny_eyes_policy(tmp_path / "policy")
    trainer = trained(folder, tmp_path, picture_rows(2, size=(112, 112)), max_pixels=28 * 28 * 4, max_steps=1)
    trainer.save_model(str(tmp_path / "kept"))
    limits = [AutoProcessor.from_pretrained(f).image_processor.size for f in (folder, tmp_path / "kept")]
    assert [dict(size)["longest_edge"] for size in limits] == [28 * 28 * 16, 28 * 28 * 4]
    [row] = picture_rows(1, size=(112, 112))
    ids = trainer.prompts.reader.read(row, 0, (0, 0)).ids
    assert ids.count(trainer.prompts.reader.eyes.image_id) == 4


# --- never blind ----------------------------------------------------------------------------------------------------------


def with_blocks():
    return [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": drawn()}, {"type": "text", "text": "?"}],
                }
            ]
        }
    ]


@pytest.mark.parametrize("rows", [picture_rows(2), [{"prompt": asked(), "image": drawn()}], with_blocks()])
def test_a_policy_that_reads_text_is_never_shown_pictures_in_silence(rows, tmp_path):
    folder = tiny_policy(tmp_path / "policy")
    with pytest.raises(
        DatasetError,
        match=r"Row 0: its column '(images?|prompt)' has pictures, and the policy reads text alone.*use_images=False",
    ):
        make(folder, tmp_path, by_letters, rows, **SMALL)
    seen = []

    def sees(completions, images=None, image=None, **_):
        seen.append(images or image)
        return [1.0] * len(completions)

    trained(folder, tmp_path, rows, sees, use_images=False, max_steps=1)
    assert seen


def test_rows_whose_columns_hold_none_are_text(tmp_path):
    rows = [{"prompt": asked(), "images": []}, {"prompt": asked("b"), "images": None}]
    trained(tiny_policy(tmp_path / "policy"), tmp_path, rows, max_steps=1)


def test_a_policy_that_sees_with_a_tokenizer_alone_is_an_error(tmp_path):
    model, processor = tiny_eyes()
    with pytest.raises(
        DatasetError,
        match=r"Row 0: its column '(images?|prompt)' has pictures, and a tokenizer stands where .* \(processing_class,",
    ):
        make(model, tmp_path, by_letters, picture_rows(2), processing_class=processor.tokenizer, **SMALL)


def test_what_is_not_installed_is_named_where_a_policy_could_see(monkeypatch):
    model, _ = tiny_eyes()
    monkeypatch.setattr(hardware, "has_package", lambda name: name != "PIL")
    assert blindness(None, model).startswith("pillow must be installed")


def test_ways_that_cannot_show_pictures_refuse_them(tmp_path):
    model, processor = tiny_eyes()
    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **SMALL)
    with pytest.raises(
        DatasetError,
        match=r"Row 0: its column '(images?|prompt)' has pictures, and a rollout function shows the policy text alone",
    ):
        GRPOTrainer(
            model, by_letters, args, picture_rows(2), processing_class=processor, rollout_func=lambda prompts, trainer: {}
        )  # fmt: skip
    eyes = ProcessorEyes(processor, model)
    assert why_blind(args, eyes, model) == ""
    args.engine = "sglang"
    assert why_blind(args, eyes, model) == "engine='sglang' samples from text alone"


@pytest.mark.parametrize(
    "name", ["max_pixels", "image_root", "lora_vision", "bad_images", "allow_image_urls"]
)
def test_settings_of_pictures_do_nothing_for_a_policy_that_reads_text(name, tmp_path):
    value = {
        "max_pixels": 9999,
        "image_root": "x",
        "lora_vision": True,
        "bad_images": "drop",
        "allow_image_urls": True,
    }[name]
    with pytest.raises(ConfigError, match=name):
        make(
            tiny_policy(tmp_path / "policy"),
            tmp_path,
            by_letters,
            [{"prompt": asked()}],
            **SMALL,
            **{name: value},
        )


@pytest.mark.parametrize(
    "config",
    [transformers.AriaConfig(), transformers.Idefics2Config(), transformers.Blip2Config()],
    ids=lambda config: config.model_type,
)
def test_a_family_that_does_not_train_is_refused_by_name(config, tmp_path):
    config.save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    with pytest.raises(
        LoadingError, match=f"of the kind '{config.model_type}', .*Of these Covey trains "
    ) as error:
        make(str(tmp_path / "policy"), tmp_path, by_letters, picture_rows(2), **SMALL)
    assert all(kind in str(error.value) for kind in EYES)


def test_pictures_for_another_kind_of_model_are_refused_by_its_name(tmp_path):
    """Given as a module it may be trained on text, and nobody takes it for one that is shown pictures."""
    config, processor = MAKERS["llava"]()
    parts = dict(text_config=config.text_config, vision_config=config.vision_config, image_token_index=0)
    model = transformers.VipLlavaForConditionalGeneration(transformers.VipLlavaConfig(vision_feature_layers=[-2], **parts))  # fmt: skip
    with pytest.raises(DatasetError, match="a vipllava is trained on text alone") as error:
        make(model, tmp_path, by_letters, picture_rows(2), processing_class=processor, **SMALL)
    assert all(kind in str(error.value) for kind in EYES)


@pytest.mark.parametrize("kind", ["llama4", "mllama"])
def test_pictures_for_the_text_part_of_another_kind_are_refused(kind, tmp_path):
    few = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
    )
    few |= dict(vocab_size=128, pad_token_id=0)
    eyes = dict(hidden_size=32, image_size=28, patch_size=14, num_hidden_layers=1)
    if kind == "llama4":
        text = few | dict(intermediate_size_mlp=32, num_local_experts=2, head_dim=8)
        eyes |= dict(intermediate_size=128, num_attention_heads=4, vision_output_dim=32, projector_input_dim=32, projector_output_dim=32)  # fmt: skip
        config: object = transformers.Llama4Config(text_config=text, vision_config=eyes)
        transformers.Llama4ForConditionalGeneration(config).save_pretrained(tmp_path / "policy")
    else:
        text = few | dict(
            cross_attention_layers=[1], rope_parameters={"rope_type": "default", "rope_theta": 1e4}
        )
        eyes |= dict(intermediate_size=64, num_global_layers=1, attention_heads=4, vision_output_dim=64, intermediate_layers_indices=[0], supported_aspect_ratios=[[1, 1]])  # fmt: skip
        config = transformers.MllamaConfig(text_config=text, vision_config=eyes)
        transformers.MllamaForConditionalGeneration(config).save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    with pytest.raises(DatasetError, match="the policy reads text alone: it would answer blind") as error:
        make(str(tmp_path / "policy"), tmp_path, by_letters, picture_rows(2), **SMALL)
    assert all(name in str(error.value) for name in EYES)


@pytest.mark.parametrize(
    "given",
    [
        dict(min_pixels=0),
        dict(max_pixels=-1),
        dict(min_pixels=9, max_pixels=4),
        dict(max_image_megapixels=0.0),
    ],
)
def test_settings_out_of_range_are_named(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        GRPOConfig(output_dir="unused", use_cpu=True, **given)


# --- text alone, on a policy that sees ------------------------------------------------------------------------------------


def test_text_alone_gives_the_ids_of_the_language_model(tmp_path):
    """With the processor and with the tokenizer alone, letter by letter."""
    model, processor = tiny_eyes()
    rows = [{"prompt": asked("What is two and two?")}]
    sees = make(copy.deepcopy(model), tmp_path / "a", by_letters, rows, processing_class=processor, **SMALL)
    reads = make(model, tmp_path / "b", by_letters, rows, processing_class=processor.tokenizer, **SMALL)
    first, second = (t.prompts.reader.read(rows[0], 0, (0, 0)) for t in (sees, reads))
    assert first == second and not first.pictures


def test_rows_with_none_one_and_several_pictures_train_together(tmp_path):
    rows = [{"prompt": asked("Hi?"), "images": None, "answer": "x"}, *picture_rows(3, (1, 0, 3))]
    trainer = trained(
        tiny_eyes_policy(tmp_path / "policy"), tmp_path, rows, per_device_train_batch_size=16, max_steps=2
    )
    assert max(numbers(trainer, "sampling/logp_gap/max")) < 1e-5


# --- adapters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EYES)
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "k_proj", "fc1"]])
def test_names_of_modules_mean_the_decoder(kind, targets, capsys):
    model, _ = tiny_eyes(kind)
    eyes = eye_modules(model)
    policy = with_adapter(model, LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"), 0)
    adapted = [n for n, _ in policy.named_parameters() if "lora_A" in n]
    assert adapted and not any(f".{eye}." in n for n in adapted for eye in eyes)
    assert "decoder alone" in capsys.readouterr().out
    assert all(f"{n}." in " ".join(k for k, _ in tiny_eyes(kind)[0].named_parameters()) for n in eyes)


def test_an_adapter_reaches_the_eyes_where_it_is_asked_to(capsys):
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = with_adapter(tiny_eyes("llava")[0], config, 0, reaches_eyes=True)
    adapted = [n for n, _ in policy.named_parameters() if "lora_A" in n]
    assert any("vision_tower" in n for n in adapted) and any("multi_modal_projector" in n for n in adapted)
    named = LoraConfig(r=2, target_modules=["vision_tower.encoder.layers.0.self_attn.q_proj"])
    policy = with_adapter(tiny_eyes("llava")[0], named, 0)
    assert any("vision_tower" in n for n, _ in policy.named_parameters() if "lora_A" in n)
    assert "decoder alone" not in capsys.readouterr().out


def test_an_adapter_on_the_decoder_trains(tmp_path):
    adapter = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model, processor = tiny_eyes()
    trainer = make(
        model,
        tmp_path,
        by_letters,
        picture_rows(4),
        processing_class=processor,
        peft_config=adapter,
        max_steps=2,
        **SMALL,
    )
    trainer.train()
    assert max(numbers(trainer, "sampling/logp_gap/max")) < 1e-5
