"""Values that cross between processes: what goes in comes out, and nothing else gets through."""

import collections
import contextlib
import datetime
import enum
import math
import struct
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.rewards.sandbox.compare import same_output, same_value
from covey.rewards.sandbox.inside.codec import ANSWER_DEPTH, Malformed, Opaque, Pairs, decode, encode
from covey.rewards.sandbox.inside.library import _MADE, Bag
from tests.clocks import own_seconds

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


@pytest.mark.parametrize("value", [Liar(1), object(), len, [Liar(1)], {"a": {Liar(2)}}, type, NotImplemented])
def test_only_exact_types_cross(value):
    with pytest.raises(Opaque):
        encode(value)


UTC = datetime.UTC
Point = collections.namedtuple("Point", "x y")


class Size(enum.IntEnum):
    BIG = 3


@pytest.mark.parametrize(
    "value",
    [
        range(3), range(10**30, 0, -7), Fraction(3, 2), Decimal("1.50"), Decimal("-inf"), collections.deque([1, [2]], 3),
        collections.Counter("aab"), collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[1]),
        datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime.datetime(1, 1, 1, fold=1),
        datetime.time(1, 2, 3), datetime.timedelta(-1, 5, 7), UTC, {1: 2}.keys(), {1: 2}.items(), Point(1, [2]),
        {"a": [Fraction(1, 3), {Decimal(2)}]},
    ],
)  # fmt: skip
def test_values_of_the_standard_library_cross_as_they_are(value):
    arrived = decode(encode(value))
    assert (
        arrived == value and type(arrived).__name__ == type(value).__name__ and repr(arrived) == repr(value)
    )


@pytest.mark.parametrize(
    "value, plain",
    [({1: [2]}.values(), [[2]]), (map(str, [1, 2]), ["1", "2"]), ((c for c in "ab"), ["a", "b"]), (reversed([1, 2]), [2, 1]),
     (zip("a", "b", strict=True), [("a", "b")])],
)  # fmt: skip
def test_views_and_iterators_cross_as_their_items(value, plain):
    data = encode(value)
    assert list(decode(data)) == plain and same_value(plain, decode(data, hashed=False))


def test_members_of_number_enums_cross_as_numbers():
    assert decode(encode([Size.BIG])) == [3]


def test_a_stand_in_is_made_of_hostile_parts_and_nothing_is_hashed():
    colliding = {i * (2**61 - 1): None for i in range(3)}
    for value in (
        collections.Counter(colliding),
        collections.OrderedDict(colliding),
        colliding.keys(),
        colliding.items(),
    ):
        assert type(decode(encode(value), hashed=False)) in (Pairs, Bag)


@given(st.sampled_from(sorted(_MADE)), values, st.booleans())
@settings(deadline=None)
def test_hostile_parts_are_a_value_or_malformed(kind, parts, hashed):
    tag = b"x" + struct.pack(">I", len(kind)) + kind.encode()
    with contextlib.suppress(Malformed):
        same_value([1], decode(tag + encode(parts), hashed=hashed))


@pytest.mark.parametrize("text", ["1e999999", "1e-999999", "sNaN", "9" * 5000, "x"])
def test_decimals_of_unbounded_cost_do_not_cross(text):
    tag = b"x" + struct.pack(">I", 7) + b"decimal"
    with pytest.raises(Malformed):
        decode(tag + encode(text))


def test_what_crossed_once_can_be_handed_back_at_every_depth():
    """Answers have fewer levels than requests: a bound that differs by direction would make the test unjudgeable."""
    for depth in range(80, 125):
        value = []
        for _ in range(depth):
            value = [value]
        try:
            answer = encode(("value", value, None), ANSWER_DEPTH)
        except Opaque:
            continue
        returned = decode(answer, max_depth=ANSWER_DEPTH)[1]
        assert decode(encode(("f", [[returned]], {"x": returned})))[1] == [[value]]


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
    with own_seconds(2.0):
        assert not same_value({1}, decode(data, hashed=False))


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
