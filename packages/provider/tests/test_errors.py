from __future__ import annotations

import pickle

import pytest
from patchouli.provider import (
    CorruptStoreError,
    DeadlineExceededError,
    FormatVersionError,
    MisuseError,
    OutcomeUnknownError,
    OwnershipError,
    ProviderError,
    StoreFullError,
    UnauthenticatedError,
    UnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)

TREE: list[tuple[type[ProviderError], type[Exception], str, bool]] = [
    (ProviderError, Exception, "internal", False),
    (DeadlineExceededError, ProviderError, "deadline_exceeded", False),
    (UnavailableError, ProviderError, "unavailable", True),
    (OutcomeUnknownError, UnavailableError, "unavailable", True),
    (OwnershipError, UnavailableError, "unavailable", True),
    (UnauthenticatedError, ProviderError, "unauthenticated", False),
    (StoreFullError, ProviderError, "internal", True),
    (CorruptStoreError, ProviderError, "internal", False),
    (FormatVersionError, ProviderError, "internal", False),
    (UnsafeStoreError, ProviderError, "internal", False),
    (UnsupportedError, ProviderError, "internal", False),
    (MisuseError, ProviderError, "internal", False),
]


@pytest.mark.parametrize(("kind", "base", "reason", "retryable"), TREE)
def test_each_error_says_why_and_whether_to_retry(
    *, kind: type[ProviderError], base: type[Exception], reason: str, retryable: bool
) -> None:
    error = kind("shelf", "commit", "the shelf is gone")

    assert kind.__bases__ == (base,)
    assert (error.provider, error.operation, error.detail) == (
        "shelf",
        "commit",
        "the shelf is gone",
    )
    assert error.reason == reason
    assert error.retryable is retryable
    assert str(error) == "shelf commit failed: the shelf is gone"


@pytest.mark.parametrize("kind", [row[0] for row in TREE])
def test_each_error_survives_the_way_to_another_process(kind: type[ProviderError]) -> None:
    error = kind("shelf", "commit", "the shelf is gone")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made on the line itself

    assert type(copy) is kind
    assert str(copy) == str(error)


def test_the_tree_above_is_the_whole_tree() -> None:
    def below(kind: type[ProviderError]) -> set[type[ProviderError]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    assert below(ProviderError) == {row[0] for row in TREE}
