from __future__ import annotations

import pytest
from patchouli.provider import (
    ChangeKind,
    Version,
    VersionId,
    VersionState,
    change_kind,
    surviving_heads,
)


@pytest.mark.parametrize(
    ("previous_heads", "new_heads", "is_single_tombstone", "kind"),
    [
        (0, 1, False, ChangeKind.CREATED),
        (0, 2, False, ChangeKind.CREATED),
        (0, 1, True, ChangeKind.CREATED),
        (1, 1, False, ChangeKind.UPDATED),
        (1, 1, True, ChangeKind.DELETED),
        (1, 2, False, ChangeKind.CONFLICTED),
        (2, 2, False, ChangeKind.CONFLICTED),
        (2, 3, False, ChangeKind.CONFLICTED),
        (2, 1, False, ChangeKind.RESOLVED),
        (3, 1, True, ChangeKind.RESOLVED),
    ],
)
def test_the_kind_follows_from_the_head_counts(
    *, previous_heads: int, new_heads: int, is_single_tombstone: bool, kind: ChangeKind
) -> None:
    assert (
        change_kind(
            previous_heads=previous_heads,
            new_heads=new_heads,
            is_single_tombstone=is_single_tombstone,
        )
        is kind
    )


def version(name: str) -> Version:
    return Version(
        id=VersionId(name),
        state=VersionState.ACTIVE,
        value_json="0",
        parents=(),
        recorded_at_unix_ms=0,
    )


@pytest.mark.parametrize(
    ("staged", "published", "superseded", "surviving"),
    [
        ("i", "o", "b", "io"),
        ("o", "i", "b", "io"),  # ascending, whichever side they come from
        ("ck", "ko", "bc", "ko"),  # what one side replaced is gone, what both kept is there once
        ("c", "ko", "b", "cko"),
    ],
)
def test_what_neither_side_replaced_survives(
    staged: str, published: str, superseded: str, surviving: str
) -> None:
    heads = surviving_heads(
        map(version, staged), map(version, published), frozenset(map(VersionId, superseded))
    )

    assert [head.id for head in heads] == [*surviving]
