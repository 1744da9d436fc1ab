"""Texts and numbers as people see them: nothing hidden, nothing too long, no digit that means nothing."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.runs.terminal.phrases import duration, number, percent
from covey.runs.terminal.sparkline import BARS, Curve, sparkline
from covey.text.foreign import excerpt, visible


@given(st.text())
def test_nothing_hidden_is_left(text):
    for character in visible(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp"), hex(
            ord(character)
        )
        assert unicodedata.bidirectional(character) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )


def test_every_format_character_of_unicode_is_made_visible_except_those_that_letters_need():
    # Subtending marks (Arabic number signs and the like) have a picture of their own.
    has_picture = {
        *range(0x600, 0x606),
        0x6DD,
        0x70F,
        0x890,
        0x891,
        0x8E2,
        0x110BD,
        0x110CD,
        *range(0x13430, 0x13440),
    }
    has_picture |= set(range(0x1BCA0, 0x1BCA4))
    for code in range(0x110000):
        if unicodedata.category(chr(code)) == "Cf" and code not in has_picture:
            assert chr(code) not in visible(chr(code)), hex(code)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "⟨ESC⟩[31mred⟨BEL⟩"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("line\r\n\tnext", "line⟨CR⟩\n\tnext"),
        ("שלום مرحبا 你好 naïve 🙂", "שלום مرحبا 你好 naïve 🙂"),
        ("\ud800", "⟨U+D800⟩"),
    ],
)
def test_what_is_shown(text, shown):
    assert visible(text) == shown


@given(st.text(), st.integers(1, 30))
def test_an_excerpt_is_one_line_of_at_most_its_length(text, length):
    assert len(excerpt(text, length)) <= length and "\n" not in excerpt(text, length)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0041234, "0.00412"), (0.8125, "0.812"), (12.44, "12.4"), (1284.4, "1,284"), (3.2e-7, "3.2e-07"),
     (-0.5, "-0.500"), (1e12, "1.0e+12"), (float("nan"), "nan")],
)  # fmt: skip
def test_numbers(value, shown):
    assert number(value) == shown


def test_shares_and_durations():
    assert [percent(v) for v in (0, 0.0001, 0.004, 0.12, 1)] == ["0 %", "<0.1 %", "0.4 %", "12 %", "100 %"]
    assert [duration(v) for v in (0.82, 3.14, 14.2, 200, 7500, 270_000)] == [
        "0.82 s", "3.1 s", "14 s", "3 min 20 s", "2 h 05 min", "3 d 3 h",
    ]  # fmt: skip


def test_a_sparkline_goes_from_low_to_high():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BARS
    assert sparkline([3, 3, 3], 8) == "▁▁▁"
    assert sparkline([], 8) == "" and sparkline([1.0], 0) == ""
    assert sparkline([0.5], 4, low=0, high=1) == BARS[4]
    assert sparkline(list(range(1000)), 8) == BARS


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=700))
def test_a_curve_keeps_the_mean_and_its_bound(values):
    curve = Curve(capacity=16)
    for value in values:
        curve.add(value)
    assert curve.last == values[-1]
    assert len(curve.points()) <= 17
    stride, whole = curve._stride, len(values) // curve._stride
    expected = [sum(values[i * stride : (i + 1) * stride]) / stride for i in range(whole)]
    assert curve.points()[:whole] == pytest.approx(expected, abs=1e-9)
