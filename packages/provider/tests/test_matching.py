from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.provider import (
    Filter,
    Json,
    Operator,
    Order,
    Position,
    equal,
    fold,
    holds,
    leaves,
    resolve,
    sort_key,
    text_score,
)

EQ, NE, IN = Operator.EQUAL, Operator.NOT_EQUAL, Operator.CONTAINS
LT, LE = Operator.LESS, Operator.LESS_OR_EQUAL
GT, GE = Operator.GREATER, Operator.GREATER_OR_EQUAL

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("typed", "folded"),
    [
        ("MiXed 123", "mixed 123"),
        ("ÉCOLE", "école"),
        ("école", "école"),
        ("straße", "straße"),
        ("STRAẞE", "straße"),
        ("ΟΔΟΣ", "οδοσ"),
        ("οδος", "οδοσ"),
        ("ΣΑΣ Σ", "σασ σ"),  # noqa: RUF001 - the letters are the point
        ("İstanbul", "i\N{COMBINING DOT ABOVE}stanbul"),
        ("ISPARTA", "isparta"),
        ("ısparta", "ısparta"),  # noqa: RUF001 - the letters are the point
        ("ДОМ", "дом"),
        ("\N{KELVIN SIGN}", "k"),
        ("日本語 😀", "日本語 😀"),
        ("Ꭰ", "ꭰ"),  # noqa: RUF001 - the letters are the point
    ],
)
def test_folding_removes_case_and_nothing_else(typed: str, folded: str) -> None:
    assert fold(typed) == folded


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("ß", "ss"),
        ("é", "e"),
        ("ı", "i"),  # noqa: RUF001 - the letters are the point
        ("ﬁ", "fi"),
    ],
)
def test_folding_keeps_apart_what_is_not_a_case_pair(left: str, right: str) -> None:
    assert fold(left) != fold(right)


@given(st.text(), st.data())
def test_folding_a_part_gives_a_part_of_the_folded_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))

    assert fold(text[start:end]) in fold(text)


@given(st.text())
def test_folding_twice_changes_nothing_more(text: str) -> None:
    assert fold(fold(text)) == fold(text)


def test_leaves_are_member_names_and_scalars_each_once() -> None:
    value: Json = {
        "title": "Red",
        "tags": ["Red", "title", ""],
        "n": [1, 1.5, -0.0, True, False, None, 12345678901234567890],
        "deep": {"title": {"a": []}},
    }

    assert leaves(value) == [
        "",
        "-0.0",
        "1",
        "1.5",
        "12345678901234567890",
        "Red",
        "a",
        "deep",
        "false",
        "n",
        "null",
        "tags",
        "title",
        "true",
    ]


@pytest.mark.parametrize(
    ("value", "expected"), [("x", ["x"]), (None, ["null"]), ([], []), ({}, [])]
)
def test_a_bare_value_is_its_own_leaf(value: Json, expected: list[str]) -> None:
    assert leaves(value) == expected


@given(values)
def test_leaves_depend_on_the_value_alone(value: Json) -> None:
    text = json.dumps(value, sort_keys=True)

    assert leaves(json.loads(text)) == leaves(value)


@pytest.mark.parametrize(
    ("needle", "score"),
    [
        ("apple", 5 / 14),
        ("APPLE", 5 / 14),
        ("e", 3 / 14),
        ("title", 5 / 14),
        ("red apple", 9 / 14),
        ("red  apple", None),
        ("appletitle", None),
        ("a%e", None),
        ("pear", None),
    ],
)
def test_the_score_is_the_share_of_the_leaves_that_the_needle_covers(
    needle: str, score: float | None
) -> None:
    assert text_score({"title": "Red apple"}, needle) == score


def test_a_whole_single_leaf_scores_one() -> None:
    assert text_score("Ἀθῆναι", "ἀθῆναι") == 1.0


def test_a_match_does_not_span_leaves_and_uses_decoded_text() -> None:
    value: Json = {"a": 'say "hi"\n\\', "b": "x\0y"}

    assert text_score(value, "ab") is None
    assert text_score(value, '"hi"\n\\') == 6 / 15
    assert text_score(value, "x\0y") == 3 / 15
    assert text_score(value, "\\n") is None


@given(values, st.text(min_size=1, max_size=4))
def test_a_score_lies_above_zero_and_at_most_at_one(value: Json, needle: str) -> None:
    score = text_score(value, needle)

    is_found = any(fold(needle) in fold(leaf) for leaf in leaves(value))
    assert (score is not None) == is_found
    assert score is None or 0 < score <= 1


DOCUMENT: Json = {
    "": "empty name",
    "a": {"b": [10, {"c": None}], "01": "named"},
    "m~n": 1,
    "o/p": 2,
    "~1": 3,
    "list": ["x"],
}


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/", "empty name"),
        ("/a/b/0", 10),
        ("/a/b/1/c", None),
        ("/a/01", "named"),
        ("/m~0n", 1),
        ("/o~1p", 2),
        ("/~01", 3),
        ("/list", ["x"]),
    ],
)
def test_a_pointer_resolves(pointer: str, expected: Json) -> None:
    assert resolve(DOCUMENT, pointer) == expected


@pytest.mark.parametrize(
    "pointer",
    [
        "/missing",
        "/a/b/2",
        "/a/b/-",
        "/a/b/-1",
        "/a/b/00",
        "/a/b/01",
        "/a/b/0x",
        "/a/b/+1",
        "/a/b/1.0",
        "/a/b/\N{ARABIC-INDIC DIGIT ONE}",
        "/a/b/" + "9" * 5000,
        "/a/b/",
        "/a/b/0/c",
        "/list/0/x",
        "//",
    ],
)
def test_a_pointer_that_names_nothing_is_a_lookup_error(pointer: str) -> None:
    with pytest.raises(LookupError):
        resolve(DOCUMENT, pointer)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (2**63, float(2**63)),
        ([1, {"a": 2.0}], [1.0, {"a": 2}]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, None),
        (True, True),
        ("é", "é"),
    ],
)
def test_equal_values(left: Json, right: Json) -> None:
    assert equal(left, right)
    assert equal(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (True, 1),
        (False, 0),
        (True, False),
        (None, 0),
        (None, False),
        ("1", 1),
        ("é", "e\N{COMBINING ACUTE ACCENT}"),
        (2**53 + 1, float(2**53)),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ([True], [1]),
        ({"a": True}, {"a": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        ([], {}),
        ("", None),
    ],
)
def test_different_values(left: Json, right: Json) -> None:
    assert not equal(left, right)
    assert not equal(right, left)


@given(values)
def test_a_value_equals_itself_after_a_round_trip(value: Json) -> None:
    assert equal(value, json.loads(json.dumps(value)))


def true_operators(actual: Json, operand: Json) -> set[Operator]:
    text = json.dumps(operand)
    return {
        o
        for o in Operator
        if holds(Filter(pointer="/v", operator=o, operand_json=text), {"v": actual})
    }


@pytest.mark.parametrize(
    ("actual", "operand", "expected"),
    [
        ("b", "b", {EQ, LE, GE, IN}),
        ("b", "a", {NE, GT, GE}),
        ("abc", "b", {NE, LT, LE, IN}),
        ("abc", "B", {NE, GT, GE}),
        ("abc", "", {NE, GT, GE, IN}),
        ("", "", {EQ, LE, GE, IN}),
        ("\uffff", "\U00010000", {NE, LT, LE}),
        (1, 1.0, {EQ, LE, GE}),
        (1, 2, {NE, LT, LE}),
        (-1.5, -2, {NE, GT, GE}),
        (2**53 + 1, float(2**53), {NE, GT, GE}),
        (2**64 - 1, 2**64 - 2, {NE, GT, GE}),
        (True, True, {EQ}),
        (True, False, {NE}),
        (None, None, {EQ}),
        ([1, 2], [1, 2.0], {EQ}),
        ([1, 2], [2, 1], {NE}),
        ([1, 2], 1.0, {NE, IN}),
        ([[1], 2], [1], {NE, IN}),
        ([None], None, {NE, IN}),
        ([{"a": 1}], {"a": 1}, {NE, IN}),
        ([True], 1, {NE}),
        (["abc"], "b", {NE}),
        ([], [], {EQ}),
        ({"a": 1}, {"a": 1.0}, {EQ}),
        ({"a": 1}, {"a": 2}, {NE}),
        ({"a": 1}, "a", {NE}),
    ],
)
def test_what_holds_of_a_value(actual: Json, operand: Json, expected: set[Operator]) -> None:
    assert true_operators(actual, operand) == expected


ONE_OF_EACH: dict[str, Json] = {
    "string": "1",
    "number": 1,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}


@pytest.mark.parametrize(("actual", "operand"), [*product(ONE_OF_EACH, repeat=2)])
def test_values_of_different_types_are_only_unequal(actual: str, operand: str) -> None:
    expected = true_operators(ONE_OF_EACH[actual], ONE_OF_EACH[operand])

    assert expected == {NE} or actual == operand


@pytest.mark.parametrize(("kind", "operator"), [*product(ONE_OF_EACH, Operator)])
def test_nothing_holds_of_a_missing_member(kind: str, operator: Operator) -> None:
    condition = Filter(
        pointer="/v/missing", operator=operator, operand_json=json.dumps(ONE_OF_EACH[kind])
    )

    assert not holds(condition, {"v": ONE_OF_EACH[kind]})


@given(values, values)
def test_exactly_one_of_equal_and_not_equal_holds(actual: Json, operand: Json) -> None:
    found = true_operators(actual, operand)

    assert (EQ in found) != (NE in found)
    assert (LE in found and GE in found) <= (EQ in found)


def position(score: float, time: int, type_: str, id_: str) -> Position:
    return Position(score=score, recorded_at_unix_ms=time, type=type_, id=id_)


A = position(0.5, 10, "x", "b")
B = position(0.9, 10, "x", "a")
C = position(0.5, 30, "y", "a")
D = position(0.5, 10, "w", "c")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.RELEVANCE, [B, C, D, A]),
        (Order.NEWEST, [C, D, B, A]),
        (Order.OLDEST, [D, B, A, C]),
        (Order.ID_ASCENDING, [B, C, A, D]),
    ],
)
def test_each_order_has_its_key(order: Order, expected: list[Position]) -> None:
    assert sorted([A, B, C, D], key=lambda p: sort_key(order, p)) == expected


def test_descending_ids_are_ascending_ids_reversed() -> None:
    ordered = sorted([A, B, C, D], key=lambda p: sort_key(Order.ID_DESCENDING, p), reverse=True)

    assert ordered == [D, A, C, B]


@given(st.sampled_from(Order), st.text(), st.text(), st.text(), st.text())
def test_two_entities_never_have_the_same_key(
    order: Order, type_a: str, id_a: str, type_b: str, id_b: str
) -> None:
    left, right = position(0.0, 1, type_a, id_a), position(0.0, 1, type_b, id_b)

    is_same = (type_a, id_a) == (type_b, id_b)
    assert (sort_key(order, left) == sort_key(order, right)) == is_same
