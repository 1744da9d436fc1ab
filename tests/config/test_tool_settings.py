"""Settings of tools: their ranges, what they go with, and that they need tools."""

import json

import pytest
import torch

from covey import GRPOConfig
from covey.config.tool_settings import ToolSettings, check_needed
from covey.errors import ConfigError
from covey.tools import Tags

GIVEN = {
    "max_tool_calling_iterations": 3, "max_turn_length": 64, "max_tool_result": 32, "tool_overflow": "cut", "tool_timeout": 2.0,
    "episode_timeout": 60.0, "tool_concurrency": 4, "tool_schedule": "eager", "tool_format": "hermes", "credit_assignment": "turn",
}  # fmt: skip


def settings(**given):
    return GRPOConfig(output_dir="unused", use_cpu=True, **given)


@pytest.mark.parametrize("name", GIVEN)
def test_a_setting_of_tools_needs_tools(name):
    given = settings(**{name: GIVEN[name]})
    check_needed(given, calls_tools=True)
    with pytest.raises(ConfigError, match=f"{name}=.* has no effect: GRPOTrainer was given neither tools"):
        check_needed(given, calls_tools=False)


def test_loggers_can_write_settings_that_are_objects():
    """TensorBoard is given `to_json_string()` when training begins."""
    given = settings(tool_format=Tags("<search>", "</search>"), model_init_kwargs={"dtype": torch.bfloat16})
    read = json.loads(given.to_json_string())
    assert "<search>" in read["tool_format"] and "bfloat16" in read["model_init_kwargs"]["dtype"]
    assert json.dumps(given.to_dict()) and read["learning_rate"] == given.learning_rate


def test_each_setting_of_tools_is_tried():
    assert {*GIVEN, "turn_discount"} == set(ToolSettings.__annotations__)
    check_needed(settings(), calls_tools=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tool_calling_iterations": -1}, "max_tool_calling_iterations"),
        ({"max_turn_length": 0}, "max_turn_length"),
        ({"max_tool_result": 0}, "max_tool_result"),
        ({"tool_concurrency": 0}, "tool_concurrency"),
        ({"tool_timeout": 0.0}, "tool_timeout is 0.0; it is a time in seconds"),
        ({"episode_timeout": -1.0}, "episode_timeout is -1.0"),
        ({"tool_schedule": "lazy"}, "tool_schedule is 'lazy'"),
        ({"credit_assignment": "turn", "turn_discount": 1.5}, "turn_discount is 1.5"),
        ({"credit_assignment": "turn", "turn_discount": 0.5, "dynamic_sampling": True}, "dynamic_sampling"),
        ({"credit_assignment": "turn", "advantage_estimator": "rloo"}, "advantage_estimator='rloo'"),
        (
            {"credit_assignment": "turn", "multi_objective_aggregation": "normalize_then_sum"},
            "normalize_then_sum",
        ),
    ],
    ids=str,
)
def test_values_that_cannot_be_are_named(given, words):
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert words in str(error.value)
