"""What was measured: the table is what the docs say, and a setting is far from it where it should be."""

import math
import re
from pathlib import Path

import pytest

from covey.config.choices import LOSS_TYPES
from covey.recipes import Recipe
from covey.recipes.bundled import recipes
from covey.runs.evidence import CLIPPED, CLIPS, COMPARED, FAR, STUDIES, alike, distances
from covey.tasks import assets

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/hyperparameters.md").read_text(encoding="utf-8")

WEIGHTS = {
    str(assets.POLICY): 1.14e6,
    str(assets.CALCULATOR_POLICY): 0.546e6,
    str(assets.DISCS_POLICY): 0.292e6,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.54e9,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": 1.54e9,
    "Qwen/Qwen2.5-3B-Instruct": 3.09e9,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3.75e9,
}
"""Of the models of the recipes that come along, as their cards say."""


def lines():
    """Cells of the table of studies by the name of the model."""
    rows = PAGE[PAGE.index("| model | weights |") :].split("\n\n")[0].splitlines()[2:]
    return {cells[0]: cells[1:] for cells in ([c.strip() for c in row.split("|")[1:-1]] for row in rows)}


def size(text):
    number, unit = text.split()
    return float(number) * {"M": 1e6, "B": 1e9}[unit]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.model)
def test_the_page_has_the_figures_and_the_source_of_every_study(study):
    weights, kind, rate, group, limit, result, source = lines()[study.model]
    assert size(weights) == pytest.approx(study.weights, rel=0.01)
    assert kind == {"full": "full", "adapter": "LoRA"}[study.kind]
    assert (float(rate), int(group), int(limit)) == tuple(getattr(study, name) for name in COMPARED)
    assert (result, source) == (study.result, study.source)


def test_the_page_has_no_study_that_nobody_compares_with():
    assert list(lines()) == [study.model for study in STUDIES]
    assert all(clip.source in PAGE and f"{clip.low:g}" in PAGE for clip in CLIPS.values())


@pytest.mark.parametrize(
    "study",
    [s for s in STUDIES if s.source.startswith(("docs/", "examples/"))],
    ids=lambda study: study.model,
)
def test_a_source_of_ours_says_what_came_of_it(study):
    text = (ROOT / study.source).read_text(encoding="utf-8")
    numbers = re.findall(r"\d[\d.]*", study.result)
    assert numbers and [n for n in numbers if n not in text] == []


def test_other_sources_are_papers_or_files_of_a_library():
    others = [s.source for s in STUDIES if not s.source.startswith(("docs/", "examples/"))]
    assert all(re.fullmatch(r"arXiv:\d{4}\.\d{5}|[\w-]+: [\w./-]+", source) for source in others)


def test_settings_of_the_bundled_policies_are_those_that_their_quickstarts_have():
    from covey.tasks import calculator_run, discs_run, quickstart_run

    by_model = {study.model: study for study in STUDIES}
    runs = {"bundled": quickstart_run, "bundled_calculator": calculator_run, "bundled_discs": discs_run}
    for name, run in runs.items():
        settings, study = run.settings(), by_model[name]
        assert {n: settings[n] for n in COMPARED} == {n: getattr(study, n) for n in COMPARED}, name


# --- comparisons ----------------------------------------------------------------------------------------------------------


def rate(value, weights=134.5e6, trained=None, **others):
    """Return how a learning rate stands beside what was measured."""
    found = distances({"learning_rate": value, **others}, weights, weights if trained is None else trained)
    return {d.setting: d for d in found}.get("learning_rate")


def test_a_learning_rate_is_far_from_five_times_the_most_or_a_fifth_of_the_least_on():
    """Worked by hand: full training of 135 million weights was measured at 2e-5 alone, a model of a like size."""
    assert [rate(x).times for x in (2e-3, 2e-5, 2e-7)] == pytest.approx([100, 1, 0.01])
    assert [rate(x).is_far for x in (1.01e-4, 0.99e-4, 2e-5, 4.1e-6, 3.9e-6)] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert rate(2e-3).start == 2e-5


def test_between_the_least_and_the_most_nothing_is_far():
    """An adapter on 1.5 billion weights: 1e-4 was measured at a third of that size, 3e-6 at twice that."""
    found = rate(1e-5, 1.54e9, 2e7)
    assert (found.low, found.high, found.times, found.start) == (3e-6, 1e-4, 1.0, 3e-6)
    assert rate(5e-4, 1.54e9, 2e7).is_far and rate(6e-7, 1.54e9, 2e7).is_far


def test_models_of_a_like_size_are_compared_and_the_nearest_where_there_is_none():
    assert [s.model for s in alike("full", 5e9)] == ["DeepSeekMath-Instruct 7B", "Qwen2.5-3B", "Qwen2.5-32B"]
    assert [s.model for s in alike("full", 7e11)] == ["Qwen2.5-32B"]
    assert [s.model for s in alike("adapter", 1e6)] == ["Qwen2.5-Coder-0.5B-Instruct"]
    assert all(abs(math.log10(s.weights / 3e8)) <= 1 for s in alike("full", 3e8))


def test_an_adapter_is_told_from_full_training_by_what_is_trained():
    assert rate(1e-4, 494e6, 8.8e6).times == 1.0
    assert rate(1e-4, 494e6, 494e6).times == pytest.approx(5.0)


def test_learning_rates_of_other_optimizers_are_not_compared():
    assert rate(1.0, optim="adamw_torch_fused").is_far and rate(1.0, optim="sgd") is None


def test_nothing_is_said_of_a_model_or_a_setting_that_is_not_known():
    assert rate(2e-3, 0.0) is None and rate("2e-3") is None and distances({}, 1e9, 1e9) == []


CLIPPING = {"epsilon": 0.2, "loss_type": "grpo", "num_iterations": 2}


def clip(**settings):
    found = {d.setting: d for d in distances({**CLIPPING, **settings}, 1e9, 1e9)}
    return found["epsilon"].times if "epsilon" in found else None


def test_clip_bounds_are_those_of_the_ratio_that_they_bound():
    assert clip() == 1.0 and clip(epsilon=0.02) == pytest.approx(0.1)
    assert clip(importance_sampling_level="sequence") == pytest.approx(500)
    assert clip(importance_sampling_level="sequence", epsilon=3e-4) == 1.0


def test_nothing_is_said_of_a_bound_that_never_acts_or_bounds_something_else():
    on_policy = {"num_iterations": 1, "gradient_accumulation_steps": 4, "epsilon": 1e-4}
    assert clip(**on_policy) is None and clip(**on_policy, steps_per_generation=8) == pytest.approx(1 / 2000)
    assert clip(**on_policy, generation_batch_size=96) is not None
    assert clip(loss_type="cispo", epsilon=5.0) is None
    assert {name for name, spec in LOSS_TYPES.items() if spec.loss == "clipped"} == CLIPPED


def test_a_distance_says_both_ends_the_start_and_the_source():
    assert str(rate(2e-3)) == (
        "0.002 is 100 times the most that was measured, 2e-05. A start: 2e-05, as SmolLM2-135M-Instruct (134 million "
        "weights, full training): the whole format in 48 steps (examples/countdown_smollm2.py)."
    )
    assert "4e-06 is 5.0 times less than the least that was measured, 2e-05. A start: 2e-05" in str(
        rate(4e-6)
    )


# --- what comes along -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_that_comes_along_is_near_what_was_measured_or_says_why(name):
    """A comment behind the setting that says `measured` is a reason."""
    file = recipes()[name]
    recipe = Recipe.load(file)
    weights = WEIGHTS[recipe.model_settings["model_name_or_path"]]
    trained = weights / 100 if recipe.model_settings.get("use_peft") else weights
    far = [d for d in distances(recipe.settings, weights, trained) if d.is_far]
    text = file.read_text(encoding="utf-8")
    assert [d for d in far if not re.search(rf"{d.setting}:.*#.*measured", text)] == []


@pytest.mark.parametrize(("line", "sizes"), [("0.1 to 0.3", (0.135e9, 0.3e9)), ("0.3 to 1", (0.494e9,)), ("1 to 10", (1.54e9, 7e9))])  # fmt: skip
def test_the_starts_of_the_page_are_near_what_was_measured(line, sizes):
    row = next(row for row in PAGE.splitlines() if row.startswith(f"| `learning_rate`, {line} B"))
    full, *adapters = (float(cell) for cell in row.split("|")[2:-1])
    for weights in sizes:
        assert not rate(full, weights).is_far
        assert not any(rate(value, weights, weights / 100).is_far for value in adapters)
    assert FAR == 5.0
