"""Which entities a retrieval finds, in which order, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import Hit, Operator, Order
from patchouli.provider_conformance.asking import committed, found, page_of
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    commit,
    create,
    delete,
    entity,
    retrieve,
    tombstone,
    update,
    version,
    where,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Json, Provider
    from patchouli.provider_conformance.suite.base import Reopen

A, B, C = entity("a"), entity("b"), entity("c")


def names(hits: tuple[Hit, ...]) -> list[str]:
    """Return type and id of each hit."""
    return [f"{hit.key.type} {hit.key.id}" for hit in hits]


class RetrievalConformance(ProviderSuite):
    """Active heads of one scope are found at once, and superseded ones never."""

    async def test_an_empty_query_lists_the_active_entities_of_the_scope(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, create(entity("t", kind="task"), "v2"))
        await committed(provider, create(entity("far", scope=OTHER_SCOPE), "v3"))
        await committed(provider, commit(B, tombstone("v4")))
        await committed(provider, create(C, "v5"))
        await committed(provider, delete(C, "v5", "v6"))

        page = await page_of(provider, retrieve())

        assert names(page.hits) == ["note a", "task t"]
        assert [hit.score for hit in page.hits] == [0.0, 0.0]
        assert not page.has_more

    async def test_nothing_found_is_an_empty_page(self, provider: Provider) -> None:
        await committed(provider, create(A))

        page = await page_of(provider, retrieve(text="absent"))

        assert page.hits == ()
        assert not page.has_more

    async def test_a_hit_carries_its_key_heads_and_time(self, provider: Provider) -> None:
        made = version("v1", {"text": "hello"}, recorded_at_unix_ms=NOW + 3)
        await committed(provider, commit(A, made))

        (hit,) = (await page_of(provider, retrieve())).hits

        assert hit == Hit(key=A, heads=(made,), score=0.0, recorded_at_unix_ms=NOW + 3)

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({"types": ("note",)}, ["a", "b"]),
            ({"types": ("task", "note")}, ["a", "b", "t"]),
            ({"types": ("Note",)}, []),
            ({"ids": frozenset({"b", "t", "unknown"})}, ["b", "t"]),
            ({"types": ("note",), "ids": frozenset({"b", "t"})}, ["b"]),
            ({"ids": frozenset({"a"}), "text": "v-a"}, ["a"]),
            ({"ids": frozenset({"b"}), "text": "v-a"}, []),
        ],
    )
    async def test_types_and_ids_restrict(
        self, provider: Provider, query: dict[str, object], expected: list[str]
    ) -> None:
        for key in (A, B, entity("t", kind="task")):
            await committed(provider, create(key, f"v-{key.id}"))

        assert await found(provider, **query) == expected

    async def test_a_value_is_found_in_the_instant_of_its_answer_and_then_no_longer(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "v0", {"text": "word0 x"}))
        for number in range(1, 30):
            assert await found(provider, text=f"word{number - 1} ") == ["a"]
            value: Json = {"text": f"word{number} x", "n": number}
            await committed(provider, update(A, f"v{number - 1}", f"v{number}", value))
            assert await found(provider, text=f"word{number} ") == ["a"]
            assert await found(provider, text=f"word{number - 1} ") == []
            is_new = where("/n", Operator.EQUAL, number)
            is_old = where("/n", Operator.EQUAL, number - 1)
            assert await found(provider, filters=(is_new,)) == ["a"]
            assert await found(provider, filters=(is_old,)) == []

        again = await reopen(provider)

        assert await found(again, text="word29") == ["a"]
        assert await found(again, text="word2 ") == []

    async def test_a_deleted_value_is_not_found(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1", {"text": "hello"}))
        await committed(provider, delete(A, "v1", "v2"))

        assert await found(provider, text="hello") == []
        assert await found(provider, text="he") == []
        assert await found(provider) == []

    async def test_a_version_that_was_merged_at_once_is_not_found(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1", {"text": "red"}))
        proposal = version("v2", {"text": "green"}, parents=["v1"])
        merged = version("v3", {"text": "blue"}, parents=["v2"])
        await committed(provider, commit(A, proposal, merged, expected=["v1"], heads=["v3"]))

        assert await found(provider, text="green") == []
        assert await found(provider, text="gr") == []
        assert await found(provider, text="blue") == ["a"]

    async def test_a_conflicted_entity_is_one_hit_with_all_its_heads(
        self, provider: Provider
    ) -> None:
        heads = (
            version("h1", {"text": "red apple"}, recorded_at_unix_ms=NOW + 1),
            version("h2", {"text": "green apple"}, recorded_at_unix_ms=NOW + 9),
            tombstone("h3"),
        )
        await committed(provider, commit(A, *heads))

        (red,) = (await page_of(provider, retrieve(text="red"))).hits
        (both,) = (await page_of(provider, retrieve(text="apple"))).hits

        assert red.heads == heads
        assert red.recorded_at_unix_ms == NOW + 1
        assert both.heads == heads
        assert both.recorded_at_unix_ms == NOW + 9
        assert both.score == pytest.approx(5 / (4 + 9))  # the better of its matching heads

    async def test_text_and_filters_hold_on_one_and_the_same_head(self, provider: Provider) -> None:
        await committed(
            provider,
            commit(
                A, version("h1", {"text": "red", "n": 1}), version("h2", {"text": "blue", "n": 2})
            ),
        )
        is_two = where("/n", Operator.EQUAL, 2)
        is_blue = where("/text", Operator.EQUAL, "blue")

        assert await found(provider, text="red", filters=(is_two,)) == []
        assert await found(provider, text="blue", filters=(is_two,)) == ["a"]
        assert await found(provider, filters=(is_blue, is_two)) == ["a"]
        assert await found(provider, filters=(is_blue, where("/n", Operator.EQUAL, 1))) == []

    async def test_answers_of_a_scope_do_not_depend_on_other_scopes_or_on_history(
        self, provider: Provider
    ) -> None:
        for name in "abc":
            await committed(provider, create(entity(name), f"v-{name}", {"t": f"word {name}"}))
        plan = retrieve(text="word", order=Order.RELEVANCE)
        before = (await page_of(provider, plan)).hits

        for number in range(20):
            far = entity(f"f{number}", scope=OTHER_SCOPE)
            await committed(provider, create(far, f"far{number}", {"t": "word word word"}))
        await committed(provider, create(entity("d"), "d0", {"t": "word word word"}))
        for number in range(20):
            await committed(
                provider, update(entity("d"), f"d{number}", f"d{number + 1}", {"t": "x"})
            )

        assert (await page_of(provider, plan)).hits == before
