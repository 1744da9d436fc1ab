"""The folders of the tiny models that the package brings."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parents[1] / "assets"
POLICY = ASSETS / "policy"
REWARD_MODEL = ASSETS / "reward_model"
CALCULATOR_POLICY = ASSETS / "calculator_policy"
DISCS_POLICY = ASSETS / "discs_policy"
