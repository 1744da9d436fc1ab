"""The scripts in examples/, run from beginning to end with tiny models in place of the real ones."""

import random
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import tiny_policy

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.filterwarnings("ignore::covey.errors.CoveyWarning")


def run(name, *words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_the_example_for_text_trains_and_keeps_its_model(tmp_path, monkeypatch):
    words = (
        "--model",
        tiny_policy(tmp_path / "policy"),
        "--out",
        tmp_path / "out",
        "--steps",
        1,
        "--new-tokens",
        8,
    )
    run("countdown_smollm2.py", *words, monkeypatch=monkeypatch)
    assert (tmp_path / "out" / "model" / "model.safetensors").exists()


def test_the_example_that_sees_trains_an_adapter_on_the_decoder(tmp_path, monkeypatch):
    from safetensors.numpy import load_file
    from transformers import AutoProcessor

    from tests.vision.tiny_eyes import tiny_eyes_policy

    policy, out = tiny_eyes_policy(tmp_path / "policy", "qwen2_5_vl"), tmp_path / "out"
    words = ("--model", policy, "--out", out, "--steps", 1, "--prompts", 2, "--new-tokens", 8)
    run("vision.py", *words, monkeypatch=monkeypatch)

    names = load_file(out / "model" / "adapter_model.safetensors")
    assert names and not [name for name in names if "visual" in name]
    assert AutoProcessor.from_pretrained(out / "model").image_processor
    assert (out / "record").exists()


def test_the_pictures_of_the_example_hold_what_they_say():
    example = runpy.run_path(str(EXAMPLES / "vision.py"))
    for seed in range(20):
        image, counts = example["scene"](random.Random(seed))
        seen = np.asarray(image).reshape(-1, 3)
        for colour, value in example["COLOURS"].items():
            assert bool((seen == value).all(axis=1).any()) == bool(counts[colour]), (seed, colour)
    told = [
        [{"role": "assistant", "content": f"three: <answer> {n} </answer>"}]
        for n in ("3", "4", "<answer>3", "x")
    ]
    assert example["right_number"](told, number=[3] * 4) == [1, 0, 1, 0]
    assert example["in_tags"](told) == [1, 1, 1, 0]
