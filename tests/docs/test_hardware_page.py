"""docs/hardware.md is what the forecast says, and its shapes have the sizes that their names promise."""

import sys
from pathlib import Path

import pytest
from transformers import Qwen2Config

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import hardware_page

from covey.forecast.fitting import fit, needed
from covey.recipes import Recipe


def test_the_page_is_made_from_the_forecast():
    assert hardware_page.PAGE.read_text(encoding="utf-8") == hardware_page.page(), (
        "run python tools/hardware_page.py"
    )


@pytest.mark.parametrize(
    "name, billions",
    [
        ("SmolLM2-135M", 0.135),
        ("Qwen2.5-0.5B", 0.494),
        ("Qwen2.5-7B", 7.62),
        ("Llama-3.1-8B", 8.03),
        ("Qwen2.5-32B", 32.8),
    ],
)
def test_a_shape_has_as_many_weights_as_its_model_card_says(name, billions):
    found = hardware_page.sizes(hardware_page.SHAPES[name], "full").weights / 1e9
    assert found == pytest.approx(billions, rel=0.01)


LORA = {"use_peft": True, "lora_r": 16, "lora_target_modules": "all-linear"}
ASKED = {
    "full": ({"dtype": "float32"}, {}),
    "full, bf16 weights, 8-bit Adam": ({"dtype": "bfloat16"}, {"optim": "adamw_8bit"}),
    "LoRA, bf16 weights": ({"dtype": "bfloat16", **LORA}, {}),
    "QLoRA, 4 bits": (
        {"dtype": "bfloat16", "load_in_4bit": True, "use_bnb_nested_quant": True, **LORA},
        {},
    ),
}
"""Sections `model` and `train` of a recipe for each column of the page."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", hardware_page.METHODS)
def test_the_page_says_what_the_plan_says_of_the_same_run(method, tmp_path):
    """Law: a cell is the need, on the smallest card that fits, of a recipe with the settings that the page names."""
    shape = hardware_page.SHAPES["Qwen2.5-1.5B"]
    Qwen2Config(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=12, num_key_value_heads=2, vocab_size=shape.vocabulary, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    model, train = ASKED[method]
    sections = {
        "model": {"model_name_or_path": str(tmp_path), **model},
        "data": {"generator": "countdown", "arguments": {"count": 64}},
        "rewards": ["covey.tasks:countdown_reward"],
        "train": {
            "num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8,
            "max_completion_length": 512, "bf16": True, **train,
        },
    }  # fmt: skip
    recipe = Recipe.of(sections, "page")
    card = int(hardware_page.cell(shape, method).split()[2])
    found = fit(recipe, recipe.plan(64), 256, card * 2**30)
    assert found.fits and f"{found.needed / 2**30:.1f} → {card} GiB" == hardware_page.cell(shape, method)
    smaller = [c for c in hardware_page.CARDS if c < card][-1]
    assert needed(recipe, recipe.plan(64), 256, smaller * 2**30) > smaller * 2**30
