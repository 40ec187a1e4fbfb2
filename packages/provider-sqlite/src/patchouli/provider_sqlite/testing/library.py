"""A truth with an index whose position a test decides, and what retrievals have to answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    ChangeKind,
    Commit,
    Committed,
    Consistency,
    ControlKey,
    EntityKey,
    Filter,
    Hit,
    Operator,
    Order,
    Page,
    Position,
    RetrievePlan,
    ScopeText,
    Staged,
    SystemClock,
    UnitStaging,
    Version,
    VersionId,
    VersionState,
    WorkUnit,
    holds,
    sort_key,
    text_score,
)
from patchouli.provider_sqlite import search
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import Disk, open_reader, open_writer, use_wal
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_store import IndexStore, index_path
from patchouli.provider_sqlite.lifecycle import Chance, start_run
from patchouli.provider_sqlite.units import Enter
from patchouli.provider_sqlite.units_staging import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from patchouli.provider import Json
    from patchouli.provider_sqlite.connection import Connection

SCOPE: Final = ScopeText('{"w":"1"}')
_CACHE_KIB: Final = 2000


def plan_of(
    scope: ScopeText = SCOPE,
    *,
    text: str | None = None,
    filters: tuple[Filter, ...] = (),
    order: Order = Order.ID_ASCENDING,
    limit: int = 100,
    limit_bytes: int = 1 << 30,
    types: tuple[str, ...] | None = None,
    ids: frozenset[str] | None = None,
) -> RetrievePlan:
    """Return the plan of a first page."""
    return RetrievePlan(
        scope=scope,
        consistency=Consistency(),
        order=order,
        limit=limit,
        limit_bytes=limit_bytes,
        types=types,
        ids=ids,
        text=text,
        filters=filters,
    )


def unit_of(scope: ScopeText) -> WorkUnit:
    """Return the work unit of a scope, which never ends by itself."""
    return WorkUnit(
        identity=ControlKey(f"unit of {scope}"),
        scope=scope,
        policy_json="{}",
        now_unix_ms=0,
        expires_at_unix_ms=INTEGER_MAX,
    )


def filter_of(pointer: str, operator: Operator, operand: Json) -> Filter:
    """Return a filter with its operand as canonical text."""
    return Filter(pointer=pointer, operator=operator, operand_json=_text(operand))


def position_of(hit: Hit) -> Position:
    """Return where a hit stands, for a page after it."""
    return Position(
        score=hit.score,
        recorded_at_unix_ms=hit.recorded_at_unix_ms,
        type=hit.key.type,
        id=hit.key.id,
    )


class Library:
    """A truth, what it holds as plain values, and a reader with the index attached."""

    def __init__(self, truth: Path, *, limits: IndexLimits | None = None) -> None:
        self.truth = truth
        self.limits = limits or IndexLimits()
        truth.touch(mode=0o600)
        self.connection: Connection = open_writer(truth, cache_kib=_CACHE_KIB, disk=Disk())
        use_wal(self.connection)
        chance = Chance("one", bytes(32))
        start_run(self.connection, witness=None, chance=chance, now_unix_ms=0)
        self._ledger = Ledger(self.connection, SystemClock())
        self.heads: dict[EntityKey, tuple[Version, ...]] = {}
        self.heads_in_unit: dict[ScopeText, dict[EntityKey, tuple[Version, ...]]] = {}
        self.index = IndexStore.build(truth, self.limits, Disk())
        self.reader = self.open_reader()
        self.reader.execute("ATTACH ? AS idx", (str(index_path(truth)),))
        self._count = 0

    @property
    def frontier(self) -> int:
        """The cursor of the last change."""
        return self._ledger.last_cursor

    def open_reader(self) -> Connection:
        """Return another reading connection to the truth."""
        return open_reader(self.truth, cache_kib=_CACHE_KIB, disk=Disk())

    def put(self, key: EntityKey, values: Sequence[Json], *, recorded_at: int = 0) -> None:
        """Replace the heads of an entity by heads with these values; None is a tombstone.

        `[None]` is a single tombstone, `["x", None]` a value with a tombstone beside it.
        """
        self.put_all([(key, values, recorded_at)])

    def put_all(self, entities: Sequence[tuple[EntityKey, Sequence[Json], int]]) -> None:
        """Replace the heads of several entities, each with its time, in one transaction."""
        commits = [self._commit(self.heads, *entity) for entity in entities]
        for result in self._ledger.publish(commits):
            if not isinstance(result, Committed):
                raise AssertionError(result)

    def open_unit(self, scope: ScopeText) -> None:
        """Open the work unit of a scope, if it is not open."""
        self._ledger.publish([Enter(unit_of(scope), Consistency())])
        heads = {key: heads for key, heads in self.heads.items() if key.scope == scope}
        self.heads_in_unit.setdefault(scope, heads)

    def stage(
        self,
        key: EntityKey,
        values: Sequence[Json],
        *,
        recorded_at: int = 0,
        keeps_heads: bool = False,
    ) -> None:
        """Replace the heads of an entity in the open unit of its scope, or add some to them."""
        heads = self.heads_in_unit[key.scope]
        before = heads.get(key, ())
        commit = self._commit(heads, key, values, recorded_at)
        if keeps_heads:
            stay = tuple(head.id for head in before)
            commit = replace(commit, head_versions=(*stay, *commit.head_versions))
            heads[key] = (*before, *heads[key])
        staging = UnitStaging(
            unit=unit_of(key.scope), conflict_policy_json="{}", request_json="{}", close=False
        )
        (result,) = self._ledger.publish([Stage(commit, staging)])
        if not isinstance(result, Staged):
            raise TypeError(result)

    def forget_heads(self) -> None:
        """Forget what was written, where there is much and nothing will be compared with it."""
        self.heads.clear()

    def values(self) -> list[Json]:
        """Return the values of all active heads."""
        return [
            json.loads(head.value_json)
            for heads in self.heads.values()
            for head in heads
            if head.value_json is not None
        ]

    def index_all(self) -> None:
        """Build the index and bring it to the frontier."""
        while any((self.index.catch_up(), self.index.build_on())):
            pass

    def search(self, plan: RetrievePlan, *, has_index: bool = True) -> Page:
        """Return the page of `plan`."""
        answer = search.retrieve(self.reader, plan, clock=SystemClock(), has_index=has_index)
        if answer is None or not isinstance(answer.outcome, Page):
            raise TypeError(answer)
        return answer.outcome

    def ids(self, plan: RetrievePlan) -> list[str]:
        """Return the ids of the page of `plan`."""
        return [hit.key.id for hit in self.search(plan).hits]

    def walk(self, plan: RetrievePlan, *, has_index: bool = True) -> Iterator[Page]:
        """Return the page of `plan` and all that follow it."""
        while True:
            page = self.search(plan, has_index=has_index)
            yield page
            if not page.has_more:
                return
            plan = replace(plan, after=position_of(page.hits[-1]))

    def expected(self, plan: RetrievePlan) -> list[Hit]:
        """Return every hit of `plan`, whatever the page, by the definition of a match."""
        heads = self.heads if plan.unit is None else self.heads_in_unit[plan.scope]
        found = (self._hit(key, heads[key], plan) for key in heads)
        hits = [hit for hit in found if hit is not None]
        return sorted(
            hits,
            key=lambda hit: sort_key(plan.order, position_of(hit)),
            reverse=plan.order is Order.ID_DESCENDING,
        )

    def close(self) -> None:
        """Close all connections."""
        self.reader.close()
        self.index.close()
        self.connection.close()

    def _commit(
        self,
        heads: dict[EntityKey, tuple[Version, ...]],
        key: EntityKey,
        values: Sequence[Json],
        recorded_at: int,
    ) -> Commit:
        """Return a commit that replaces what `heads` says of an entity, and note it there."""
        versions = tuple(
            self._version(value, recorded_at + offset) for offset, value in enumerate(values)
        )
        ids = tuple(version.id for version in versions)
        expected = tuple(head.id for head in heads.get(key, ()))
        heads[key] = versions
        return Commit(
            key=key,
            expected_heads=expected,
            new_versions=versions,
            head_versions=ids,
            accepted=ids[0],
            kind=ChangeKind.UPDATED,
            causal_token=CausalToken(f"t-{ids[0]}"),
            event_meta_json="{}",
            recorded_at_unix_ms=recorded_at,
        )

    def _version(self, value: Json, recorded_at: int) -> Version:
        self._count += 1
        return Version(
            id=VersionId(f"v{self._count:07}"),
            state=VersionState.DELETED if value is None else VersionState.ACTIVE,
            value_json=None if value is None else _text(value),
            parents=(),
            recorded_at_unix_ms=recorded_at,
        )

    def _hit(self, key: EntityKey, heads: tuple[Version, ...], plan: RetrievePlan) -> Hit | None:
        if key.scope != plan.scope or (plan.types is not None and key.type not in plan.types):
            return None
        if plan.ids is not None and key.id not in plan.ids:
            return None
        found: list[tuple[float, int]] = []
        for head in heads:
            if head.value_json is not None:
                value = json.loads(head.value_json)
                score = 0.0 if plan.text is None else text_score(value, plan.text)
                if score is not None and all(holds(filter_, value) for filter_ in plan.filters):
                    found.append((score, head.recorded_at_unix_ms))
        if not found:
            return None
        return Hit(
            key=key,
            heads=tuple(sorted(heads, key=lambda head: head.id)),
            score=max(score for score, _ in found),
            recorded_at_unix_ms=max(at for _, at in found),
        )


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
