from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from patchouli.backend.config.places import Place
from patchouli.backend.config.reading import DEPTH_LIMIT, JsonReadError, read_json

# text, line, column of the complaint
BROKEN: list[tuple[str, int, int]] = [
    ("", 1, 1),
    ("  \n ", 2, 2),
    ("\ufeff{}", 1, 1),
    ("{", 1, 2),
    ("[1,", 1, 4),
    ("[1,]", 1, 3),
    ("[1 2]", 1, 4),
    ("[,1]", 1, 2),
    ('{"a":1,}', 1, 7),
    ('{"a" 1}', 1, 6),
    ('{"a":}', 1, 6),
    ("{a:1}", 1, 2),
    ("{'a':1}", 1, 2),
    ('{"a":1 "b":2}', 1, 8),
    ("{} {}", 1, 4),
    ("1 2", 1, 3),
    ('"abc', 1, 1),
    ('"a\tb"', 1, 1),
    ('"a\nb"', 1, 1),
    (r'"\x"', 1, 2),
    (r'"\u12"', 1, 3),
    (r'"\ud800"', 1, 1),
    (r'["ok", "\udc00x"]', 1, 8),
    ("nul", 1, 1),
    ("True", 1, 1),
    ("NaN", 1, 1),
    ("[Infinity]", 1, 2),
    ("-Infinity", 1, 1),
    ("01", 1, 1),
    ("+1", 1, 1),
    ("1.", 1, 1),
    (".5", 1, 1),
    ("1e", 1, 1),
    ("--1", 1, 1),
    ("0x10", 1, 1),
    ("1_000", 1, 1),
    ("1e999", 1, 1),
    ("-1e999", 1, 1),
    ("1" + "0" * 400, 1, 1),
    ("\u0661", 1, 1),
    ("/* note */ {}", 1, 1),
    ('{\n  "a": 1,\n  // note\n}', 3, 3),
    ("[" * (DEPTH_LIMIT + 1), 1, DEPTH_LIMIT + 1),
    ('{\r\n "a": tru\r\n}', 2, 7),
    ("\u00a0{}", 1, 1),
]


@pytest.mark.parametrize(("text", "line", "column"), BROKEN)
def test_complaint_stands_where_the_text_breaks(text: str, line: int, column: int) -> None:
    with pytest.raises(JsonReadError) as caught:
        read_json(text)

    assert (caught.value.position.line, caught.value.position.column) == (line, column)
    assert caught.value.problem
    assert caught.value.remedy.endswith(".")


def test_invalid_utf8_is_located_in_characters() -> None:
    with pytest.raises(JsonReadError) as caught:
        read_json('["ä",\n "é'.encode() + b'\xff"]')

    assert (caught.value.position.line, caught.value.position.column) == (2, 4)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(JsonReadError):
        read_json('{"a": 1}'.encode(encoding))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("-0.0", -0.0),
        ("1.0", 1.0),
        ("1E2", 100.0),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551616", 1.8446744073709552e19),
        ("-9223372036854775809", -9.223372036854775808e18),
        ("100000000000000000000000000000", 1e29),
        ('"\\u00e9\\n\\/\\ud83d\\ude00"', "é\n/😀"),
        ('"\x7f\u2028"', "\x7f\u2028"),
        ("[[], {}, [[1]]]", [[], {}, [[1]]]),
        (' {"a" : [ true , false , null ] } \r\n', {"a": [True, False, None]}),
        ("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT, None),
    ],
)
def test_values_are_read_as_written(text: str, value: Any) -> None:
    read = read_json(text).value

    if value is not None:
        assert read == value
        assert type(read) is type(value)


def test_repeated_members_are_reported_and_the_last_one_counts() -> None:
    document = read_json('{"a": {"x": 1},\n "b": 2,\n "a": {"y": {"z": 3, "z": 4}}}')

    assert document.value == {"a": {"y": {"z": 4}}, "b": 2}
    assert [(place.dotted, offset) for place, offset in document.duplicates] == [
        ("a", 26),
        ("a.y.z", 46),
    ]
    assert document.position(Place(("a", "y"))).line == 3
    assert document.position(Place(("a", "x"))) == document.position(Place(("a",)))


def test_absent_place_is_shown_at_its_nearest_ancestor() -> None:
    document = read_json('{"a":\n [1,\n  2]}')

    assert document.position(Place(("a", 1))).line == 3
    assert document.position(Place(("a", 7, "x"))).line == 2
    assert document.position(Place(("b",))).line == 1


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(value=values, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
def test_reads_what_the_standard_library_writes(
    *, value: Any, ensure_ascii: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    document = read_json(text)

    assert json.dumps(document.value) == json.dumps(value)
    assert read_json(text.encode()).value == document.value
    assert document.duplicates == ()


def number_of_64_bits(text: str) -> int | float:
    number = int(text)
    return number if -(2**63) <= number < 2**64 else float(text)


@given(st.text(max_size=40) | st.binary(max_size=40))
@example("20000000000000000000")
def test_accepts_nothing_that_the_standard_library_refuses(source: str | bytes) -> None:
    try:
        document = read_json(source)
    except JsonReadError:
        return

    expected = json.loads(source, parse_int=number_of_64_bits)
    assert json.dumps(document.value) == json.dumps(expected)
