"""References: what anything stored still names, for the housekeeping of what lies outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import EntityKey, MisuseError, ReferencesPlan
from patchouli.provider_conformance.asking import committed, staged
from patchouli.provider_conformance.builders import (
    OTHER_SCOPE,
    commit,
    create,
    delete,
    entity,
    staging,
    unit,
    update,
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Json, Provider

A, B = entity("a"), entity("b")


def naming(key: str) -> Json:
    """Return a value that names `key` at `/place/key`."""
    return {"place": {"key": key}}


async def named(
    provider: Provider, *, kind: str = "note", pointer: str = "/place/key", limit: int = 100
) -> list[str]:
    """Return all that is named, page by page."""
    texts: set[str] = set()
    after: EntityKey | None = None
    while True:
        page = await provider.read_references(
            ReferencesPlan(type=kind, pointer=pointer, limit=limit, after=after)
        )
        texts |= page.texts
        if page.reached is None:
            return sorted(texts)
        assert page.reached != after
        after = page.reached


class ReferencesConformance(ProviderSuite):
    """Whatever a stored version names is told, however old, and in whatever scope."""

    async def test_heads_and_superseded_versions_are_told(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1", naming("x")))
        await committed(provider, update(A, "a1", "a2", naming("y")))
        await committed(provider, create(B, "b1", naming("z")))
        await committed(provider, delete(B, "b1", "b2"))

        assert await named(provider) == ["x", "y", "z"]

    async def test_all_heads_of_a_conflict_are_told(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1", naming("x")))
        both = [version("a2", naming("y"), parents=["a1"]), version("a3", naming("z"))]
        await committed(provider, commit(A, *both, expected=["a1"]))
        assert await named(provider) == ["x", "y", "z"]

        alone = commit(A, version("a4", {"n": 1}, parents=["a3"]), expected=["a2", "a3"])
        await committed(provider, alone)
        assert await named(provider) == ["x", "y", "z"]

    async def test_all_scopes_are_gone_through_page_by_page(self, provider: Provider) -> None:
        for number in range(5):
            name = f"n{number}"
            await committed(provider, create(entity(name), f"{name}v", naming(f"own {number}")))
            other = entity(name, scope=OTHER_SCOPE)
            await committed(provider, create(other, f"{name}o", naming(f"other {number}")))
        expected = sorted([f"{who} {number}" for who in ("own", "other") for number in range(5)])

        for limit in (1, 2, 5, 9, 10, 11):
            assert await named(provider, limit=limit) == expected

    async def test_other_types_places_and_kinds_are_not_told(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1", naming("x")))
        await committed(provider, create(entity("a", kind="other"), "o1", naming("y")))
        values: list[Json] = [{"place": {"key": 7}}, {"place": 1}, ["x"], {}]
        for number, value in enumerate(values):
            await committed(provider, create(entity(f"n{number}"), f"n{number}v", value))

        assert await named(provider) == ["x"]
        assert await named(provider, kind="nothing") == []
        assert await named(provider, pointer="/place") == []

    async def test_a_page_of_nothing_is_refused(self, provider: Provider) -> None:
        with pytest.raises(MisuseError):
            await named(provider, limit=0)

    @pytest.mark.requires("work_units")
    async def test_what_is_staged_is_told(self, provider: Provider) -> None:
        own = staging(unit())
        await committed(provider, create(B, "b1", naming("y")))
        await staged(provider, create(A, "a1", naming("x"), staging=own))
        await staged(provider, update(B, "b1", "b2", naming("z"), staging=own))

        assert await named(provider, limit=1) == ["x", "y", "z"]
