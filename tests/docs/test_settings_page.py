"""docs/settings.md is what the fields of the configs say, and each says something."""

import dataclasses
import sys
from pathlib import Path

import pytest

from covey import GRPOConfig, ModelConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import settings_page


def test_the_page_is_made_from_the_fields():
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page(), (
        "run python tools/settings_page.py"
    )


@pytest.mark.parametrize("config", [GRPOConfig, ModelConfig], ids=lambda c: c.__name__)
def test_every_setting_of_our_own_is_explained(config):
    own = [f for f in dataclasses.fields(config) if f.name in config.__annotations__]
    assert [f.name for f in own if len(str(f.metadata.get("help", ""))) < 10] == []
