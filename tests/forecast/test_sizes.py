"""Sizes without weights are those of the loaded model; settings become demands."""

import pytest

from covey.errors import CoveyWarning, LoadingError
from covey.forecast.memory import phases
from covey.forecast.sizes import demand_of, prompt_lengths, sizes_of
from covey.models.adapters import with_adapter
from covey.models.loading import load_policy
from covey.recipes import Recipe
from tests.tiny import tiny_policy

LORA = {"use_peft": True, "lora_r": 4, "lora_target_modules": "all-linear"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("sizes") / "policy")


def recipe(policy, model=None, **train):
    sections = {
        "model": {"model_name_or_path": policy, **(model or {})},
        "data": {"generator": "countdown", "arguments": {"count": 12}},
        "rewards": ["covey.tasks:countdown_reward"],
        "train": {"num_generations": 4, "per_device_train_batch_size": 8, "use_cpu": True, **train},
    }
    return Recipe.of(sections, "test")


@pytest.mark.parametrize("model", [{}, LORA])
def test_sizes_are_those_of_the_loaded_model(policy, model):
    from covey.config import get_peft_config

    asked = recipe(policy, model)
    found = sizes_of(asked)
    loaded = with_adapter(load_policy(policy), get_peft_config(asked.model_config), seed=0)
    assert found.weights == sum(p.numel() for p in loaded.parameters())
    assert found.trained == sum(p.numel() for p in loaded.parameters() if p.requires_grad)
    assert (found.layers, found.hidden, found.intermediate, found.queries, found.keys) == (2, 32, 64, 32, 16)


def test_four_bits_are_counted_where_bitsandbytes_puts_them(policy):
    asked = recipe(policy, {**LORA, "load_in_4bit": True})
    found = sizes_of(asked)
    # Two layers: q and o 32 × 32, k and v 32 × 16, gate, up and down 32 × 64; the head stays.
    assert found.quantised == 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    demand = demand_of(asked, asked.plan(100), 10)
    assert demand.quantised_bytes == pytest.approx(
        0.5 + 4 / 64
    )  # one float32 per 64 weights (arXiv:2305.14314, 3)


def test_what_servers_sample_takes_no_memory_here(policy):
    asked = recipe(policy, engine="covey", engine_urls="http://n2:8000")
    demand = demand_of(asked, asked.plan(100), 17)
    assert not phases(sizes_of(asked), demand)["sample"]
    here = recipe(policy)
    assert "keys and values" in phases(sizes_of(here), demand_of(here, here.plan(100), 17))["sample"]


def test_demands_follow_the_settings(policy):
    asked = recipe(policy, beta=0.1, optim="sgd", gradient_checkpointing=False, gradient_accumulation_steps=3)
    found = demand_of(asked, asked.plan(100), 17)
    assert (found.completions, found.group, found.sampled, found.prompt_tokens) == (8, 4, 24, 17)
    assert found.has_reference and found.optimizer_bytes == 0 and not found.is_checkpointed and found.is_cpu
    assert demand_of(recipe(policy), asked.plan(100), 17).optimizer_bytes == 8


@pytest.mark.parametrize("model", [LORA | {"dtype": "bfloat16"}, {"dtype": "bfloat16"}, LORA, {}])
def test_what_is_trained_has_the_precision_that_it_will_be_loaded_with(policy, model):
    from covey.config import get_peft_config

    asked = recipe(policy, model)
    loaded = load_policy(asked.model_config)
    if "use_peft" in model:
        loaded = with_adapter(loaded, get_peft_config(asked.model_config), seed=0)
    demand = demand_of(asked, asked.plan(100), 17)
    sizes = {
        w: {p.element_size() for p in loaded.parameters() if p.requires_grad == w} for w in (True, False)
    }
    assert sizes[True] == {demand.trained_bytes} and sizes[False] <= {demand.weight_bytes}
    assert demand.optimizer_bytes == 2 * demand.trained_bytes


@pytest.mark.filterwarnings("ignore")
def test_the_optimizer_of_a_run_for_a_gpu_is_the_one_that_is_asked_for(policy):
    """Also where its package is missing here."""
    asked = recipe(policy, {"dtype": "bfloat16"}, optim="adamw_8bit", bf16=True, use_cpu=False)
    assert demand_of(asked, asked.plan(100), 17).optimizer_bytes == 2


def test_limits_and_offloading_are_demands(policy):
    found = recipe(policy, max_tokens_per_forward=50)
    assert demand_of(found, found.plan(100), 17).max_tokens == 50
    with pytest.warns(
        CoveyWarning, match="activation_offloading"
    ):  # here there is no GPU; it is reckoned as on one
        asked = recipe(policy, activation_offloading=True, use_cpu=False)
        demand = demand_of(asked, asked.plan(100), 17)
    assert demand.is_offloaded and not demand.is_cpu


def test_lengths_are_those_of_the_prompts_or_the_limit(policy):
    asked = recipe(policy)
    found = prompt_lengths(asked)
    tokens = [len(asked.train_dataset[i]["prompt"]) for i in range(12)]
    assert found.rows == 12
    if isinstance(asked.train_dataset[0]["prompt"], str):  # one token per character
        assert found.longest == max(tokens)
    cut = prompt_lengths(recipe(policy, max_prompt_length=9))
    assert cut.longest == 9
    assert prompt_lengths(recipe(policy, max_prompt_length=9), loads_data=False).rows == 0


def test_a_model_whose_config_cannot_be_read_is_named():
    with pytest.raises(LoadingError, match="the config of no/such-model cannot be read"):
        sizes_of(recipe("no/such-model"))
