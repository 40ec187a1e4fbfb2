from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import UNBOUND, InvalidRequestError, Selector, load_policy
from patchouli.backend.pointers import compile_pointer, is_member_pointer, resolve
from patchouli.backend.policy.bindings import AliasBinder

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [
        ("/", ("",)),
        ("/a", ("a",)),
        ("/a/b", ("a", "b")),
        ("//", ("", "")),
        ("/a/", ("a", "")),
        ("/~0", ("~",)),
        ("/~1", ("/",)),
        ("/~01", ("~1",)),
        ("/~10", ("/0",)),
        ("/a~1b/c~0d", ("a/b", "c~d")),
        ("/ ", (" ",)),
        ("/%20", ("%20",)),
        ("/é", ("é",)),
    ],
)
def test_pointer_is_split_and_unescaped(pointer: str, tokens: tuple[str, ...]) -> None:
    assert is_member_pointer(pointer)
    assert compile_pointer(pointer) == tokens


@pytest.mark.parametrize("pointer", ["", "a", "a/b", "#/a", "/~", "/~2", "/a~/b", "/~a", " /a"])
def test_pointer_is_refused(pointer: str) -> None:
    assert not is_member_pointer(pointer)


VALUE: dict[str, Any] = {
    "": {"": 1},
    "a": {"b": [10, {"c": None}, []]},
    "a/b": 2,
    "~": 3,
    "0": "zero",
    "s": "text",
    "n": None,
    "list": list(range(12)),
}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/", {"": 1}),
        ("//", 1),
        ("/a/b/0", 10),
        ("/a/b/1/c", None),
        ("/a/b/2", []),
        ("/a~1b", 2),
        ("/~0", 3),
        ("/0", "zero"),
        ("/n", None),
        ("/list/10", 10),
        ("/x", UNBOUND),
        ("/a/x", UNBOUND),
        ("/a/b/3", UNBOUND),
        ("/a/b/-", UNBOUND),
        ("/a/b/-1", UNBOUND),
        ("/a/b/+0", UNBOUND),
        ("/a/b/00", UNBOUND),
        ("/a/b/01", UNBOUND),
        ("/a/b/0.0", UNBOUND),
        ("/a/b/", UNBOUND),
        ("/a/b/ 0", UNBOUND),
        ("/a/b/0\n", UNBOUND),
        ("/a/b/\N{ARABIC-INDIC DIGIT ZERO}", UNBOUND),
        ("/a/b/\N{SUPERSCRIPT TWO}", UNBOUND),
        ("/a/b/" + "9" * 5000, UNBOUND),
        ("/a/b/18446744073709551616", UNBOUND),
        ("/s/0", UNBOUND),
        ("/s/length", UNBOUND),
        ("/n/x", UNBOUND),
        ("/a/b/0/x", UNBOUND),
    ],
)
def test_pointer_is_resolved(pointer: str, value: Any) -> None:
    found = resolve(VALUE, compile_pointer(pointer))

    assert found is UNBOUND if value is UNBOUND else found == value
    assert type(found) is type(value)


@pytest.fixture
def binder(edited_text: Callable[..., str]) -> Callable[..., AliasBinder]:
    def make(*edits: tuple[str, Any]) -> AliasBinder:
        return AliasBinder(load_policy(edited_text(*edits)).policy)

    return make


def test_present_and_valid_values_are_bound(binder: Callable[..., AliasBinder]) -> None:
    meta: dict[str, Any] = {
        "ctx": {"team": "north", "other": 1},
        "seen": ["v1"],
        "state": "",
        "unknown": {"deep": []},
    }

    assert binder().bind(meta) == {"team": "north", "bases": ["v1"], "marker": ""}


@pytest.mark.parametrize("value", [None, "", False, 0, [], {}])
def test_any_value_at_the_pointer_is_present(
    value: Any, binder: Callable[..., AliasBinder]
) -> None:
    bound = binder(("meta_fields.call.schema", True)).bind({"call_id": value})

    assert list(bound) == ["call"]
    assert bound["call"] is value


@pytest.mark.parametrize(
    ("meta", "pointer", "words"),
    [
        ({"call_id": None}, "meta/call_id", "string"),
        ({"call_id": ""}, "meta/call_id", "1 or more characters"),
        ({"ctx": {"team": 7}}, "meta/ctx/team", "string"),
        ({"seen": ["a", 1]}, "meta/seen/1", "string"),
        ({"seen": []}, "meta/seen", "1 or more items"),
        ({"seen": ["a", "a"]}, "meta/seen", "twice"),
        ({"on_clash": "newest"}, "meta/on_clash", '"mvcc"'),
    ],
)
def test_present_and_invalid_value_fails_the_request(
    meta: dict[str, Any], pointer: str, words: str, binder: Callable[..., AliasBinder]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        binder().bind(meta)

    assert caught.value.pointer == pointer
    assert caught.value.message.startswith(pointer)
    assert words in caught.value.message


def test_first_invalid_alias_by_code_point_is_reported(
    binder: Callable[..., AliasBinder],
) -> None:
    meta: dict[str, Any] = {"unit": 1, "seen": 1, "call_id": 1, "ctx": {"team": 1}}

    with pytest.raises(InvalidRequestError) as caught:
        binder().bind(meta)

    assert caught.value.pointer == "meta/seen"  # bases < call < team < unit


def test_unused_aliases_are_evaluated_too(edited_text: Callable[..., str]) -> None:
    selector = Selector(load_policy(edited_text()).policy)
    meta: dict[str, Any] = {"ctx": {"team": "north"}, "session": ""}

    for ask in (lambda: selector.select("recipe", meta), lambda: selector.scope(meta)):
        with pytest.raises(InvalidRequestError) as caught:
            ask()
        assert caught.value.pointer == "meta/session"


def test_pointer_of_a_parent_that_is_no_object_is_absent(
    binder: Callable[..., AliasBinder],
) -> None:
    assert binder().bind({"ctx": "north"}) == {}
    assert binder().bind({"ctx": ["north"]}) == {}
    assert binder(("meta_fields.call.pointer", "/calls/1")).bind({"calls": ["a", "b"]}) == {
        "call": "b"
    }


def test_two_aliases_may_read_one_member(binder: Callable[..., AliasBinder]) -> None:
    bound = binder(("meta_fields.session.pointer", "/call_id")).bind({"call_id": "c"})

    assert bound == {"call": "c", "session": "c"}


def test_bindings_are_in_code_point_order(binder: Callable[..., AliasBinder]) -> None:
    bound = binder().bind({"unit": "u", "call_id": "c", "ctx": {"team": "t"}})

    assert list(bound) == ["call", "team", "unit"]


def test_metadata_is_written_where_requests_carry_it(
    binder: Callable[..., AliasBinder],
) -> None:
    writer = binder(
        ("meta_fields.call.pointer", "/calls/0"), ("meta_fields.unit.pointer", "/a~1b/~0")
    )

    written = writer.write(
        {"team": "north", "member": 7, "call": "c", "unit": "u", "bases": ["v"], "token": None}
    )

    assert written == {
        "ctx": {"team": "north", "member": 7},
        "calls": {"0": "c"},
        "a/b": {"~": "u"},
        "seen": ["v"],
        "seen_token": None,
    }


def test_written_metadata_is_read_back(edited_text: Callable[..., str]) -> None:
    selector = Selector(load_policy(edited_text()).policy)
    meta: dict[str, Any] = {"ctx": {"team": "north", "member": 7}, "seen": ["v"], "state": "x"}

    bindings = selector.select("recipe", meta).bindings

    assert selector.write_meta(bindings) == meta
    assert selector.write_meta({}) == {}


def test_later_one_of_two_aliases_with_one_pointer_stays(
    binder: Callable[..., AliasBinder],
) -> None:
    writer = binder(("meta_fields.token.pointer", "/call_id"))

    assert writer.write({"call": "old", "token": "new"}) == {"call_id": "new"}
    assert writer.write({"token": "new", "call": "old"}) == {"call_id": "old"}


def test_writing_does_not_touch_the_values(binder: Callable[..., AliasBinder]) -> None:
    values = {"bases": ["v"], "team": "north"}

    binder().write(values)["ctx"]["extra"] = 1  # pyright: ignore[reportIndexIssue, reportArgumentType, reportCallIssue, reportOptionalSubscript] -- an object

    assert json.dumps(values) == '{"bases": ["v"], "team": "north"}'
