from __future__ import annotations

import pytest
from patchouli.provider import ChangeKind, change_kind


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
