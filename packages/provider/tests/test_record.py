from __future__ import annotations

import copy
import inspect
from dataclasses import fields, replace

import pytest
from patchouli.provider import Change, IdentityTaken, Staged, Unavailable, Version, VersionState

VERSION = Version(
    id="v",  # pyright: ignore[reportArgumentType] -- a plain text will do
    state=VersionState.ACTIVE,
    value_json="{}",
    parents=(),
    recorded_at_unix_ms=1,
)


def test_a_record_takes_keywords_alone_and_each_that_has_no_default() -> None:
    assert Unavailable(detail="d").frontier is None

    with pytest.raises(TypeError):
        Unavailable("d")  # pyright: ignore[reportCallIssue] -- that it fails is the point
    with pytest.raises(TypeError):
        Unavailable(frontier=None)  # pyright: ignore[reportCallIssue] -- that it fails is the point
    with pytest.raises(TypeError):
        Unavailable(detail="d", more=1)  # pyright: ignore[reportCallIssue] -- that it fails is the point


def test_records_are_equal_by_kind_and_fields() -> None:
    assert Unavailable(detail="d") == Unavailable(detail="d")
    assert Unavailable(detail="d") != Unavailable(detail="e")
    assert Staged() == Staged()
    assert Staged() != IdentityTaken()
    assert Staged() != 1


def test_a_record_has_slots_and_no_hash() -> None:
    assert not hasattr(VERSION, "__dict__")
    with pytest.raises(AttributeError):
        VERSION.more = 1  # pyright: ignore[reportAttributeAccessIssue] -- that it fails is the point
    with pytest.raises(TypeError):
        hash(VERSION)


def test_a_record_can_be_replaced_copied_and_told() -> None:
    newer = replace(VERSION, recorded_at_unix_ms=2)

    assert (newer.id, newer.recorded_at_unix_ms, VERSION.recorded_at_unix_ms) == ("v", 2, 1)
    assert copy.deepcopy(VERSION) == VERSION
    assert repr(Unavailable(detail="d")) == "Unavailable(detail='d', frontier=None)"


def test_a_record_describes_its_fields() -> None:
    names = [field.name for field in fields(Change)]

    assert list(inspect.signature(Change).parameters) == names
    assert inspect.signature(Change).parameters["cursor"].annotation == "Cursor"
    assert Change.__doc__ is not None
    assert Change.__module__ == "patchouli.provider.records"
