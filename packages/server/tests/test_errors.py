from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.backend import (
    EngineError,
    EntityConflict,
    InvalidRequestError,
    OverloadedError,
    VersionConflictError,
)
from patchouli.protocol import ErrorCode, RpcError
from patchouli.provider import CorruptStoreError, ProviderError, UnavailableError, VersionId
from patchouli.server.errors import INTERNAL, WIRE, to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves(root: type[Exception]) -> Iterator[type[Exception]]:
    children = root.__subclasses__()
    for child in children:
        yield from leaves(child)
    if not children:
        yield root


@pytest.mark.parametrize("kind", [*leaves(EngineError), *leaves(ProviderError)])
def test_every_leaf_has_a_row(kind: type[Exception]) -> None:
    assert kind in WIRE


def test_a_class_of_ours_that_is_no_leaf_is_told_by_its_own_row() -> None:
    answer = to_wire(UnavailableError("sqlite", "read", "the disk /dev/sdb is gone"))

    assert answer is not None
    assert answer.code is ErrorCode.OVERLOADED
    assert answer.retryable is True


def test_the_text_of_a_store_does_not_reach_a_client() -> None:
    answer = to_wire(CorruptStoreError("sqlite", "read", "page 7 of /srv/hub/db"))

    assert answer is not None
    assert "/srv" not in str(answer.response(1))
    assert answer.retryable is False


def test_the_text_of_the_engine_does() -> None:
    answer = to_wire(InvalidRequestError("the type is unknown"))

    assert answer is not None
    assert answer.response(7) == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {
            "code": -32602,
            "message": "the type is unknown",
            "data": {"reason": "INVALID_REQUEST"},
        },
    }


def test_a_conflict_names_the_current_versions() -> None:
    error = VersionConflictError("moved", current_versions=[VersionId("v1"), VersionId("v2")])

    answer = to_wire(error)

    assert answer is not None
    assert answer.data == {"reason": "VERSION_CONFLICT", "current_versions": ["v1", "v2"]}


def test_a_conflict_of_a_unit_names_every_entity() -> None:
    error = VersionConflictError(
        "drifted",
        conflicts=[
            EntityConflict(entity_type="memo", entity_id="m", current_versions=(VersionId("v1"),))
        ],
    )

    answer = to_wire(error)

    assert answer is not None
    assert answer.data == {
        "reason": "VERSION_CONFLICT",
        "conflicts": [{"ref": {"type": "memo", "id": "m"}, "current_versions": ["v1"]}],
    }


@pytest.mark.parametrize("is_retryable", [True, False])
def test_overload_says_whether_a_retry_may_help(*, is_retryable: bool) -> None:
    answer = to_wire(OverloadedError("busy", retryable=is_retryable))

    assert answer is not None
    assert answer.data == {"reason": "OVERLOADED", "retryable": is_retryable}


def test_a_foreign_exception_has_no_row() -> None:
    assert to_wire(ZeroDivisionError("division by zero")) is None


def test_an_answer_that_is_one_already_stays() -> None:
    answer = RpcError(ErrorCode.NOT_FOUND, "gone")

    assert to_wire(answer) is answer


def test_an_internal_error_has_no_data() -> None:
    assert INTERNAL.data is None
