"""Whatever the index has seen, a retrieval answers what `matching` says of the heads."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchouli.provider import (
    CausalToken,
    ChangeKind,
    Commit,
    Committed,
    Consistency,
    EntityKey,
    Filter,
    Hit,
    Operator,
    Order,
    Page,
    Position,
    RetrievePlan,
    ScopeText,
    SystemClock,
    Version,
    VersionId,
    VersionState,
    holds,
    leaves,
    resolve,
    sort_key,
    text_score,
)
from patchouli.provider_sqlite import search, search_candidates
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import Disk, open_reader, open_writer, use_wal
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_store import IndexStore, index_path
from patchouli.provider_sqlite.lifecycle import Chance, start_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from random import Random  # noqa: TID251 - the class; hypothesis seeds it

    from patchouli.provider import Json

SCOPES = (ScopeText('{"w":"1"}'), ScopeText('{"w":"2"}'))
TYPES = ("artifact", "knowledge", "relation")
EXAMPLES = int(os.environ.get("PATCHOULI_EXAMPLES", "25"))
SMALL = IndexLimits(batch_changes=3, batch_bytes=400)


class Library:
    """A truth with an index that moves only when it is told to, and the heads as plain values."""

    def __init__(self, directory: Path) -> None:
        self.truth = directory / "db"
        self.truth.touch()
        self.connection = open_writer(self.truth, cache_kib=2000, disk=Disk())
        assert use_wal(self.connection)
        start_run(self.connection, witness=None, chance=Chance("one", bytes(32)), now_unix_ms=0)
        self.ledger = Ledger(self.connection, SystemClock())
        self.heads: dict[EntityKey, tuple[Version, ...]] = {}
        self.index = IndexStore.build(self.truth, SMALL, Disk())
        self.reader = open_reader(self.truth, cache_kib=2000, disk=Disk())
        self.reader.execute("ATTACH ? AS idx", (str(index_path(self.truth)),))
        self._count = 0

    def put(self, key: EntityKey, values: Sequence[Json | None], recorded_at: int) -> None:
        """Replace the heads of an entity by heads with these values; None is a tombstone.

        `[None]` is a single tombstone, `["x", None]` a value and a tombstone beside it.
        """
        self.put_texts(
            key,
            [None if v is None else json.dumps(v, ensure_ascii=False) for v in values],
            recorded_at,
        )

    def put_texts(self, key: EntityKey, texts: Sequence[str | None], recorded_at: int) -> None:
        """Replace the heads of an entity by heads with these JSON texts."""
        versions: list[Version] = []
        for offset, text in enumerate(texts):
            self._count += 1
            versions.append(
                Version(
                    id=VersionId(f"v{self._count:06}"),
                    state=VersionState.DELETED if text is None else VersionState.ACTIVE,
                    value_json=text,
                    parents=(),
                    recorded_at_unix_ms=recorded_at + offset,
                )
            )
        heads = tuple(version.id for version in versions)
        commit = Commit(
            key=key,
            expected_heads=tuple(head.id for head in self.heads.get(key, ())),
            new_versions=tuple(versions),
            head_versions=heads,
            accepted=heads[0],
            kind=ChangeKind.UPDATED,
            causal_token=CausalToken(f"t{self._count}"),
            event_meta_json="{}",
            recorded_at_unix_ms=recorded_at,
        )
        (result,) = self.ledger.publish([commit])
        assert isinstance(result, Committed)
        self.heads[key] = tuple(versions)

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
        while self.index.catch_up() or self.index.build_on():
            pass

    def search(self, plan: RetrievePlan, *, has_index: bool = True) -> Page:
        page = search.retrieve(self.reader, plan, clock=SystemClock(), has_index=has_index)
        assert isinstance(page, Page)
        return page

    def expected(self, plan: RetrievePlan) -> list[Hit]:
        """Return every hit after `plan.after`, by the definition."""
        hits = [hit for key in self.heads if (hit := self._hit(key, plan)) is not None]
        is_descending = plan.order is Order.ID_DESCENDING
        hits.sort(key=lambda hit: _key(plan.order, hit), reverse=is_descending)
        if plan.after is None:
            return hits
        start = sort_key(plan.order, plan.after)
        return [
            hit
            for hit in hits
            if (_key(plan.order, hit) < start if is_descending else _key(plan.order, hit) > start)
        ]

    def _hit(self, key: EntityKey, plan: RetrievePlan) -> Hit | None:
        if key.scope != plan.scope or (plan.types is not None and key.type not in plan.types):
            return None
        if plan.ids is not None and key.id not in plan.ids:
            return None
        found: list[tuple[float, int]] = []
        for head in self.heads[key]:
            if head.value_json is None:
                continue
            value = json.loads(head.value_json)
            score = 0.0 if plan.text is None else text_score(value, plan.text)
            if score is not None and all(holds(filter_, value) for filter_ in plan.filters):
                found.append((score, head.recorded_at_unix_ms))
        if not found:
            return None
        return Hit(
            key=key,
            heads=tuple(sorted(self.heads[key], key=lambda head: head.id)),
            score=max(score for score, _ in found),
            recorded_at_unix_ms=max(at for _, at in found),
        )

    def close(self) -> None:
        self.reader.close()
        self.index.close()
        self.connection.close()


def _position(hit: Hit) -> Position:
    return Position(
        score=hit.score,
        recorded_at_unix_ms=hit.recorded_at_unix_ms,
        type=hit.key.type,
        id=hit.key.id,
    )


def _key(order: Order, hit: Hit) -> tuple[int | float | str, ...]:
    return sort_key(order, _position(hit))


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    library = Library(tmp_path)
    yield library
    library.close()


def plan_of(
    scope: ScopeText = SCOPES[0],
    *,
    text: str | None = None,
    filters: tuple[Filter, ...] = (),
    order: Order = Order.ID_ASCENDING,
    limit: int = 100,
    types: tuple[str, ...] | None = None,
    ids: frozenset[str] | None = None,
    after: Position | None = None,
    limit_bytes: int = 2**30,
) -> RetrievePlan:
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
        after=after,
    )


PIECES = (
    *"abkisKIAZ09 .-_",
    *"ÉéßẞİıKΣςσ",  # noqa: RUF001 - fold to ASCII, to several letters, to another letter than `casefold` says
    *"数据茶한かﾊ𠮷",
    *"🙂\u0301\u200d%*\\\"'#~^|",
    *"мирМИР",
    "\x00", "\x1d", "\x1e", "\x1f", "\n", "\t",
    "ab", "abc", "数据", "NEAR", "AND", "null", "true", "0.5", "1e16", "\\u001f",
)  # fmt: skip
NAMES = (
    "a",
    "A",
    "b c",
    "0",
    "1",
    "",
    "~",
    "/",
    "é",
    "数",
    'q"',
    "k\x1f",
    "k\n",
    "ab",
    "x_y",
    "\\",
)
NUMBERS = (
    0, 1, -1, 5, 10, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**64 - 1,
    0.0, -0.0, 1.0, 5.0, 0.5, 0.1, 0.30000000000000004, 1e16, 1e-7, 1.5e300, 9007199254740992.0,
    123456789.125, 1e15, 0.0001,
)  # fmt: skip


class Corpus:
    """Values, needles, filters and plans that often meet, all drawn from one source of chance."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        # Few pieces and names at a time, so that values share them.
        self._names = chance.sample(NAMES, chance.randint(2, 6))
        self._pieces = chance.sample(PIECES, chance.randint(3, 12)) + self._names[:2]
        self._numbers = chance.sample(NUMBERS, 4)

    def key(self) -> EntityKey:
        ids = ("a", "b", "c", "d", "e", "é\x00", "10", "9", "Z")
        return EntityKey(
            self._chance.choice(SCOPES), self._chance.choice(TYPES), self._chance.choice(ids)
        )

    def values(self) -> list[Json | None]:
        """Return what the heads of an entity hold: mostly one value."""
        kind = self._chance.randrange(10)
        if kind == 0:
            return [None]
        if kind == 1:
            return [self.value(), None]
        return [self.value() for _ in range(2 if kind == 2 else 1)]

    def text(self, most: int = 6) -> str:
        return "".join(self._chance.choices(self._pieces, k=self._chance.randint(0, most)))

    def value(self, depth: int = 3) -> Json:
        kind = self._chance.randrange(12 if depth else 6)
        match kind:
            case 0 | 1 | 2:
                return self.text()
            case 3 | 4:
                return self._chance.choice(self._numbers)
            case 5:
                return self._chance.choice((None, True, False))
            case 6 | 7:
                return [self.value(depth - 1) for _ in range(self._chance.randint(0, 3))]
            case _:
                names = self._chance.sample(self._names, self._chance.randint(0, 2))
                return {name: self.value(depth - 1) for name in names}

    def needle(self, stored: Sequence[Json]) -> str:
        """Return a part of a stored leaf, its case sometimes changed, or something new."""
        if not stored or self._chance.random() < 0.2:
            return self.text() or "a"
        found = self._chance.choice(leaves(self._chance.choice(stored)) or ["a"])
        start = self._chance.randrange(len(found) + 1)
        part = found[start : start + self._chance.randint(1, 5)]
        change = self._chance.choice((str, str, str.upper, str.lower, str.title))
        return change(part) or "a"

    def filter(self, stored: Sequence[Json]) -> Filter:
        """Return a condition at a place of a stored value, mostly near what is there."""
        value = self._chance.choice(stored) if stored else {}
        pointers = [*_pointers(value)] * 3 + ["/a", "/0", "/-", "/a/0", "/b c"]
        pointer = self._chance.choice(pointers)
        operator = self._chance.choice(list(Operator))
        try:
            operand = resolve(value, pointer)
        except LookupError:
            operand = self.value()
        if operator is Operator.CONTAINS:
            if isinstance(operand, list) and operand:
                operand = self._chance.choice(operand)
            elif isinstance(operand, str):
                start = self._chance.randrange(len(operand) + 1)
                operand = operand[start : start + self._chance.randint(0, 4)]
        if isinstance(operand, float) and operand.is_integer() and self._chance.random() < 0.5:
            operand = int(operand)
        elif (
            isinstance(operand, int)
            and not isinstance(operand, bool)
            and self._chance.random() < 0.3
        ):
            operand = float(operand)
        elif self._chance.random() < 0.1:
            operand = self.value()
        return Filter(
            pointer=pointer,
            operator=operator,
            operand_json=json.dumps(operand, ensure_ascii=False, separators=(",", ":")),
        )

    def plan(self, stored: Sequence[Json]) -> RetrievePlan:
        text = self.needle(stored) if self._chance.random() < 0.6 else None
        orders = [order for order in Order if text is not None or order is not Order.RELEVANCE]
        return plan_of(
            self._chance.choice(SCOPES),
            text=text,
            filters=tuple(self.filter(stored) for _ in range(self._chance.choice((0, 0, 1, 1, 2)))),
            order=self._chance.choice(orders),
            limit=self._chance.randint(1, 5),
            types=self._chance.choice((None, TYPES, ("knowledge",), ("artifact", "relation"))),
            ids=self._chance.choice((None, None, None, frozenset({"a", "10", "é\x00", "zz"}))),
        )


def _pointers(value: Json, at: str = "") -> Iterator[str]:
    if at:
        yield at
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _pointers(member, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from _pointers(element, f"{at}/{index}")


@settings(max_examples=EXAMPLES, deadline=None)
@given(chance=st.randoms(use_true_random=True), few=st.sampled_from((0, 2, 1000)))
def test_an_index_anywhere_answers_what_the_heads_say(
    tmp_path_factory: pytest.TempPathFactory, chance: Random, few: int
) -> None:
    corpus = Corpus(chance)
    library = Library(tmp_path_factory.mktemp("library"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_candidates, "FEW", few)
            for _ in range(chance.randint(10, 60)):
                step = chance.randrange(10)
                if step == 0:
                    library.index.build_on()
                elif step <= 2:
                    library.index.catch_up()
                else:
                    library.put(corpus.key(), corpus.values(), chance.randint(0, 5))
            if chance.random() < 0.7:
                library.index_all()
                for _ in range(chance.choice((0, 0, 3))):
                    library.put(corpus.key(), corpus.values(), chance.randint(0, 5))
            stored = library.values()
            for _ in range(30):
                _check_pages(library, corpus.plan(stored))
    finally:
        library.close()


def _check_pages(library: Library, plan: RetrievePlan) -> None:
    """Walk through the pages; each holds the next expected hits and says whether more follow."""
    expected = library.expected(plan)
    after = plan.after
    while True:
        page = library.search(plan_like(plan, after=after))
        assert list(page.hits) == expected[: plan.limit]
        assert page.has_more == (len(expected) > plan.limit)
        expected = expected[plan.limit :]
        if not page.hits or not page.has_more:
            return
        after = _position(page.hits[-1])


def plan_like(plan: RetrievePlan, *, after: Position | None) -> RetrievePlan:
    return plan_of(
        plan.scope,
        text=plan.text,
        filters=plan.filters,
        order=plan.order,
        limit=plan.limit,
        types=plan.types,
        ids=plan.ids,
        after=after,
        limit_bytes=plan.limit_bytes,
    )
