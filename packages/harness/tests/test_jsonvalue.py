"""Lossless JSON: what is taken, what is refused and where, how values compare."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import re
from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.harness import NotJson, encode_json, json_equal, require_json, snapshot, trim

if TYPE_CHECKING:
    from collections.abc import Callable


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


CYCLE: list[Any] = []
CYCLE.append({"again": CYCLE})

REFUSED: list[tuple[object, str]] = [
    (math.nan, ""),
    ({"a": [1, math.inf]}, "/a/1"),
    ([-0.0], "/0"),
    ([2**64], "/0"),
    ([-(2**63) - 1], "/0"),
    ({"a/b": {"~": b""}}, "/a~1b/~0"),
    ({"a": {1: "x"}}, "/a"),
    ({"\ud800": 1}, ""),
    (["\udfff"], "/0"),
    ([Colour.RED], "/0"),
    ([Text("x")], "/0"),
    ({Text("x"): 1}, ""),
    ([decimal.Decimal(1)], "/0"),
    ([datetime.date(2020, 1, 1)], "/0"),
    ([{1, 2}], "/0"),
    ([OrderedDict()], "/0"),
    (object(), ""),
    (CYCLE, "/0/again"),
    ([0, {"first": object()}, object()], "/1/first"),
]


def same_in_every_process(value: object) -> str:
    """Return a name for a case that has no address in it, which would differ between workers."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize("check", [snapshot, require_json])
@pytest.mark.parametrize(("value", "path"), REFUSED, ids=same_in_every_process)
def test_what_is_no_json_is_refused_with_its_place(
    check: Callable[..., object], value: object, path: str
) -> None:
    with pytest.raises(NotJson) as caught:
        check(value)
    assert caught.value.path == path

    with pytest.raises(NotJson) as caught:
        check(value, path="/data")
    assert caught.value.path == f"/data{path}"


@pytest.mark.parametrize("check", [snapshot, require_json])
def test_the_depth_bound_is_512(check: Callable[..., object]) -> None:
    deep: Any = "leaf"
    for level in range(512):
        deep = [deep] if level % 2 else {"m": deep}

    check(deep)
    with pytest.raises(NotJson, match="512") as caught:
        check([deep])

    assert caught.value.path.count("/") == 512


def test_a_value_far_too_deep_is_refused_and_overflows_nothing() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(NotJson):
        snapshot(deep)
    with pytest.raises(NotJson):
        require_json(deep)
    while deep:  # from the outside in, so that the interpreter does not recurse either
        deep = deep.pop()


def shared(leaf: object, levels: int) -> Any:
    """Return a value of few containers whose text would have 2**levels leaves."""
    value: Any = [leaf]
    for level in range(levels - 1):
        value = [value, value] if level % 2 else {"a": value, "b": value}
    return value


MANY = [0] * 10_001  # beside these a container is remembered from its first place on


def test_what_occurs_in_many_places_is_checked_once() -> None:
    require_json(shared(1, 512))  # at one level more for each place, it would never end
    require_json({"deep first": shared(1, 300), "again": [shared(1, 300)]})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (shared(b"", 4), "/a/0/a/0"),
        ([shared(1, 500), {1, 2}], "/1"),
        ([shared(1, 500), shared({1}, 3)], "/1/0/a/0"),
        (shared(1, 513), "/0/a" * 256),
    ],
)
def test_a_refusal_in_what_is_shared_names_the_first_place(value: Any, path: str) -> None:
    with pytest.raises(NotJson) as caught:
        require_json(value)

    assert caught.value.path == path


@pytest.mark.parametrize("beside", [[], MANY])
def test_a_container_that_is_fine_at_first_may_be_too_deep_later(beside: list[int]) -> None:
    tail = shared(1, 510)

    require_json([beside, [tail], tail])
    with pytest.raises(NotJson, match="512") as caught:
        require_json([beside, [[tail]], tail])

    assert caught.value.path.startswith("/1/0/0/")
    assert caught.value.path.count("/") == 512


@pytest.mark.parametrize("beside", [[], MANY])
def test_a_cycle_is_found_behind_what_is_shared(beside: list[int]) -> None:
    inner: list[Any] = [1]
    outer: dict[str, Any] = {"a": inner, "b": inner}
    inner.append([outer, outer])

    with pytest.raises(NotJson, match="holds itself") as caught:
        require_json([beside, outer, outer])

    assert caught.value.path == "/1/a/1/0"
    inner.clear()


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=6, max_size=6))
def test_whatever_is_shared_only_what_holds_itself_is_refused(edges: list[list[int]]) -> None:
    nodes: list[Any] = [[] if number % 2 else {} for number in range(6)]
    for node, targets in zip(nodes, edges, strict=True):
        for target in targets:
            if isinstance(node, list):
                node.append(nodes[target])
            else:
                node[f"m{len(node)}"] = nodes[target]

    def reaches_itself(number: int, open_nodes: frozenset[int]) -> bool:
        return number in open_nodes or any(
            reaches_itself(target, open_nodes | {number}) for target in edges[number]
        )

    if reaches_itself(0, frozenset()):
        for value in (nodes[0], [MANY, nodes[0]]):
            with pytest.raises(NotJson, match="holds itself"):
                require_json(value)
    else:
        require_json(nodes[0])
        require_json([MANY, nodes[0]])
    for node in nodes:
        node.clear()


def test_a_snapshot_is_plain_and_shares_nothing() -> None:
    inner = [1, 2]
    value = MappingProxyType({"a": (inner, inner), "b": {"c": inner}})

    copy: Any = snapshot(value)
    inner.append(3)

    assert copy == {"a": [[1, 2], [1, 2]], "b": {"c": [1, 2]}}
    assert type(copy) is dict
    assert type(copy["a"]) is list
    assert copy["a"][0] is not copy["a"][1]
    require_json(copy)


@pytest.mark.parametrize(("value", "path"), [((1,), ""), ([MappingProxyType({})], "/0")])
def test_what_is_only_checked_must_be_plain_already(value: object, path: str) -> None:
    with pytest.raises(NotJson) as caught:
        require_json(value)

    assert caught.value.path == path


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (True, 1, False),
        (False, 0.0, False),
        (1, 1.0, True),
        (2**53 + 1, float(2**53), False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ({"a": None}, {"b": None}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ([], {}, False),
        (None, False, False),
        ("1", 1, False),
        ("é", "e\u0301", False),
        ([[True]], [[1]], False),
        ((1, MappingProxyType({"a": ()})), [1, {"a": []}], True),
        ([1], 1, False),
        (1, [1], False),
    ],
)
def test_json_equality(a: object, b: object, *, same: bool) -> None:
    assert json_equal(a, b) is same
    assert json_equal(b, a) is same


def test_equality_of_deep_values_does_not_recurse() -> None:
    one: Any = 1
    other: Any = 1.0
    for _ in range(500):
        one, other = [one], [other]

    assert json_equal(one, other)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: str(x) != "-0.0")
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4), below, max_size=4
        )
    ),
    max_leaves=20,
)


@given(VALUES)
def test_json_survives_a_copy_and_its_text(value: Any) -> None:
    copy = snapshot(value)
    require_json(value)

    assert repr(copy) == repr(value)  # key order and the kinds of numbers included
    assert repr(json.loads(encode_json(copy))) == repr(value)
    assert json_equal(copy, value)


@given(VALUES, VALUES)
def test_equality_is_that_of_a_canonical_text(a: Any, b: Any) -> None:
    def canonical(value: Any) -> Any:
        match value:
            case dict():
                return ("object", sorted((key, canonical(item)) for key, item in value.items()))
            case list():
                return ("array", [canonical(item) for item in value])
            case bool():
                return ("bool", value)
            case int() | float():
                return ("number", value)
            case _:
                return (type(value).__name__, value)

    try:
        same = canonical(a) == canonical(b)
    except TypeError:  # members that cannot be sorted differ in kind
        same = False

    assert json_equal(a, b) is same


def test_text_is_compact_and_keeps_order_and_letters() -> None:
    assert encode_json({"b": ["é", 1.5], "a": None}) == '{"b":["é",1.5],"a":null}'
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_json(math.nan)


def test_trim_takes_the_unicode_property_and_the_byte_order_mark() -> None:
    white = "\t\n\v\f\r \x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"

    assert trim(f"{white}a b{white}") == "a b"
    assert trim(white) == ""
    assert trim("\x1c\x1d\x1e\x1f") == "\x1c\x1d\x1e\x1f"
    assert trim("\u200b") == "\u200b"
