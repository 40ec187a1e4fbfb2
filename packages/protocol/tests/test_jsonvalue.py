from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.protocol import (
    IntegerRangeError,
    JsonParseError,
    JsonValue,
    jsonvalue,
    parse_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("walk")

EMOJI = "\N{GRINNING FACE}"


@pytest.fixture(scope="module", params=["one by one", "by levels"])
def walk(request: pytest.FixtureRequest) -> Iterator[None]:
    """Judge every text in the way of short ones, and in that of long ones."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "by levels":
            patch.setattr(jsonvalue, "_LONG_TEXT", 0)
        yield


def oracle(data: bytes) -> JsonValue:
    """Parse with the standard library, and refuse by plain means what it lets pass."""

    def refuse(text: str) -> NoReturn:
        raise ValueError(text)

    def integer(text: str) -> int:
        number = int(text)
        if not -(2**63) <= number < 2**64:
            raise ValueError(text)
        return number

    def double(text: str) -> float:
        number = float(text)
        if math.isinf(number):
            raise ValueError(text)
        return number

    value = json.loads(
        data.decode("utf-8"), parse_constant=refuse, parse_int=integer, parse_float=double
    )
    if depth(value) > 127:
        raise ValueError("too deep")
    json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no UTF-8
    return value


def depth(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def spelled(value: JsonValue) -> str:
    """Return a text in which equal values of different types differ, and so does -0.0 from 0.0."""
    return repr(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"{}", {}),
        (b' [1, 2.5, true, false, null, "x"]\r', [1, 2.5, True, False, None, "x"]),
        (b"-9223372036854775808", -(2**63)),
        (b"18446744073709551615", 2**64 - 1),
        (b"-0", 0),
        (b"-0.0", -0.0),
        (b"1e1", 10.0),
        (b"1E+2", 100.0),
        (b"0e999", 0.0),
        (b"1e-999", 0.0),
        (b"1.7976931348623157e308", 1.7976931348623157e308),
        (b"1" + b"0" * 308 + b".0", 1e308),
        (b'"\\ud83d\\ude00"', EMOJI),
        (b'"\xf0\x9f\x98\x80"', EMOJI),
        (b'"\\u0000\x7f"', "\x00\x7f"),
        (b'"1e999 18446744073709551616 NaN [[[["', "1e999 18446744073709551616 NaN [[[["),
    ],
)
def test_values_of_the_profile_are_read(text: bytes, value: JsonValue) -> None:
    assert spelled(parse_json(text)) == spelled(value)


def test_text_is_read_like_its_bytes() -> None:
    assert parse_json('{"k":"\u00e4"}') == {"k": "\u00e4"}


@pytest.mark.clause("json.syntax")
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"nul",
        b"True",
        b"{}x",
        b"1 2",
        b"[1,]",
        b'{"a":1,}',
        b'{"a" 1}',
        b"{a:1}",
        b"'a'",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"-",
        b"0x10",
        b"/**/1",
        b'"a',
        b'"\\x"',
        b'"\\u12"',
        b'"a\tb"',
        b'"a\nb"',
        b'"\x00"',
        b"\x00",
        b"\x0b1",
        b"1\x0c",
        b"\xc2\xa01",
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(JsonParseError) as caught:
        parse_json(text)
    assert caught.value.kind == "json"


@pytest.mark.clause("json.utf8")
@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b'"\xff"',
        b'{"\xff":1}',
        b"{}\xff",
        b'"\\n\xff"',
        b'"\xed\xa0\x80"',  # a surrogate
        b'"\xc0\x80"',  # U+0000 in two bytes
        b'"\xf4\x90\x80\x80"',  # beyond U+10FFFF
        b'"\xe2\x82"',  # cut off
    ],
)
def test_invalid_utf8_is_told_apart(text: bytes) -> None:
    with pytest.raises(JsonParseError) as caught:
        parse_json(text)
    assert caught.value.kind == "utf8"


@pytest.mark.clause("json.utf8")
def test_a_byte_order_mark_is_refused() -> None:
    with pytest.raises(JsonParseError) as caught:
        parse_json(b"\xef\xbb\xbf{}")
    assert caught.value.kind == "json"


def test_a_lone_surrogate_in_text_is_not_utf8() -> None:
    with pytest.raises(JsonParseError) as caught:
        parse_json('"\ud800"')
    assert caught.value.kind == "utf8"


@pytest.mark.clause("json.finite")
@pytest.mark.parametrize(
    "number",
    [
        "NaN",
        "-NaN",
        "Infinity",
        "-Infinity",
        "inf",
        "1e999",
        "-1e999",
        "1e309",
        "1.7976931348623159e308",
        "1E+0000000400",
        "1" + "0" * 309 + ".0",
        "1" * 400 + "e1",
        "1e400000000000000000000",
    ],
)
@pytest.mark.parametrize("place", ["%s", "[%s]", '{"a":{"b":[1,%s]}}', "[[],{},[0,%s,1]]"])
def test_numbers_that_are_not_finite_are_refused(number: str, place: str) -> None:
    with pytest.raises(JsonParseError):
        parse_json(place % number)


@pytest.mark.clause("json.integers")
@pytest.mark.parametrize(
    "number",
    ["18446744073709551616", "-9223372036854775809", "9" * 30, "1" + "0" * 4000],
)
@pytest.mark.parametrize("place", ["%s", "[%s]", '{"a":{"b":[1,%s]}}', "[[],{},[0,%s,1]]"])
def test_integers_beyond_64_bits_are_refused_by_name(number: str, place: str) -> None:
    with pytest.raises(IntegerRangeError):
        parse_json(place % number)


@pytest.mark.clause("json.integers")
def test_an_integer_of_any_length_is_refused() -> None:
    with pytest.raises(JsonParseError):
        parse_json(b"1" * 1_000_000)


@pytest.mark.parametrize("item", ["1e999", "-1e999", "18446744073709551616", "1e308"])
@pytest.mark.parametrize("filler", ["0", "0.5", '"x"', "1e308"])
def test_long_lists_hide_nothing(item: str, filler: str) -> None:
    text = "[" + ",".join([filler] * 100 + [item] + [filler] * 100) + "]"

    if item == "1e308":  # finite, though the sum of such a list may not be
        assert parse_json(text) == json.loads(text)
    else:
        with pytest.raises(JsonParseError):
            parse_json(text)


@pytest.mark.clause("json.surrogates")
@pytest.mark.parametrize(
    "escape", [r"\ud800", r"\udc00", r"\ud800\ud800", r"\ude00\ud83d", r"\ud83dx", r"\ud83d\n"]
)
@pytest.mark.parametrize("place", ['"%s"', '{"%s":1}', '["a",{"b":"c%s"}]'])
def test_half_a_surrogate_pair_is_refused(escape: str, place: str) -> None:
    with pytest.raises(JsonParseError):
        parse_json(place % escape)


@pytest.mark.clause("json.depth")
@pytest.mark.parametrize(
    ("opening", "inner", "closing"),
    [
        ("[", "", "]"),
        ("[", "1", "]"),
        ('{"a":', "1", "}"),
        ('{"a":', "{}", "}"),
        ("[[],", "1", ",{}]"),
        ("[" + "0," * 40, "0", "]"),
    ],
)
def test_nesting_ends_at_127_levels(opening: str, inner: str, closing: str) -> None:
    levels = 127 - ((inner == "{}") or ("{}" in closing))
    deepest = opening * levels + inner + closing * levels
    deeper = opening * (levels + 1) + inner + closing * (levels + 1)

    assert depth(parse_json(deepest)) == 127
    with pytest.raises(JsonParseError):
        parse_json(deeper)


@pytest.mark.clause("json.depth")
@pytest.mark.parametrize("levels", [10_000, 500_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_very_deep_nesting_is_refused_and_does_no_harm(levels: int, opening: str) -> None:
    with pytest.raises(JsonParseError):
        parse_json(opening * levels)


@pytest.mark.parametrize("number", [1000, 100_000])
def test_many_shallow_containers_are_no_depth(number: int) -> None:
    assert len(parse_json("[" + ",".join(['{"a":[1]}'] * number) + "]")) == number


@pytest.mark.clause("json.duplicates")
def test_the_last_of_equal_names_counts() -> None:
    assert parse_json(b'{"a":1,"b":2,"a":{"c":3,"c":4}}') == {"a": {"c": 4}, "b": 2}


@pytest.mark.clause("json.duplicates")
def test_a_member_that_is_replaced_still_has_to_be_json() -> None:
    with pytest.raises(JsonParseError):
        parse_json(b'{"a":NaN,"a":1}')


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


@given(value=values, ensure_ascii=st.booleans())
def test_every_value_comes_back(value: JsonValue, *, ensure_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii).encode()

    assert spelled(parse_json(text)) == spelled(value)


fragments = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'{}[],:"\\ -+.0123456789eEu\t\r\n/x'),
        *(b"null", b"true", b"false", b"NaN", b"Infinity", b"1e308", b"e309", b"0.1", b"-0"),
        *(b'"a"', b'"a":', b"\\u00e4", b"\\ud83d", b"\\ude00", b"\xc3\xa4", b"\xff", b"\xed\xa0"),
        *(b"9223372036854775807", b"18446744073709551616", b"[" * 60, b"]" * 60, b'{"k":'),
    ]
)


@given(st.lists(fragments, max_size=12).map(b"".join))
def test_texts_from_fragments_are_judged_like_the_oracle(text: bytes) -> None:
    assert_judged_like_the_oracle(text)


@given(values, st.data())
def test_damaged_texts_are_judged_like_the_oracle(value: JsonValue, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    at = data.draw(st.integers(0, len(text)))
    dropped = data.draw(st.integers(0, 3))

    assert_judged_like_the_oracle(text[:at] + data.draw(fragments) + text[at + dropped :])


def assert_judged_like_the_oracle(text: bytes) -> None:
    try:
        expected: str | None = spelled(oracle(text))
    except ValueError:
        expected = None

    if expected is None:
        with pytest.raises(JsonParseError):
            parse_json(text)
    else:
        assert spelled(parse_json(text)) == expected
