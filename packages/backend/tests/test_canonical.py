from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.backend import canonical, canonical_bytes, control_key, jeq
from patchouli.provider import ScopeText

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"a": {"z": [], "b": {}}}, '{"a":{"b":{},"z":[]}}'),
        ({"team": "north", "unit": 7}, '{"team":"north","unit":7}'),
        ({}, "{}"),
        # Code points, not UTF-16 units: U+FFFF stands before U+10000.
        ({"\U00010000": 1, "\uffff": 2, "Z": 3, "a": 4}, '{"Z":3,"a":4,"\uffff":2,"\U00010000":1}'),
        ("é/\u2028\x7f", '"é/\u2028\x7f"'),
        ('"\\', r'"\"\\"'),
        ("\b\t\n\f\r", r'"\b\t\n\f\r"'),
        ("\x00\x0b\x1f", r'"\u0000\u000b\u001f"'),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (5e-324, "5e-324"),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
        ([True, False, None], "[true,false,null]"),
    ],
)
def test_text_is_canonical(value: Any, text: str) -> None:
    assert canonical(value) == text
    assert canonical_bytes(value) == text.encode()


@pytest.mark.parametrize(
    ("number", "text"), [(1e16, "1e+16"), (1e-7, "1e-7"), (1.5e300, "1.5e+300")]
)
def test_exponents_keep_the_spelling_of_stored_databases(number: float, text: str) -> None:
    """A key with such a number would be lost if a library began to spell it in another way."""
    assert canonical(number) == text


@pytest.mark.slow
@given(values)
def test_control_characters_are_escaped_in_lower_case_and_nothing_else_is(value: Any) -> None:
    text = canonical(value)

    assert json.loads(text) == value
    assert all(character >= " " for character in text)
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if "e" not in plain.replace("true", "").replace("false", ""):
        assert text == plain


@given(st.dictionaries(texts, st.none(), max_size=8))
def test_members_are_sorted_by_utf8_bytes(value: dict[str, None]) -> None:
    names = list(json.loads(canonical(value)))

    assert names == sorted(value, key=str.encode) == sorted(value)


@given(values)
def test_text_is_a_fixed_point(value: Any) -> None:
    text = canonical_bytes(value)

    assert canonical_bytes(orjson.loads(text)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_kind_and_value(number: float) -> None:
    text = canonical(number)

    assert "." in text or "e" in text
    assert json.loads(text) == number
    assert isinstance(json.loads(text), float)


@dataclass
class Record:
    name: str


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        "\ud800",
        {1: 2},
        {"a": {1}},
        Record("x"),
        Text("x"),
        b"x",
        object(),
        datetime.date(2031, 3, 2),
    ],
)
def test_what_is_no_json_value_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical(value)


def test_control_key_spells_scope_first_and_then_sorted_fields() -> None:
    scope = ScopeText('{"user_id":"u"}')

    assert control_key(scope, {}) == '{"scope":{"user_id":"u"},"fields":{}}'
    assert control_key(scope, {"b": [1.0], "a": "ä"}) == (
        '{"scope":{"user_id":"u"},"fields":{"a":"ä","b":[1.0]}}'
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (0, False),
        (1, True),
        (1.0, True),
        (0, 0.1),
        ("1", 1),
        (None, False),
        (None, 0),
        ([], {}),
        ([1], [1.0]),
        ([1], [1, 1]),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"b": 1}),
        ({"a": None}, {}),
        ({"a": [{"b": True}]}, {"a": [{"b": 1}]}),
        ("é", "e\u0301"),
        ("a", "A"),
        (2**53 + 1, float(2**53)),
    ],
)
def test_values_of_other_kind_or_content_are_not_equal(left: Any, right: Any) -> None:
    assert not jeq(left, right)
    assert not jeq(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.0, -0.0),
        ([0.0], [-0.0]),
        (1.0, 1e0),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ("\u00e9", "é"),
        (None, None),
        ([], []),
    ],
)
def test_same_json_is_equal(left: Any, right: Any) -> None:
    assert jeq(left, right)


@pytest.mark.slow
@given(values, values)
def test_equality_agrees_with_the_text(left: Any, right: Any) -> None:
    """Only 0.0 and -0.0 are equal with two texts."""

    def text(value: Any) -> str:
        return canonical(value).replace("-0.0", "0.0")

    if "-0.0" not in canonical(left) + canonical(right):
        assert jeq(left, right) == (text(left) == text(right))
    assert jeq(left, orjson.loads(canonical_bytes(left)))
