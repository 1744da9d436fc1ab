"""The page can be read: every ink on every ground has the contrast that WCAG 2.2 asks for, by day and by night."""

import re

import pytest

from covey.runs.report.page import assets

TEXT, GRAPHICS = 4.5, 3.0
"""Least contrast of small text (criterion 1.4.3), and of shapes (1.4.11)."""


def themes():
    """The colours by name: light, and both copies of dark."""
    blocks = re.findall(r"^\s*:root[^{]*\{([^}]*--paper[^}]*)\}", assets()[1], re.MULTILINE)
    return [dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block)) for block in blocks]


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, two):
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_worked_numbers():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_there_are_three_themes_and_the_dark_ones_are_one():
    light, *dark = themes()
    assert len(dark) == 2 and dark[0] == dark[1] and set(light) == set(dark[0])


@pytest.mark.parametrize("ground", ["paper", "raised", "sunk"])
def test_every_ink_can_be_read(ground):
    for colors in themes():
        for ink in ("ink", "ink-2", "ink-3", "good", "bad", "warn"):
            assert contrast(colors[ink], colors[ground]) >= TEXT, (ink, ground)
        for shape in ("up", "down", "flat", *(f"c{i}" for i in range(8))):
            assert contrast(colors[shape], colors[ground]) >= GRAPHICS, (shape, ground)
