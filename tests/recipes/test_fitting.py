"""Every GPU recipe fits the card that its header names, by the plan's own sum; and the verdict of `covey plan --gpu` is that sum."""

import re

import pytest
from transformers import Qwen2_5_VLConfig, Qwen2Config

from covey.cli import main
from covey.forecast.fitting import fit
from covey.recipes import Recipe
from covey.recipes.bundled import recipes

SIZES = {
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
    "3B": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
    },
}
"""Qwen2.5 by size, as its configs say; the text of Qwen2.5-VL is the same."""
TOWER = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 2048,
}
"""Of Qwen2.5-VL-3B."""

GPU = {
    name: int(found[1])
    for name, path in recipes().items()
    if (found := re.search(r"one GPU with (\d+) GB", path.read_text(encoding="utf-8")))
}


def without_weights(folder, name, *changes):
    """The recipe, with its model's config in a folder that has no weights."""
    given = str(Recipe.load(name).model_settings["model_name_or_path"])
    [size] = [size for size in SIZES if f"-{size}-" in given]
    text = {**SIZES[size], "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
    if "-VL-" in given:
        config = Qwen2_5_VLConfig(
            text_config=text, vision_config=TOWER, tie_word_embeddings=True, dtype="bfloat16"
        )
    else:
        config = Qwen2Config(**text, dtype="bfloat16")
    config.save_pretrained(folder / "config")
    return [f"model.model_name_or_path={folder / 'config'}", f"output_dir={folder / 'out'}", *changes]


def test_every_recipe_for_a_gpu_names_its_card():
    assert set(GPU) == {
        "charts_lora",
        "code_sandbox",
        "countdown",
        "math_lora_4bit",
        "mixture",
        "python_tool",
        "search_tool",
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GPU)
def test_a_recipe_fits_the_card_that_its_header_names(name, tmp_path):
    recipe = Recipe.load(name, without_weights(tmp_path, name))
    found = fit(recipe, recipe.plan(6000), recipe.config.max_prompt_length, GPU[name] * 2**30)
    assert found.fits and not found.instead, found


@pytest.mark.filterwarnings("ignore")
def test_the_verdict_says_by_how_much_and_what_would_fit(tmp_path, capsys):
    words = ["plan", "countdown", "--rows", "6000", "--set", *without_weights(tmp_path, "countdown")]
    assert main([*words, "--gpu", "24"]) == 0
    assert re.search(r"Verdict\n  fits +17\.\d GiB of 24 GiB", capsys.readouterr().out)
    assert main([*words, "use_peft=false", "--gpu", "24"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"does not fit +34\.\d GiB of 24 GiB.*too much", out)
    assert re.search(r"would fit +a LoRA adapter: 17\.\d GiB", out) and "would not either" in out
    for words in (["--gpu", "0"], ["--processes", "0"], ["--rows", "-1"]):
        assert main(["plan", "tiny", *words]) == 2
        assert words[0] in capsys.readouterr().err
