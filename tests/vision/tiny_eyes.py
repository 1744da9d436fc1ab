"""Tiny random vision-language policies of every family that trains, with their real processors and drawn pictures.

The first ids are those of `tests.tiny`: one per character, so that a test can read what was sampled. Weights are four times a fresh
model's: in a fresh one wrong positions change a log-probability by 2e-4 only, and a grey picture by 0.02.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny import BOS, EOS, PAD, llama_sizes, tiny_tokenizer

pytest.importorskip("torchvision", reason="pictures need the extra `vision`")

import transformers
from PIL import Image, ImageDraw

SCALE = 4.0
"""What weights are multiplied with, so that faults show."""
SIDE = 28
"""Pixels of a side that towers with squares of one size take."""

TEMPLATE = (
    "{%% for message in messages %%}"
    "{{ '<|user|>' if message['role'] == 'user' else '<|assistant|>' }}"
    "{%% if message['content'] is string %%}{{ message['content'] }}{%% else %%}"
    "{%% for part in message['content'] %%}"
    "{%% if part['type'] == 'image' %%}{{ '%s' }}{%% else %%}{{ part['text'] }}{%% endif %%}"
    "{%% endfor %%}{%% endif %%}"
    "{%% if message['role'] != 'user' %%}<eos>{%% endif %%}"
    "{%% endfor %%}{%% if add_generation_prompt %%}<|assistant|>{%% endif %%}"
)
"""A chat template that takes contents as text and in parts; the gap is what a picture is written as."""

QWEN_TOKENS = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
CLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": SIDE, "patch_size": 7}  # fmt: skip
SIGLIP = {**CLIP, "vision_use_head": False}


def text_sizes(tokenizer: Any, **more: Any) -> dict[str, Any]:
    """The sizes of a decoder, with a row for each token."""
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return {**llama_sizes(), "vocab_size": len(tokenizer), **ends, **more}


def tokenizer_with(mark: str, **special: str) -> Any:
    """The tokenizer of `tests.tiny` with more special tokens behind its own, and a template that writes a picture as `mark`."""
    tokenizer = tiny_tokenizer(template=TEMPLATE % mark)
    tokenizer.add_special_tokens({"extra_special_tokens": list(dict.fromkeys(special.values()))}, replace_extra_special_tokens=False)  # fmt: skip
    tokenizer._set_model_specific_special_tokens(special)
    return tokenizer


def ids_of(tokenizer: Any, **names: str) -> dict[str, int]:
    """The ids of special tokens, by the names of the config's fields."""
    return {field: int(tokenizer.convert_tokens_to_ids(token)) for field, token in names.items()}


# --- families: the processor, then the config that fits it ---------------------------------------------------------------


def _qwen_ids(tokenizer: Any) -> dict[str, int]:
    names = {f"{name}_id": token for name, token in QWEN_TOKENS.items()}
    return ids_of(tokenizer, **names)


def _qwen2(kind: str) -> tuple[Any, Any]:
    tokenizer = tokenizer_with(QWEN_MARK, **QWEN_TOKENS)
    pixels = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16}
    image, video = transformers.Qwen2VLImageProcessor(**pixels), transformers.Qwen2VLVideoProcessor(**pixels)
    processors = {"qwen2_vl": transformers.Qwen2VLProcessor, "qwen2_5_vl": transformers.Qwen2_5_VLProcessor}
    processor = processors[kind](image, tokenizer, video, chat_template=tokenizer.chat_template)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text = text_sizes(tokenizer, rope_parameters=rope)
    text.pop("head_dim")
    if kind == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2}
        config: Any = transformers.Qwen2VLConfig(
            text_config=text, vision_config=vision, **_qwen_ids(tokenizer)
        )
    else:
        vision = {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "out_hidden_size": 32,
        }
        vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **_qwen_ids(tokenizer))
    return config, processor


def _qwen3() -> tuple[Any, Any]:
    tokenizer = tokenizer_with(QWEN_MARK, **QWEN_TOKENS)
    patches = {"patch_size": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    size = {"shortest_edge": 16 * 16, "longest_edge": 16 * 16 * 16}
    image = transformers.Qwen2VLImageProcessor(size=size, **patches)
    video = transformers.Qwen3VLVideoProcessor(size=size, **patches)
    processor = transformers.Qwen3VLProcessor(image, tokenizer, video, chat_template=tokenizer.chat_template)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}  # fmt: skip
    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    vision |= {"patch_size": 8, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    text = text_sizes(
        tokenizer, rope_parameters=rope, num_hidden_layers=3
    )  # what is added behind layer 1 is read by 2
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **_qwen_ids(tokenizer))
    return config, processor


def _idefics3() -> tuple[Any, Any]:
    tags = [f"<row_{i}_col_{j}>" for i in range(1, 4) for j in range(1, 4)]
    named = {"image_token": "<image>", "fake": "<fake_token_around_image>", "global": "<global-img>", "end": "<end_of_utterance>"}  # fmt: skip
    tokenizer = tokenizer_with("<image>", **named, **{tag: tag for tag in tags})
    image = transformers.Idefics3ImageProcessor(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})  # fmt: skip
    processor = transformers.Idefics3Processor(image, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)  # fmt: skip
    text = {"model_type": "llama", **text_sizes(tokenizer)}
    config = transformers.Idefics3Config(
        text_config=text, vision_config=CLIP, scale_factor=2, pad_token_id=PAD, image_token_id=processor.image_token_id
    )  # fmt: skip
    return config, processor


def _llava(kind: str, inner: str) -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<image>", image_token="<image>")
    squares = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    fits = {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    fits["chat_template"] = tokenizer.chat_template
    text, vision = {"model_type": inner, **text_sizes(tokenizer)}, {"model_type": "clip_vision_model", **CLIP}
    parts = {"text_config": text, "vision_config": vision, "pad_token_id": PAD, "image_seq_length": 16}
    parts |= ids_of(tokenizer, image_token_index="<image>")
    if kind == "llava":
        image = transformers.CLIPImageProcessor(**squares)
        return transformers.LlavaConfig(**parts), transformers.LlavaProcessor(image, tokenizer, **fits)
    points = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    tiles = transformers.LlavaNextImageProcessor(image_grid_pinpoints=points, **squares)
    config = transformers.LlavaNextConfig(image_grid_pinpoints=points, **parts)
    return config, transformers.LlavaNextProcessor(tiles, tokenizer, **fits)


def _internvl() -> tuple[Any, Any]:
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}  # fmt: skip
    tokenizer = tokenizer_with("<IMG_CONTEXT>", **named)
    image = transformers.GotOcr2ImageProcessor(size={"height": SIDE, "width": SIDE}, max_patches=4)
    video = transformers.InternVLVideoProcessor(size={"height": SIDE, "width": SIDE})
    processor = transformers.InternVLProcessor(image, tokenizer, video, image_seq_length=4, chat_template=tokenizer.chat_template)  # fmt: skip
    vision = {**CLIP, "image_size": [SIDE, SIDE], "patch_size": [7, 7]}
    config = transformers.InternVLConfig(
        text_config={"model_type": "qwen2", **text_sizes(tokenizer)},
        vision_config=vision,
        image_seq_length=4,
        tie_word_embeddings=False,
        **ids_of(tokenizer, image_token_id="<IMG_CONTEXT>"),
    )
    return config, processor


def _gemma3() -> tuple[Any, Any]:
    named = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    }
    tokenizer = tokenizer_with("<start_of_image>", **named)
    image = transformers.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
    processor = transformers.Gemma3Processor(image, tokenizer, image_seq_length=4, chat_template=tokenizer.chat_template)  # fmt: skip
    layers = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}  # fmt: skip
    ids = ids_of(tokenizer, **{f"{name}_index": token for name, token in named.items()})
    config = transformers.Gemma3Config(
        text_config=text_sizes(tokenizer, **layers), vision_config=SIGLIP, mm_tokens_per_image=4, **ids
    )
    return config, processor


def _paligemma() -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<image>", image_token="<image>")
    image = transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    image.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(image, tokenizer, chat_template=tokenizer.chat_template)
    vision = {"model_type": "siglip_vision_model", "projection_dim": 32, **SIGLIP}
    text = {"model_type": "gemma", **text_sizes(tokenizer)}
    config = transformers.PaliGemmaConfig(
        text_config=text, vision_config=vision, projection_dim=32, hidden_size=32, pad_token_id=PAD,
        **ids_of(tokenizer, image_token_index="<image>"),
    )  # fmt: skip
    return config, processor


def _smolvlm() -> tuple[Any, Any]:
    from transformers.models.smolvlm import processing_smolvlm

    if (
        processing_smolvlm.num2words is None
    ):  # it spells the number of a film's pictures, and is not needed for pictures
        processing_smolvlm.num2words = str
    tags = [f"<row_{i}_col_{j}>" for i in range(1, 4) for j in range(1, 4)]
    named = {"image_token": "<image>", "video_token": "<video>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>"}  # fmt: skip
    tokenizer = tokenizer_with("<image>", **named, **{tag: tag for tag in tags})
    image = transformers.SmolVLMImageProcessor(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})  # fmt: skip
    video = transformers.SmolVLMVideoProcessor(size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE}, video_sampling={"max_frames": 4, "fps": 1})  # fmt: skip
    processor = transformers.SmolVLMProcessor(image, tokenizer, video, image_seq_len=4, chat_template=tokenizer.chat_template)  # fmt: skip
    text = {"model_type": "llama", **text_sizes(tokenizer)}
    config = transformers.SmolVLMConfig(
        text_config=text, vision_config=CLIP, scale_factor=2, pad_token_id=PAD, image_token_id=processor.image_token_id
    )  # fmt: skip
    return config, processor


def _mistral3() -> tuple[Any, Any]:
    named = {"image_token": "[IMG]", "break": "[IMG_BREAK]", "end": "[IMG_END]"}
    tokenizer = tokenizer_with("[IMG]", **named)
    image = transformers.PixtralImageProcessor(size={"longest_edge": 2 * SIDE}, patch_size=7)
    processor = transformers.PixtralProcessor(
        image, tokenizer, patch_size=7, spatial_merge_size=2, chat_template=tokenizer.chat_template
    )
    vision = {**CLIP, "model_type": "pixtral", "image_size": 2 * SIDE}
    config = transformers.Mistral3Config(
        text_config={"model_type": "mistral", **text_sizes(tokenizer)},
        vision_config=vision,
        spatial_merge_size=2,
        tie_word_embeddings=False,
        **ids_of(tokenizer, image_token_index="[IMG]"),
    )
    return config, processor


GLM_TOKENS = {
    "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>",
    "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
    "image_token": "<|image|>",
    "video_token": "<|video|>",
}


def _glm4v() -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<|begin_of_image|><|image|><|end_of_image|>", **GLM_TOKENS)
    size = {"shortest_edge": 2 * 28 * 28 * 4, "longest_edge": 2 * 28 * 28 * 16}  # a picture counts twice
    image = transformers.Glm4vImageProcessor(size=size)
    video = transformers.Glm4vVideoProcessor(size=size)
    processor = transformers.Glm4vProcessor(image, tokenizer, video, chat_template=tokenizer.chat_template)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    vision |= {"image_size": 56, "patch_size": 14}
    text = text_sizes(tokenizer, rope_parameters=rope, num_attention_heads=2, num_key_value_heads=1)
    text.pop("head_dim")
    ids = ids_of(tokenizer, **{f"{name}_id": token for name, token in GLM_TOKENS.items()})
    return transformers.Glm4vConfig(text_config=text, vision_config=vision, **ids), processor


def _gemma4() -> tuple[Any, Any]:
    named = {
        "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "video_token": "<|video|>",
        "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
    }  # fmt: skip
    tokenizer = tokenizer_with("<|image|>", **named)
    few = {"max_soft_tokens": 70, "pooling_kernel_size": 2, "patch_size": 4}
    image, video = transformers.Gemma4ImageProcessor(**few), transformers.Gemma4VideoProcessor(**few)
    processor = transformers.Gemma4Processor(
        transformers.Gemma4AudioFeatureExtractor(),
        image,
        tokenizer,
        video,
        chat_template=tokenizer.chat_template,
    )
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    text = text_sizes(
        tokenizer, num_hidden_layers=4, layer_types=kinds, sliding_window=16, global_head_dim=16
    )
    text |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": len(tokenizer), "num_kv_shared_layers": 1}  # fmt: skip
    text |= {"use_bidirectional_attention": "vision"}
    vision = {**llama_sizes(), "num_key_value_heads": 4, "pooling_kernel_size": 2, "patch_size": 4, "position_embedding_size": 512}  # fmt: skip
    names = {"boa_token_id": "<|audio>", "eoa_token_index": "<audio|>", "audio_token_id": "<|audio|>"}
    names |= {f"{name}_token_id": named[f"{name}_token"] for name in ("boi", "eoi", "image", "video")}
    config = transformers.Gemma4Config(
        text_config=text, vision_config=vision, audio_config=None, **ids_of(tokenizer, **names)
    )
    return config, processor


EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}


def _qwen3_5(kind: str) -> tuple[Any, Any]:
    _, processor = _qwen3()
    tokenizer = processor.tokenizer
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    vision |= {"patch_size": 8, "num_position_embeddings": 16}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}  # fmt: skip
    text = text_sizes(tokenizer, rope_parameters=rope, layer_types=["linear_attention", "full_attention"])
    if kind == "qwen3_5":
        config: Any = transformers.Qwen3_5Config(
            text_config=text | linear, vision_config=vision, **_qwen_ids(tokenizer)
        )
    else:
        text |= linear | EXPERTS | {"shared_expert_intermediate_size": 16}
        config = transformers.Qwen3_5MoeConfig(text_config=text, vision_config=vision, **_qwen_ids(tokenizer))
    return config, processor


def _qwen3_moe() -> tuple[Any, Any]:
    dense, processor = _qwen3()
    vision = {k: v for k, v in dense.vision_config.to_dict().items() if k != "model_type"}
    text = text_sizes(
        processor.tokenizer, num_hidden_layers=3, rope_parameters=dense.text_config.rope_parameters
    )
    text |= EXPERTS
    return transformers.Qwen3VLMoeConfig(
        text_config=text, vision_config=vision, **_qwen_ids(processor.tokenizer)
    ), processor


ERNIE_TOKENS = {
    "image_start_token": "<|IMAGE_START|>",
    "image_end_token": "<|IMAGE_END|>",
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
    "video_token": "<|VIDEO_PLACEHOLDER|>",
}


def _ernie() -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", **ERNIE_TOKENS)
    size = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16}
    image = transformers.Ernie4_5_VLMoeImageProcessor(size=size)
    video = transformers.Ernie4_5_VLMoeVideoProcessor(size=size, draw_on_frames=False)
    processor = transformers.Ernie4_5_VLMoeProcessor(image, tokenizer, video, chat_template=tokenizer.chat_template)  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4}
    text = text_sizes(tokenizer, rope_parameters=rope, moe_intermediate_size=[16, 16], moe_k=2, moe_num_experts=4)  # fmt: skip
    text |= {
        "moe_num_shared_experts": 1,
        "mlp_layer_types": ["sparse", "dense"],
    }  # behind the last layer nobody reads pictures
    text.pop("head_dim")
    ids = ids_of(tokenizer, **{f"{name}_id": token for name, token in ERNIE_TOKENS.items()})
    return transformers.Ernie4_5_VLMoeConfig(text_config=text, vision_config=vision, **ids), processor


MAKERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen2_vl": lambda: _qwen2("qwen2_vl"),
    "qwen2_5_vl": lambda: _qwen2("qwen2_5_vl"),
    "qwen3_vl": _qwen3,
    "idefics3": _idefics3,
    "llava": lambda: _llava("llava", "llama"),
    "llava_next": lambda: _llava("llava_next", "mistral"),
    "internvl": _internvl,
    "smolvlm": _smolvlm,
    "mistral3": _mistral3,
    "qwen3_vl_moe": _qwen3_moe,
    "glm4v": _glm4v,
    "gemma3": _gemma3,
    "paligemma": _paligemma,
    "gemma4": _gemma4,
    "qwen3_5": lambda: _qwen3_5("qwen3_5"),
    "qwen3_5_moe": lambda: _qwen3_5("qwen3_5_moe"),
    "ernie4_5_vl_moe": _ernie,
}
EYES = tuple(MAKERS)
"""All families; those of the fast sampler come first."""
PACKED = tuple(kind for kind in EYES if not kind.startswith("qwen3_5"))
"""Families whose tokens meet by attention alone; the others carry a state from token to token."""
FAST = EYES[:11]
"""Families whose decoder is one of the fast sampler's, and whose image tokens see what text tokens see."""


def tiny_eyes(
    kind: str = "qwen2_5_vl", seed: int = 0, scale: float = SCALE, window: int | None = None
) -> tuple[Any, Any]:
    """A random vision-language policy in eval mode, and its processor.

    Args:
        window: tokens that layers with a window see, in place of the tiny ones'.
    """
    config, processor = MAKERS[kind]()
    if window is not None and getattr(config.get_text_config(), "sliding_window", None):
        config.get_text_config().sliding_window = window
    torch.manual_seed(seed)
    model: nn.Module = transformers.AutoModelForImageTextToText.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
            if not parameter.any() and parameter.ndim > 1:  # Gemma 3's projector, which starts blind
                torch.nn.init.normal_(parameter, std=0.02 * scale)
    return model, processor


def tiny_eyes_policy(
    folder: str | Path, kind: str = "qwen2_5_vl", seed: int = 0, scale: float = SCALE
) -> str:
    """Save a random vision-language policy with its processor; returns the folder."""
    model, processor = tiny_eyes(kind, seed, scale)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


# --- pictures and rows ---------------------------------------------------------------------------------------------------

COLOURS = {"red": (220, 30, 30), "green": (30, 190, 60), "blue": (40, 60, 220), "gold": (230, 190, 20)}


def drawn(colour: str = "red", size: tuple[int, int] = (32, 32), seed: int = 0) -> Image.Image:
    """A disc of a colour on a ground of its own; width and height in pixels."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(int(v) for v in rng.integers(0, 120, 3)))
    width, height = size
    ImageDraw.Draw(image).ellipse(
        (width // 8, height // 8, width * 5 // 8, height * 5 // 8), fill=COLOURS[colour]
    )
    return image


def encoded(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    """A picture as a file holds it."""
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def six_ways(folder: Path) -> list[Any]:
    """One picture in the ways in which a row may give it: as a path below a folder, as bytes, as an Image column has it, as pixels."""
    image = drawn("blue", (48, 40), seed=3)
    data = encoded(image)
    (folder / "a.png").write_bytes(data)
    columns = [{"bytes": data, "path": None}, {"bytes": None, "path": "a.png"}]
    return [str(folder / "a.png"), data, *columns, image, np.asarray(image)]


def by_letters(completions: Sequence[Any], **_: Any) -> list[float]:
    """A reward: other values for other answers, so that there is something to learn."""
    return [float(sum(map(ord, c[0]["content"])) % 97) for c in completions]


def asked(question: str = "What colour?") -> list[dict[str, Any]]:
    """A chat of one question."""
    return [{"role": "user", "content": question}]


def picture_rows(
    count: int = 4, pictures: Sequence[int] = (1,), size: tuple[int, int] = (32, 32)
) -> list[dict[str, Any]]:
    """Rows with a question and pictures in the column `images`.

    Args:
        pictures: numbers of pictures, taken in turn.
        size: of the first picture; each further one is wider.
    """
    colours = list(COLOURS)
    return [
        {
            "prompt": asked(f"What colour {row}?"),
            "images": [
                drawn(colours[(row + i) % 4], (size[0] + 8 * i, size[1]), seed=10 * row + i)
                for i in range(pictures[row % len(pictures)])
            ],
            "answer": colours[row % 4],
        }
        for row in range(count)
    ]
