"""The scripts in examples/, run from beginning to end with tiny models in place of the real ones."""

import json
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


@pytest.mark.parametrize(
    "name, tasks",
    [
        ("sums.py", {"sums"}),
        ("mixture.py", {"sum", "larger", "text"}),
        ("small_functions.py", {"functions"}),
    ],
)
def test_an_example_that_measures_writes_what_it_found(name, tasks, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    policy, out = tiny_policy(tmp_path / "policy"), tmp_path / "out"
    words = (
        "--model",
        policy,
        "--out",
        out,
        "--steps",
        1,
        "--prompts",
        3,
        "--new-tokens",
        8,
        "--held-out",
        4,
    )
    run(name, *words, monkeypatch=monkeypatch)

    found = json.loads((out / "result.json").read_text())
    assert set(found["held_out"]) == set(found["answers"]) == tasks
    assert {part["prompts"] for part in found["held_out"].values()} == {4}
    assert [len(series) for series in found["steps"].values()] == [1] * 4
    assert str(tmp_path) not in (out / "result.json").read_text()


def test_no_held_out_row_of_an_example_is_trained_on(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    train, held_out = runpy.run_path(str(EXAMPLES / "sums.py"))["problems"](96)
    assert len(held_out) == 96 and not {asked(row) for row in train} & {asked(row) for row in held_out}

    rows = runpy.run_path(str(EXAMPLES / "mixture.py"))["rows"]
    train, held_out = (rows(64, 0, split) for split in ("train", "held_out"))
    for task in train:
        assert len(held_out[task]) == 64
        assert not {asked(row) for row in train[task]} & {asked(row) for row in held_out[task]}


def asked(row):
    return row["prompt"][-1]["content"]


def test_the_rules_of_the_mixture_pay_for_what_they_say(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = runpy.run_path(str(EXAMPLES / "mixture.py"))
    told = {
        "A boat carried an owl across the quiet river.": 1.0,
        "A boat carried an owl across the quiet river": 0.75,  # no sentence
        "A boat carried a bird across the quiet river.": 0.75,  # one topic alone
        "A boat and an owl, quiet owl, quiet owl, quiet boat.": 0.75,  # words twice
        "An owl. A boat. " * 10: 0.25,  # neither one sentence nor short nor without repetition
        "": 0.25,  # short
    }
    texts = [[{"role": "assistant", "content": text}] for text in told]
    topics = [["boat", "owl"]] * len(told)
    assert example["whole_sentence"](texts, topics) == list(told.values())
    assert example["keeps_all_rules"](texts, topics) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]

    texts = [
        [{"content": text}] for text in ("40", "40 is larger.", "17 is larger than 40.", "40, not 17", "")
    ]
    assert example["larger_alone"](texts, target=[40] * 5) == [1, 1, 0, 0, 0]

    many = " ".join(["word"] * example["MOST_WORDS"])
    assert example["brief"]([[{"content": text}] for text in ("40", "40 is", many)]) == pytest.approx(
        [1, 23 / 24, 0]
    )


def test_a_row_of_the_mixture_is_judged_by_the_rewards_of_its_task_alone(monkeypatch):
    from covey.rewards import RewardBatch

    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = runpy.run_path(str(EXAMPLES / "mixture.py"))
    rows = [part[0] for part in example["rows"](1, 0, "train").values()]
    columns = {name: [row[name] for row in rows] for name in example["COLUMNS"]}
    texts = [[{"role": "assistant", "content": "It is 1."}]] * 3
    scored = example["mixture"]().score(
        RewardBatch(prompts=columns.pop("prompt"), completions=texts, columns=columns)
    )
    applies = {name: [s.status != "not_applicable" for s in scores] for name, scores in scored.scores.items()}
    assert applies == {
        "number_match": [True, False, False],
        "larger_alone": [False, True, False],
        "brief": [False, True, False],
        "whole_sentence": [False, False, True],
        "keeps_all_rules": [False, False, True],
        "friendly": [False, False, True],
    }


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
