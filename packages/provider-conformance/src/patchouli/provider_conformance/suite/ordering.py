"""The order of hits and the pages they come in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import Hit, Order
from patchouli.provider_conformance.asking import all_committed, committed, page_of, position_of
from patchouli.provider_conformance.builders import commit, create, entity, retrieve, version
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider, RetrievePlan
    from patchouli.provider_conformance.suite.base import Start


TIES = [
    # type, id, recorded at, value: ties in every member of every order
    ("note", "b", 20, "apple apple"),
    ("task", "a", 20, "apple apple"),
    ("note", "a", 20, "apple apple"),
    ("task", "c", 10, "apple pie"),
    ("note", "c", 30, "apple pie"),
    ("note", "\uffff", 30, "apple"),
    ("note", "\U00010000", 30, "apple"),
    ("note", "B", 5, "apple, a long text about nothing else"),
    ("note", "10", 5, "pineapple"),
    ("note", "9", 5, "pineapple"),
]
IN_ORDER = {
    Order.NEWEST: [
        "note c",
        "note \uffff",
        "note \U00010000",
        "note a",
        "note b",
        "task a",
        "task c",
        "note 10",
        "note 9",
        "note B",
    ],
    Order.OLDEST: [
        "note 10",
        "note 9",
        "note B",
        "task c",
        "note a",
        "note b",
        "task a",
        "note c",
        "note \uffff",
        "note \U00010000",
    ],
    Order.ID_ASCENDING: [
        "note 10",
        "note 9",
        "note B",
        "note a",
        "task a",
        "note b",
        "note c",
        "task c",
        "note \uffff",
        "note \U00010000",
    ],
    # The needle covers 5 of 6 characters, 10 of 12, 5 of 10, and little of the long text.
    Order.RELEVANCE: [
        "note \uffff",
        "note \U00010000",
        "note a",
        "note b",
        "task a",
        "note c",
        "task c",
        "note 10",
        "note 9",
        "note B",
    ],
}
IN_ORDER[Order.ID_DESCENDING] = IN_ORDER[Order.ID_ASCENDING][::-1]


async def every_page(provider: Provider, plan: RetrievePlan) -> list[tuple[Hit, ...]]:
    """Return the pages of `plan`, each continuing after the last hit of the one before."""
    pages: list[tuple[Hit, ...]] = []
    while True:
        page = await page_of(provider, plan)
        pages.append(page.hits)
        if not page.has_more:
            return pages
        assert len(page.hits) >= 1
        plan = replace(plan, after=position_of(page.hits[-1]))


def joined(pages: list[tuple[Hit, ...]]) -> list[str]:
    """Return type and id of each hit of all pages."""
    return [f"{hit.key.type} {hit.key.id}" for page in pages for hit in page]


class OrderConformance(ProviderSuite):
    """Every order is total, and pages of any size join to the whole."""

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """A provider with entities that tie in every order."""
        provider = await start()
        await all_committed(
            provider,
            (
                commit(
                    entity(name, kind=kind),
                    version(f"v{number}", {"t": text}, recorded_at_unix_ms=time),
                )
                for number, (kind, name, time, text) in enumerate(TIES)
            ),
        )
        return provider

    @pytest.mark.parametrize("limit", [1, 2, 3, 9, 10, 11, 100])
    @pytest.mark.parametrize("order", Order)
    async def test_pages_of_any_size_join_to_the_whole_in_order(
        self, provider: Provider, order: Order, limit: int
    ) -> None:
        plan = retrieve(order=order, text="apple", limit=limit)

        pages = await every_page(provider, plan)

        assert joined(pages) == IN_ORDER[order]
        assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)

    @pytest.mark.parametrize("order", Order)
    async def test_orders_without_text_are_the_same(self, provider: Provider, order: Order) -> None:
        # Nothing is more relevant than anything else then, and the newest come first.
        same = Order.NEWEST if order is Order.RELEVANCE else order

        for limit in (1, 4, 100):
            pages = await every_page(provider, retrieve(order=order, limit=limit))
            assert joined(pages) == IN_ORDER[same]

    async def test_the_size_of_pages_may_change_between_them(self, provider: Provider) -> None:
        plan = retrieve(order=Order.NEWEST, limit=3)
        first = (await page_of(provider, plan)).hits
        rest = replace(plan, limit=50, after=position_of(first[-1]))

        assert joined([first, (await page_of(provider, rest)).hits]) == IN_ORDER[Order.NEWEST]

    async def test_scores_are_reported_in_every_order_when_there_is_a_text(
        self, provider: Provider
    ) -> None:
        scores: list[dict[tuple[str, str], float]] = []
        for order in Order:
            (page,) = await every_page(provider, retrieve(order=order, text="apple"))
            scores.append({(hit.key.type, hit.key.id): hit.score for hit in page})

        assert all(score == scores[0] for score in scores)
        assert scores[0]["note", "\uffff"] == pytest.approx(5 / 6)
        assert scores[0]["note", "a"] == pytest.approx(10 / 12)
        assert scores[0]["note", "c"] == pytest.approx(5 / 10)
        assert scores[0]["note", "10"] == pytest.approx(5 / 10)

    async def test_a_page_ends_when_its_values_would_pass_the_byte_bound(
        self, provider: Provider
    ) -> None:
        one_each = await every_page(provider, retrieve(limit_bytes=1))
        all_at_once = await every_page(provider, retrieve(limit_bytes=1 << 20))

        assert [len(page) for page in one_each] == [1] * len(TIES)
        assert joined(one_each) == joined(all_at_once) == IN_ORDER[Order.ID_ASCENDING]
        assert len(all_at_once) == 1

    async def test_the_byte_bound_counts_all_heads_of_a_hit(self, start: Start) -> None:
        provider = await start()
        for name in "abc":
            heads = [version(f"{name}{n}", {"t": "x" * 92}) for n in range(2)]  # 100 bytes each
            await committed(provider, commit(entity(name), *heads))

        assert [len(p) for p in await every_page(provider, retrieve(limit_bytes=400))] == [2, 1]
        assert [len(p) for p in await every_page(provider, retrieve(limit_bytes=399))] == [1, 1, 1]
        assert [len(p) for p in await every_page(provider, retrieve(limit_bytes=600))] == [3]

    async def test_an_untouched_entity_appears_once_while_others_come_and_go(
        self, provider: Provider
    ) -> None:
        plan = retrieve(order=Order.ID_ASCENDING, limit=2)
        first = (await page_of(provider, plan)).hits
        await committed(provider, create(entity("00"), "early"))
        await committed(provider, create(entity("zz"), "late"))
        rest = await every_page(provider, replace(plan, after=position_of(first[-1])))

        seen = joined([first, *rest])
        assert [name for name in seen if name not in ("note 00", "note zz")] == (
            IN_ORDER[Order.ID_ASCENDING]
        )
        assert "note 00" not in seen
        assert "note zz" in seen

    async def test_a_position_of_an_entity_that_is_gone_still_continues(
        self, provider: Provider
    ) -> None:
        plan = retrieve(order=Order.ID_ASCENDING)
        (everything,) = await every_page(provider, plan)
        between = replace(position_of(everything[3]), type="p")  # after `note a`, before `task a`

        assert (
            joined(await every_page(provider, replace(plan, after=between)))
            == (IN_ORDER[Order.ID_ASCENDING][4:])
        )
