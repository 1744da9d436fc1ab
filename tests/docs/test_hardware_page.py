"""docs/hardware.md is what the forecast says, and its shapes have the sizes that their names promise."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import hardware_page


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
