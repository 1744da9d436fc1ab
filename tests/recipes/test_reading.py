"""YAML by the rules of 1.2's core schema, with the line of every value, and nothing but plain values."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ConfigError
from covey.recipes.reading import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),  # text in YAML 1.1, for want of a dot
        ("1e5", 1e5),
        ("no", "no"),  # False in YAML 1.1
        ("on", "on"),
        ("12:30", "12:30"),  # 750 in YAML 1.1
        ("2024-01-01", "2024-01-01"),
        ("012", 12),  # octal in YAML 1.1
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("[1, {a: no}]", [1, {"a": "no"}]),
        ("1_000", "1_000"),
    ],
)
def test_scalars_are_read_by_the_core_schema(text, value):
    # Table "Tag Resolution" of yaml.org/spec/1.2.2, section 10.3.2.
    found = read_yaml(text, "here").plain()
    assert found == value and type(found) is type(value)


def test_every_entry_knows_its_line():
    root = read_yaml("a: 1\nb:\n  c: 2\n  d:\n    - 3\n    -\n      e: 4\n", "r.yaml")
    entries = root.value
    assert str(entries["a"].mark) == "r.yaml:1" and str(entries["b"].mark) == "r.yaml:2"
    assert entries["b"].value["c"].mark.line == 3
    items = entries["b"].value["d"].value
    assert [item.mark.line for item in items] == [5, 7] and items[1].value["e"].mark.line == 7


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
values = st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


@settings(max_examples=200, deadline=None)
@given(values)
def test_json_is_yaml_and_is_read_as_what_it_says(value):
    import json

    # PyYAML allows no characters outside of YAML's printable set; ASCII escapes keep them out of the way, but for
    # surrogate pairs, which JSON joins and YAML does not.
    text = json.dumps(value)
    if "\\ud8" not in text and not any(f"\\ud{c}" in text for c in "9abcdef"):
        assert read_yaml(text, "j").plain() == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "r.yaml:2: 'a' is there already, in line 1"),
        ("a: 1\nb: [1, 2", "r.yaml:2:"),
        ("a:\n\t- 1", "r.yaml:2:"),
        ("a: 1\n---\nb: 2", "r.yaml:2:"),
        ("a: !!python/object/apply:os.system ['true']", "r.yaml:1: the tag 'tag:yaml.org,2002:python/object"),
        ("a: !mine 1", "r.yaml:1: the tag '!mine' is not read"),
        ("? [1, 2]\n: 3", "r.yaml:1: a key is a list"),
        ("a: &a [*a]", "contains itself"),
        ("a: *nothing", "r.yaml:1:"),
        ("a: \x07", "r.yaml"),
        ("!!int x", "'x' is no int"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_recipe_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError) as error:
        read_yaml(text, "r.yaml")
    assert message in str(error.value)


def test_aliases_repeat_a_value_and_cannot_fill_the_memory():
    assert read_yaml("a: &x [1]\nb: *x", "r").plain() == {"a": [1], "b": [1]}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]  # 9^12 values
    with pytest.raises(ConfigError, match="more than 20000 values"):
        read_yaml("\n".join(lines), "r")
