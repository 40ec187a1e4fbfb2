"""SQLite's walk and Python's find the same leaves at the same places, and equals meet in tokens."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import compress

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.provider import Json, equal, leaves
from patchouli.provider_sqlite.index_leaves import (
    CONTAINER,
    EXTRACT,
    PART,
    SEPARATOR,
    Shape,
    leaves_asked,
    places_of,
    shape_of,
    shape_of_nodes,
    tokens_of,
    walk,
)

NAMES = (
    "a",
    "A",
    "b c",
    "0",
    "12",
    "",
    "~",
    "/",
    "é",
    "数",
    'q"',
    "n\n",
    "x_y",
    "9a",
    "\\",
    "a.b",
    "[0]",
    "$",
)
numbers = st.one_of(
    st.integers(-(2**64), 2**64),
    st.floats(allow_nan=False),
    st.sampled_from([0.1, 1e15, 1e16, 1e-4, 9.9e-5, 0.0, -0.0, 2.0**53, 1.0, 123456.789]),
    st.floats(-1e6, 1e6).map(lambda x: round(x, 3)),
)
scalars = st.one_of(st.text(max_size=60), numbers, st.none(), st.booleans())
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


def extract(text: str) -> tuple[str, str] | None:
    """Return the two lists that SQLite makes, or None where it leaves the value to Python."""
    with closing(apsw.Connection(":memory:")) as connection:
        row: str = connection.execute(f"SELECT {EXTRACT} FROM (SELECT ? AS body)", (text,)).get  # noqa: S608 - of constants
    paths, _, nodes = row.partition(PART)
    return (paths, nodes) if nodes and PART not in nodes else None


def itself(place: str) -> str:
    return f"{place}="


def described(shape: Shape, nodes: list[str]) -> tuple[frozenset[str], list[str], set[str]]:
    tokens = tokens_of(shape.prefixes, compress(nodes, shape.is_leaf)).split(SEPARATOR)
    return shape.names, sorted(tokens), set(nodes) - {CONTAINER}


@given(values)
def test_both_walks_find_the_same(value: Json) -> None:
    extracted = extract(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    if extracted is None:
        return
    paths, nodes = extracted
    walked = walk(json.loads(json.dumps(value)))

    from_sqlite = described(shape_of(paths, itself), nodes.split(SEPARATOR))
    from_python = described(shape_of_nodes(walked, itself), [node.leaf for node in walked])

    assert from_sqlite == from_python
    names, _, scalars_found = from_sqlite
    assert sorted(names | scalars_found) == leaves(value)


@pytest.mark.parametrize(
    "text",
    ['"\\u001f"', '{"\\u00e9":1}', "1e16", "0.00001", "0.30000000000000004", "-0.0", "-0e0",
     "18446744073709551615", "1e999", "[1,2e-9]"],
)  # fmt: skip
def test_what_sqlite_spells_differently_is_left_to_python(text: str) -> None:
    assert extract(text) is None


@pytest.mark.parametrize(
    "text", ["1", "-7", "0.5", "0.0", "1.0", "123456.789", "100000000.0", '"\\n"', "{}"]
)
def test_usual_values_are_not(text: str) -> None:
    assert extract(text) is not None


@given(values, values)
def test_equal_values_have_the_tokens_that_are_asked_for(stored: Json, operand: Json) -> None:
    for value in (stored, _respelled(stored)):
        for other in (operand, _respelled(value)):
            if not equal(value, other):
                continue
            nodes = walk(value)
            shape = shape_of_nodes(nodes, itself)
            at_leaves = [node.leaf for node in nodes if not node.is_inner]
            for is_long in (False, True):
                listed = tokens_of(shape.prefixes, at_leaves, may_be_long=is_long)
                tokens = listed.split(SEPARATOR)
                for place, spellings in leaves_asked(other):
                    asked = [_element(place) + "=" + leaf for leaf in spellings]
                    assert any(token in asked for token in tokens) or SEPARATOR in "".join(asked)


def _element(place: str) -> str:
    return place[: place.rindex("[")] + "[]" if place.endswith("]") else place


def _respelled(value: Json) -> Json:
    """Return an equal value with numbers of the other kind."""
    if isinstance(value, list):
        return [_respelled(element) for element in value]
    if isinstance(value, dict):
        return {name: _respelled(member) for name, member in reversed(value.items())}
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return float(value) if float(value) == value else value
    return int(value) if value.is_integer() else value


@pytest.mark.parametrize(
    ("pointer", "places"),
    [
        ("/a", ['."a"']),
        ("/a/b", ['."a"."b"']),
        ("/a~1b/~0", ['."a/b"."~"']),
        ("/a/0", ['."a"."0"', '."a"[0]']),
        ("/00", ['."00"']),
        ("/", ['.""']),
        ("/1/2/3/4", []),
    ],
)
def test_a_pointer_may_mean_several_places(pointer: str, places: list[str]) -> None:
    assert places_of(pointer) == places
