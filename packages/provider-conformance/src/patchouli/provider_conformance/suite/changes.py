"""Reading published changes page by page, and what retention leaves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import CausalToken, Change, ChangeKind, Cursor
from patchouli.provider_conformance.asking import all_changes, committed, head_ids, reading
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    SCOPE,
    changes,
    commit,
    create,
    delete,
    entity,
    read,
    update,
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider
    from patchouli.provider_conformance.suite.base import Reopen

A, B = entity("a"), entity("b")
A_ELSEWHERE = entity("a", scope=OTHER_SCOPE)


async def five_changes(provider: Provider) -> list[Cursor]:
    """Create an entity, update it four times, and return the cursors."""
    cursors = [await committed(provider, create(A, "v0"))]
    for number in range(4):
        cursor = await committed(provider, update(A, f"v{number}", f"v{number + 1}"))
        cursors += [cursor]
    return cursors


class ChangesConformance(ProviderSuite):
    """Changes come in order, without a gap above what was pruned."""

    async def test_an_empty_scope_has_an_empty_page(self, provider: Provider) -> None:
        await committed(provider, create(A_ELSEWHERE))

        page = await provider.read_changes(changes())

        assert page.changes == ()
        assert (page.frontier, page.reached, page.pruned_through) == (0, 0, 0)

    async def test_a_change_says_what_was_committed(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        cursor = await committed(
            provider,
            commit(
                A,
                version("v2"),
                version("v1"),
                kind=ChangeKind.CONFLICTED,
                causal_token=CausalToken("here"),
                event_meta_json='{"who":"é"}',
                recorded_at_unix_ms=NOW + 7,
            ),
        )
        expected = Change(
            cursor=cursor,
            type="note",
            id="a",
            kind=ChangeKind.CONFLICTED,
            head_versions=("v2", "v1"),  # pyright: ignore[reportArgumentType] - plain texts
            causal_token=CausalToken("here"),
            event_meta_json='{"who":"é"}',
            recorded_at_unix_ms=NOW + 7,
        )

        assert (await provider.read_changes(changes())).changes == (expected,)
        assert await all_changes(await reopen(provider), SCOPE) == [expected]

    async def test_changes_are_those_of_the_scope_in_the_order_of_their_cursors(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, create(A_ELSEWHERE, "far"))
        await committed(provider, create(B, "v2"))
        await committed(provider, delete(A, "v1", "v3"))

        found = await all_changes(provider, SCOPE)

        assert [(c.id, c.head_versions) for c in found] == [
            ("a", ("v1",)),
            ("b", ("v2",)),
            ("a", ("v3",)),
        ]
        assert [c.cursor for c in found] == sorted({c.cursor for c in found})

    async def test_a_page_continues_strictly_after_its_cursor(self, provider: Provider) -> None:
        cursors = await five_changes(provider)

        for index, cursor in enumerate(cursors):
            page = await provider.read_changes(changes(cursor))
            assert [c.cursor for c in page.changes] == cursors[index + 1 :]
            assert page.frontier == cursors[-1]

    async def test_a_page_ends_at_its_limit_and_says_how_far_it_looked(
        self, provider: Provider
    ) -> None:
        cursors = await five_changes(provider)
        last = await committed(provider, create(B, "b"))

        two = await provider.read_changes(changes(limit=2))
        of_b = await provider.read_changes(changes(limit=2, ids=frozenset({"b"})))
        none = await provider.read_changes(changes(limit=2, ids=frozenset({"c"})))
        exactly = await provider.read_changes(changes(limit=6))

        assert [c.cursor for c in two.changes] == cursors[:2]
        assert (two.reached, two.frontier) == (cursors[1], last)
        assert ([c.cursor for c in of_b.changes], of_b.reached) == ([last], last)
        assert (none.changes, none.reached) == ((), last)
        assert (len(exactly.changes), exactly.reached) == (6, last)

    async def test_a_page_ends_at_the_bytes_of_its_metadata(self, provider: Provider) -> None:
        meta = '{"who":"é"}'  # 12 bytes in 11 characters
        cursors = [
            await committed(provider, create(entity(name), f"v-{name}", event_meta_json=meta))
            for name in "abcde"
        ]

        for limit_bytes, sizes in ((1, [1] * 5), (24, [2, 2, 1]), (23, [1] * 5), (60, [5])):
            found: list[Cursor] = []
            pages: list[int] = []
            reached = Cursor(0)
            while reached < cursors[-1]:
                page = await provider.read_changes(changes(reached, limit_bytes=limit_bytes))
                found += [change.cursor for change in page.changes]
                pages.append(len(page.changes))
                assert page.reached == page.changes[-1].cursor
                reached = page.reached
            assert (found, pages) == (cursors, sizes)
        of_e = await provider.read_changes(changes(ids=frozenset({"e"}), limit_bytes=12))
        assert ([change.cursor for change in of_e.changes], of_e.reached) == (
            cursors[-1:],
            cursors[-1],
        )

    @pytest.mark.parametrize(
        ("types", "ids", "expected"),
        [
            (None, None, ["note a", "note b", "task a"]),
            ({"note"}, None, ["note a", "note b"]),
            (None, {"a"}, ["note a", "task a"]),
            ({"task"}, {"a"}, ["task a"]),
            ({"task"}, {"b"}, []),
            ({"note", "task", "x"}, {"b", "a", "c"}, ["note a", "note b", "task a"]),
            (set[str](), None, []),
            (None, set[str](), []),
            ({"Note"}, None, []),
        ],
    )
    async def test_types_and_ids_restrict_and_the_limit_counts_what_is_left(
        self,
        provider: Provider,
        types: set[str] | None,
        ids: set[str] | None,
        expected: list[str],
    ) -> None:
        for kind, name in [("note", "a"), ("note", "b"), ("task", "a")]:
            await committed(provider, create(entity(name, kind=kind), f"{kind}-{name}"))
        of_types = None if types is None else frozenset(types)
        of_ids = None if ids is None else frozenset(ids)

        page = await provider.read_changes(changes(types=of_types, ids=of_ids))
        first = await provider.read_changes(changes(types=of_types, ids=of_ids, limit=1))

        assert [f"{c.type} {c.id}" for c in page.changes] == expected
        assert [f"{c.type} {c.id}" for c in first.changes] == expected[:1]

    async def test_a_cursor_ahead_of_the_frontier_finds_nothing(self, provider: Provider) -> None:
        cursor = await committed(provider, create(A))

        page = await provider.read_changes(changes(cursor + 100))

        assert page.changes == ()
        assert page.frontier == cursor

    async def test_the_incarnation_is_that_of_the_database(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        first = (await provider.read_changes(changes())).incarnation

        again = await reopen(provider)

        assert first
        assert (await again.read_changes(changes())).incarnation == first

    async def test_a_change_before_the_cut_off_counts_as_pruned(self, provider: Provider) -> None:
        cursor = await committed(provider, create(A, recorded_at_unix_ms=10))

        page = await provider.read_changes(changes(retained_after_unix_ms=11))

        assert page.changes == ()
        assert page.pruned_through == cursor
        assert page.frontier == cursor
        assert await head_ids(provider, A) == ["v1"]
        found = await reading(provider, read(A))
        assert found.observation.causal_token == "token-v1"

    async def test_a_change_at_the_cut_off_is_kept(self, provider: Provider) -> None:
        await committed(provider, create(A, recorded_at_unix_ms=10))

        page = await provider.read_changes(changes(retained_after_unix_ms=10))

        assert len(page.changes) == 1
        assert page.pruned_through == 0

    async def test_what_is_kept_follows_what_is_pruned(self, provider: Provider) -> None:
        old = await committed(provider, create(A, recorded_at_unix_ms=10))
        new = await committed(provider, update(A, "v1", "v2", recorded_at_unix_ms=20))

        page = await provider.read_changes(changes(old, retained_after_unix_ms=15))

        assert [c.cursor for c in page.changes] == [new]
        assert page.pruned_through == old

    async def test_an_older_change_after_a_younger_one_prunes_up_to_itself(
        self, provider: Provider
    ) -> None:
        """Clocks are set back; the horizon is the greatest cursor that is gone."""
        await committed(provider, create(A, recorded_at_unix_ms=20))
        gone = await committed(provider, update(A, "v1", "v2", recorded_at_unix_ms=10))
        kept = await committed(provider, update(A, "v2", "v3", recorded_at_unix_ms=20))

        page = await provider.read_changes(changes(gone, retained_after_unix_ms=15))

        assert page.pruned_through == gone
        assert [c.cursor for c in page.changes] == [kept]

    async def test_each_scope_says_for_itself_what_is_pruned(self, provider: Provider) -> None:
        here = await committed(provider, create(A, recorded_at_unix_ms=10))
        there = await committed(provider, create(A_ELSEWHERE, "far", recorded_at_unix_ms=10))

        one = await provider.read_changes(changes(retained_after_unix_ms=11))
        other = await provider.read_changes(changes(retained_after_unix_ms=11, scope=OTHER_SCOPE))

        assert (one.changes, one.pruned_through) == ((), here)
        assert (other.changes, other.pruned_through) == ((), there)

    async def test_cursors_are_not_used_again_after_everything_was_pruned(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        last = await committed(provider, create(A, recorded_at_unix_ms=10))
        await provider.read_changes(changes(retained_after_unix_ms=11))
        await provider.checkpoint()

        again = await reopen(provider)

        assert await committed(again, create(B, "v2")) > last
        page = await again.read_changes(changes(last, retained_after_unix_ms=11))
        assert [c.id for c in page.changes] == ["b"]
        assert page.pruned_through == last

    async def test_a_frontier_belongs_to_its_scope(self, provider: Provider) -> None:
        here = await committed(provider, create(A))
        there = await committed(provider, create(A_ELSEWHERE, "far"))

        assert (await provider.read_changes(changes())).frontier == here
        other = await provider.read_changes(changes(Cursor(here), scope=OTHER_SCOPE))
        assert (other.frontier, [c.cursor for c in other.changes]) == (there, [there])
