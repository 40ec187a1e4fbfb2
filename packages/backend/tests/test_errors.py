from __future__ import annotations

import inspect

import pytest
from patchouli.backend import (
    ConfigurationError,
    CursorExpiredError,
    DeadlineExceededError,
    EngineError,
    EntityConflict,
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnsupportedCapabilityError,
    VersionConflictError,
    WorkUnitExpiredError,
)
from patchouli.backend import errors as tree
from patchouli.provider import VersionId


@pytest.mark.parametrize(
    ("error", "reason", "is_retryable"),
    [
        (InvalidRequestError("m"), "INVALID_REQUEST", False),
        (NotFoundError("m"), "NOT_FOUND", False),
        (VersionConflictError("m"), "VERSION_CONFLICT", False),
        (IdempotencyConflictError("m"), "IDEMPOTENCY_CONFLICT", False),
        (UnsupportedCapabilityError("m"), "UNSUPPORTED_CAPABILITY", False),
        (DeadlineExceededError("m"), "DEADLINE_EXCEEDED", False),
        (OverloadedError("m", retryable=True), "OVERLOADED", True),
        (OverloadedError("m", retryable=False), "OVERLOADED", False),
        (CursorExpiredError("m"), "CURSOR_EXPIRED", False),
        (WorkUnitExpiredError("m"), "WORK_UNIT_EXPIRED", False),
    ],
)
def test_every_error_carries_its_reason(
    *, error: EngineError, reason: str, is_retryable: bool
) -> None:
    assert error.reason == reason
    assert error.retryable is is_retryable
    assert error.message == str(error) == "m"


def test_each_class_says_when_it_is_raised() -> None:
    for name, value in inspect.getmembers(tree, inspect.isclass):
        if issubclass(value, EngineError) and value is not EngineError:
            assert (value.__doc__ or "").startswith("Raised when "), name
            assert name in (tree.__doc__ or "")


def test_facts_are_attributes() -> None:
    version = VersionId("v1")
    conflict = EntityConflict(entity_type="recipe", entity_id="r", current_versions=(version,))

    assert InvalidRequestError("m", pointer="meta/team").pointer == "meta/team"
    assert VersionConflictError("m", current_versions=[version]).current_versions == (version,)
    assert VersionConflictError("m", conflicts=[conflict]).conflicts == (conflict,)
    assert UnsupportedCapabilityError("m", capabilities={"b", "a"}).capabilities == ("a", "b")


def test_configuration_error_reads_like_a_compiler_message() -> None:
    def message(path: str, document: str | None, line: int | None) -> str:
        return ConfigurationError(
            kind="Invalid",
            path=path,
            rule="P22",
            problem="this is wrong",
            remedy="Write that.",
            document=document,
            line=line,
            column=None if line is None else 7,
        ).message

    assert message("a.b", "c.json", 3) == "c.json:3:7: a.b: this is wrong (P22). Write that."
    assert message("a.b", None, None) == "a.b: this is wrong (P22). Write that."
    assert message("", None, None) == "this is wrong (P22). Write that."
    assert message("", "c.json", None) == "c.json: this is wrong (P22). Write that."
