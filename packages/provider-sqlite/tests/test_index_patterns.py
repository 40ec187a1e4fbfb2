"""A pattern learns what is the same in values of one shape, and learns anew when that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider_sqlite import index_patterns
from patchouli.provider_sqlite.index_leaves import CONTAINER, Shape, shape_of
from patchouli.provider_sqlite.index_patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

PATHS = "\x1f".join(("$", "$.kind", "$.origin", "$.text", "$.user"))


@pytest.fixture(autouse=True)
def learn_quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_patterns, "LEARNT_FROM", 3)
        patch.setattr(index_patterns, "MISSES", 4)
        yield


def shape() -> Shape:
    return shape_of(PATHS, lambda place: f"{place}=")


def nodes(number: int, *, origin: str = "mailbox of the reader") -> list[str]:
    return [CONTAINER, "note", origin, f"text {number}", f"user {number % 2}"]


def test_what_never_changes_is_usual() -> None:
    pattern = Pattern(shape())
    for number in range(3):
        assert pattern.usual is None
        pattern.learn(nodes(number))

    usual = pattern.usual

    assert usual is not None
    assert usual.constants == ("note", "mailbox of the reader")
    assert usual.constant_at(nodes(9)) == usual.constants
    assert usual.constant_at(nodes(9, origin="x")) != usual.constants
    assert usual.variable_at(nodes(9)) == ("text 9", "user 1")
    assert usual.shared == pattern.names | {"note", "mailbox of the reader"}
    assert usual.tokens == '."kind"=note\x1f."origin"=mailbox of the reader\x1f'
    assert usual.prefixes == ('."text"=', '."user"=')


def test_little_in_common_is_not_worth_a_set() -> None:
    pattern = Pattern(shape())
    for number in range(3):
        pattern.learn(nodes(number, origin=f"origin {number}"))

    assert pattern.usual is None


def test_values_that_differ_teach_the_pattern_anew() -> None:
    pattern = Pattern(shape())
    for number in range(3):
        pattern.learn(nodes(number))
    for number in range(4 + 3):
        pattern.learn(nodes(number, origin="another mailbox by now"))

    assert pattern.usual is not None
    assert pattern.usual.constants == ("note", "another mailbox by now")
