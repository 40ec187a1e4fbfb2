"""Every number of a range has one of the tokens that are asked for, and few others have."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from patchouli.provider_sqlite.index_leaves import SEPARATOR
from patchouli.provider_sqlite.index_numbers import (
    CELLS_ASKED,
    as_double,
    number_tokens,
    range_tokens,
)

numbers = st.one_of(
    st.integers(),
    st.integers(-1000, 1000),
    st.floats(allow_nan=False),
    st.sampled_from([0.0, -0.0, 2**53 + 1, 10**400, -(10**400), math.inf, -math.inf, 5e-324]),
)


def tokens_of(number: float) -> set[str]:
    listed = number_tokens(["17="], [json.dumps(number)])
    assert listed.startswith(SEPARATOR)
    return set(listed[1:].split(SEPARATOR))


@given(numbers, numbers, numbers)
@example(0.0, -0.0, 0)
@example(2**53, 2**53 + 1, 2**53 + 1)
@example(-math.inf, math.inf, 10**400)
def test_a_number_of_the_range_is_found(low: float, high: float, number: float) -> None:
    asked = range_tokens("17=", as_double(low), as_double(high))

    assert asked is None or len(asked) <= CELLS_ASKED
    if asked is not None and low <= number <= high:
        assert tokens_of(number) & set(asked)


@pytest.mark.parametrize(
    ("low", "high"), [(100.0, 150.0), (50_000.0, 50_050.0), (-3.5, -3.25), (990.0, math.inf)]
)
def test_what_is_far_from_the_range_is_not_found(low: float, high: float) -> None:
    asked = range_tokens("17=", low, high)

    assert asked is not None
    for number in (low / 2, low * 0.98 if low > 0 else low * 1.02, -low, 0):
        assert not tokens_of(number) & set(asked)


@pytest.mark.parametrize(
    ("low", "high"), [(5.0, math.inf), (-math.inf, -5.0), (-math.inf, math.inf), (0.1, 1e300)]
)
def test_open_and_wide_ranges_have_an_answer(low: float, high: float) -> None:
    assert range_tokens("17=", low, high) is not None


def test_an_empty_range_asks_for_nothing() -> None:
    assert range_tokens("17=", 2.0, 1.0) == []


@pytest.mark.parametrize(
    "leaf", ["", "text", "-", "2031-03-02", "1-1", "0x10", "nan", "NaN", "1.2.3"]
)
def test_what_is_no_number_has_no_token(leaf: str) -> None:
    assert number_tokens(["17="], [leaf]) == ""
