"""Durable cursors in the storage domain of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import META, Consumer, Feed, Plain, asked, settled, until
from patchouli.harness import DomainError, DomainSpec, Kernel, ScopeState
from patchouli.harness.reference import SqliteDomains
from patchouli.memory_service import (
    CONSUMER_CURSORS,
    Change,
    ConsumerCursors,
    CursorsClosedError,
    DomainCursors,
    MemoryService,
    SubscribeRequest,
    memory_service,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class WatchedDomains:
    """The domains of the reference host, with a note of what is opened and closed."""

    def __init__(self, domains: SqliteDomains) -> None:
        self.opened: list[DomainSpec] = []
        self.closings = 0
        self._domains = domains

    async def open(self, spec: DomainSpec) -> Any:
        self.opened.append(spec)
        domain = await self._domains.open(spec)
        close = domain.close

        async def closed() -> None:
            self.closings += 1
            await close()

        domain.close = closed  # type: ignore[method-assign] # counted, then done
        return domain


@pytest.fixture
async def domains(kernel: Kernel, tmp_path: Path) -> AsyncIterator[WatchedDomains]:
    real = SqliteDomains(kernel, tmp_path / "records.db")
    watched = WatchedDomains(real)
    kernel.root.provide("storageDomain", watched)
    yield watched
    await kernel.aclose()
    await real.aclose()


@pytest.fixture
async def cursors(kernel: Kernel, domains: WatchedDomains) -> ConsumerCursors:
    await kernel.root.plugin(CONSUMER_CURSORS)
    return kernel.root.find("patchouliCursors")


def bound(cursors: ConsumerCursors, **changed: str) -> Any:
    names = {"consumer_id": "desk", "subscription_key": "main", "scope": "repo:a"}
    return cursors.bind(**{**names, **changed})


@pytest.mark.checklist("MS-53")
async def test_one_domain_with_one_table_is_opened(
    domains: WatchedDomains,
    cursors: ConsumerCursors,
) -> None:
    (spec,) = domains.opened

    assert isinstance(cursors, DomainCursors)
    assert (spec.name, spec.version, [*spec.tables]) == ("patchouli_memory", 1, ["cursors"])
    assert spec.singleton is None


@pytest.mark.checklist("MS-54")
async def test_four_names_as_they_are_written_make_a_record(
    cursors: ConsumerCursors, domains: WatchedDomains
) -> None:
    await bound(cursors).save("oak", "1")
    await bound(cursors, scope=" repo:a ").save("oak", "2")
    await bound(cursors, subscription_key="other").save("oak", "3")
    await bound(cursors, consumer_id="Büro").save("oak", "4")
    await bound(cursors).save("", "5")

    table = cursors.require_table()
    assert dict(table.items()) == {
        '["desk","main","repo:a","oak"]': {"cursor": "1"},
        '["desk","main"," repo:a ","oak"]': {"cursor": "2"},
        '["desk","other","repo:a","oak"]': {"cursor": "3"},
        '["Büro","main","repo:a","oak"]': {"cursor": "4"},
        '["desk","main","repo:a",""]': {"cursor": "5"},
    }
    assert await bound(cursors).load("oak") == "1"
    assert len(domains.opened) == 1


@pytest.mark.checklist("MS-55")
async def test_an_unknown_plugin_has_no_cursor(cursors: ConsumerCursors) -> None:
    assert await bound(cursors).load("oak") is None


@pytest.mark.checklist("MS-56")
async def test_a_deleted_cursor_is_gone(cursors: ConsumerCursors) -> None:
    store = bound(cursors)
    await store.save("oak", "1")

    assert await store.delete("oak") is None
    assert await store.load("oak") is None
    assert await store.delete("oak") is None


@pytest.mark.checklist("MS-57")
async def test_the_domain_is_closed_once_with_the_scope(
    kernel: Kernel, domains: WatchedDomains
) -> None:
    scope = await kernel.root.plugin(CONSUMER_CURSORS)
    cursors: ConsumerCursors = kernel.root.find("patchouliCursors")
    store = bound(cursors)

    await scope.close()
    await scope.close()
    await kernel.aclose()

    assert domains.closings == 1
    with pytest.raises(CursorsClosedError):
        bound(cursors)
    for use in (store.load("oak"), store.save("oak", "1"), store.delete("oak")):
        with pytest.raises(CursorsClosedError):
            await use


@pytest.mark.checklist("MS-58")
@pytest.mark.parametrize("name", ["\ud800", 5, None])
async def test_a_name_that_could_not_be_stored_is_refused_at_once(
    cursors: ConsumerCursors, name: Any
) -> None:
    with pytest.raises(ValueError, match="scope"):
        bound(cursors, scope=name)


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("consumer_id", "consumerId"),
        ("subscription_key", "subscriptionKey"),
        ("scope", "scope"),
    ],
)
async def test_a_blank_name_is_refused_by_its_field(
    cursors: ConsumerCursors, argument: str, field: str, blank: str
) -> None:
    for one in (cursors, DomainCursors()):  # before it asks whether anything is open
        with pytest.raises(ValueError, match=f"^{field} is blank$"):
            bound(one, **{argument: blank})


async def test_nothing_is_bound_before_the_domain_is_open() -> None:
    with pytest.raises(CursorsClosedError):
        bound(DomainCursors())


@pytest.mark.checklist("HN-24")
async def test_without_a_storage_domain_cursors_wait_and_the_rest_works(
    kernel: Kernel, memory: MemoryService
) -> None:
    scope = await kernel.root.plugin(CONSUMER_CURSORS)
    memory.register(Plain("oak", 1))

    assert scope.state is ScopeState.WAITING
    assert scope.missing == ("storageDomain",)
    assert [one.value for one in await memory.update(asked())] == [1]
    assert [one.value for one in await memory.retrieve(asked())] == [1]


@pytest.mark.parametrize(
    "record", [None, "c1", {}, {"cursor": 7}, {"cursor": "c1", "more": 1}, {"Cursor": "c1"}]
)
async def test_a_record_of_another_shape_is_never_stored(
    cursors: ConsumerCursors, record: Any
) -> None:
    table = cursors.require_table()

    with pytest.raises(DomainError):
        await table.put("any", record)


async def test_a_consumer_resumes_where_it_was_before_the_program_ended(tmp_path: Path) -> None:
    for expected, cursor in ((None, "c1"), ("c1", "c2"), ("c2", "c3")):
        async with Kernel() as kernel:
            domains = SqliteDomains(kernel, tmp_path / "records.db")
            kernel.root.provide("storageDomain", domains)
            await kernel.root.plugin(CONSUMER_CURSORS)
            await kernel.root.plugin(memory_service())
            memory: MemoryService = kernel.root.find("patchouli")
            feed, consumer = Feed("feed"), Consumer()
            memory.register(feed)
            subscription = await memory.subscribe(
                SubscribeRequest(meta=META),
                consumer.handle,
                cursors=bound(kernel.root.find("patchouliCursors")),
            )
            opening = await feed.opening()
            assert opening.request.after_cursor == expected
            opening.opens(expected or "b0")
            await settled(opening.emit(Change(cursor=cursor)))
            await until(lambda consumer=consumer: len(consumer.events) == 1)
            await settled(subscription.unsubscribe())
        await domains.aclose()
