"""Stop strings are found at the token that completes them, however often one looks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.sample.native.stop_strings import StopStrings

pytestmark = pytest.mark.any_version

PIECES = ["a", "b", "ab", "ba", "é", "\n", "aba"]


def decode(ids):
    return "".join(PIECES[i] for i in ids)


@given(
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=30),
    st.lists(st.sampled_from(["ab", "bb", "é\n", "abab", "\n\n"]), min_size=1, max_size=2),
    st.integers(1, 9),
)
def test_the_end_is_the_first_token_with_which_a_stop_string_is_complete(ids, stops, interval):
    reference = next((n for n in range(1, len(ids) + 1) if any(s in decode(ids[:n]) for s in stops)), None)
    watch, found = StopStrings(stops, decode), None
    for length in [*range(interval, len(ids), interval), len(ids)]:
        found = watch.end(7, ids[:length])
        if found is not None:
            break
    assert found == reference
    assert watch.stopped == (set() if reference is None else {7})
