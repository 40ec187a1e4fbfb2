"""Conditions in SQL, and those on the raw text, never leave out a value that matches."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import cast

import apsw
from hypothesis import example, given
from hypothesis import strategies as st
from patchouli.provider import Filter, Json, Operator, fold, holds, text_score
from patchouli.provider_sqlite import search_filters, search_fresh

NAMES = ("a", "0", "1", "", "~", "/", "é", 'q"', "\\", "b c", "n\n", "a.b", "[0]", "$", "#")
numbers = st.one_of(
    st.sampled_from(
        [
            0,
            1,
            -1,
            2**53,
            2**53 + 1,
            -(2**63),
            2**63,
            2**64 - 1,
            0.1,
            1.0,
            -0.0,
            1e16,
            1e300,
            5e-324,
        ]
    ),
    st.integers(),
    st.floats(allow_nan=False),
)
scalars = st.one_of(st.text('aé\x00\n"\\数', max_size=4), numbers, st.none(), st.booleans())
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=8,
)
pointers = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(
    lambda names: "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
)


def passes(filter_: Filter, text: str) -> bool:
    condition, bindings = search_filters.conditions((filter_,), "v.body")
    with closing(apsw.Connection(":memory:")) as connection:
        sql = f"SELECT 1 FROM (SELECT :body AS body) AS v WHERE 1{condition}"  # noqa: S608 - of our own condition
        return connection.execute(sql, cast("dict[str, str]", bindings | {"body": text})).get == 1


@given(values, pointers, st.sampled_from(list(Operator)), scalars, st.data())
def test_a_condition_lets_every_match_pass(
    value: Json, pointer: str, operator: Operator, operand: Json, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    near = list(_near(value))
    chosen = data.draw(st.sampled_from([(pointer, operand), *near, *near]))
    filter_ = Filter(
        pointer=chosen[0], operator=operator, operand_json=json.dumps(chosen[1], ensure_ascii=False)
    )

    if holds(filter_, json.loads(text)):
        assert passes(filter_, text)


def _near(value: Json, at: str = "") -> list[tuple[str, Json]]:
    found: list[tuple[str, Json]] = [(at, value)] if at else []
    if isinstance(value, dict):
        for name, member in value.items():
            found += _near(member, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, element in enumerate(value):
            found += _near(element, f"{at}/{index}")
    return found


def test_a_condition_excludes_what_it_can() -> None:
    def excludes(operator: Operator, operand: Json, value: Json) -> bool:
        filter_ = Filter(pointer="/a", operator=operator, operand_json=json.dumps(operand))
        return not passes(filter_, json.dumps({"a": value}))

    assert excludes(Operator.EQUAL, 5, 6)
    assert excludes(Operator.EQUAL, "x", "y")
    assert excludes(Operator.EQUAL, "5", 5)
    assert excludes(Operator.NOT_EQUAL, 5, 5.0)
    assert excludes(Operator.NOT_EQUAL, None, None)
    assert excludes(Operator.GREATER, 5, 4)
    assert excludes(Operator.LESS, "b", "c")
    assert excludes(Operator.LESS, 5, "4")
    assert excludes(Operator.CONTAINS, "x", "abc")
    assert excludes(Operator.CONTAINS, 5, "5")


def test_a_letter_that_stands_for_itself_comes_from_no_other() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        folded = fold(character)
        if folded != character and character not in "\N{KELVIN SIGN}\u0130":
            for letter in folded:
                assert character.isascii() or not search_fresh.stands_for_itself(letter), code


texts = st.text(
    st.sampled_from('akiKI\N{KELVIN SIGN}\u0130\u0307éÉ数"\\\n 0.5e+1Infty茶\u017fß'), max_size=6
)


@given(st.one_of(texts, st.floats(), st.integers(), st.lists(texts)), texts.filter(bool))
@example("\N{KELVIN SIGN}", "k")
@example("\u0130", "i")
@example(1e16, "1e+16")
@example(1e999, "infin")
@example(100000.0, "00.0")
def test_the_condition_on_raw_text_lets_every_match_pass(value: Json, needle: str) -> None:
    text = json.dumps(value, ensure_ascii=False).replace("Infinity", "1e999").replace("NaN", "0")
    condition, bindings = search_fresh.text_condition(needle)
    with closing(apsw.Connection(":memory:")) as connection:
        sql = f"SELECT 1 FROM (SELECT :value AS value) AS e WHERE 1{condition}"  # noqa: S608 - of our own condition
        is_let_pass = connection.execute(
            sql, cast("dict[str, str]", bindings | {"value": text})
        ).get

    if text_score(json.loads(text), needle) is not None:
        assert is_let_pass
