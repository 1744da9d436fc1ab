"""Values that cross between processes: what goes in comes out, and nothing else gets through."""

import collections
import contextlib
import math
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.rewards.sandbox.compare import same_output, same_value
from covey.rewards.sandbox.inside.codec import Bag, Malformed, Opaque, Pairs, decode, encode

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False)
)  # fmt: skip
hashable = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
values = st.recursive(
    scalars | st.sets(hashable, max_size=4) | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=15,
)


def exact(value):
    """A value with its types, so that 1 and True differ."""
    if isinstance(value, dict):
        return [(exact(k), exact(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(v) for v in value]
    if isinstance(value, set | frozenset):
        return type(value), value
    return type(value), value


@given(values)
def test_round_trip(value):
    assert exact(decode(encode(value))) == exact(value)


@given(values)
def test_a_value_is_the_same_as_itself_on_the_other_side(value):
    assert same_value(value, decode(encode(value), hashed=False))


@given(values, values)
def test_sameness_is_pythons_where_that_is_exact(one, other):
    if one != one or other != other:
        return
    if one == other:
        assert same_value(one, decode(encode(other), hashed=False))
    elif type(one) is type(other) and isinstance(one, int | str | bytes | set):
        assert not same_value(one, decode(encode(other), hashed=False))


@given(st.binary(max_size=200))
def test_hostile_bytes_are_a_value_or_malformed(data):
    with contextlib.suppress(Malformed):
        decode(data, hashed=False)


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "value", [Liar(1), object(), len, [Liar(1)], {"a": {Liar(2)}}, iter([]), range(3), type, NotImplemented]
)
def test_only_exact_types_cross(value):
    with pytest.raises(Opaque):
        encode(value)


def test_dictionaries_of_the_standard_library_cross_as_dictionaries():
    for made in (
        collections.Counter("aab"),
        collections.defaultdict(int, a=2, b=1),
        collections.OrderedDict(a=2, b=1),
    ):
        assert decode(encode(made)) == {"a": 2, "b": 1} and type(decode(encode(made))) is dict


def test_depth_is_bounded_on_both_sides():
    deep = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(Opaque, match="nested"):
        encode(deep)
    with pytest.raises(Malformed, match="nested"):
        decode((b"l" + struct.pack(">I", 1)) * 5000 + b"N")


def test_sizes_are_not_believed():
    for tag in b"lsd":
        with pytest.raises(Malformed):
            decode(bytes([tag]) + struct.pack(">I", 2**32 - 1) + b"N")


def test_collisions_do_not_cost_quadratic_time():
    """Multiples of 2**61 - 1 all hash to 0."""
    colliding = b"".join(encode(i * (2**61 - 1)) for i in range(50_000))
    data = b"e" + struct.pack(">I", 50_000) + colliding
    started = time.perf_counter()
    assert not same_value({1}, decode(data, hashed=False))
    assert time.perf_counter() - started < 2.0


@pytest.mark.parametrize(
    "expected, got, same",
    [
        (1, 1.0, True),
        (1, True, True),
        (1, 1 + 1e-12, False),
        (0.1 + 0.2, 0.3, True),
        (0.3, 0.30001, False),
        (math.nan, math.nan, True),
        (1, math.nan, False),
        (math.inf, math.inf, True),
        (math.inf, 1e308, False),
        (1.0, 10**400, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1, 2, 3], False),
        ([1, 2], [2, 1], False),
        ("1", 1, False),
        (1, "1", False),
        (None, 0, False),
        (None, None, True),
        ({1, 2}, Bag([2, 1]), True),
        ({1, 2}, Bag([2, 1, 3]), False),
        ({1}, [1], False),
        ([1], Bag([1]), False),
        ({(1, 2)}, Bag([(1.0, 2)]), True),
        ({"a": [1]}, Pairs([("a", (1,))]), True),
        ({"a": 1}, Pairs([("b", 1)]), False),
        ({"a": 1}, Pairs([("a", 1), ("b", 1)]), False),
        ({1: "x"}, Pairs([(1.0, "x")]), True),
        ({}, Pairs([]), True),
        ({}, [], False),
        (b"a", "a", False),
        (1j, 1j, True),
    ],
)
def test_sameness(expected, got, same):
    assert same_value(expected, got) is same


@pytest.mark.parametrize(
    "expected, got, same",
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a  \nb\n\n", True),
        ("a\nb", "a", False),
        ("a", "a\nb", False),
        ("a\n\nb", "a\nb", False),
        (" a", "a", False),
        ("", "", True),
        ("", "\n", True),
        ("a", "A", False),
        ("1.0", "1", False),
    ],
)
def test_outputs(expected, got, same):
    assert same_output(expected, got) is same
