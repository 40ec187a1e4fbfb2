"""Documents of the index that match, in the order of the plan, as few looked at as possible.

Four ways, by how much the index can exclude:

* *few*: some documents hold all matches. They are read, scored and sorted;
* *in order*: the order does not depend on the text. Documents are read in the order of the results,
  type by type, until the page is full;
* *by shared leaves*: relevance, and the text is in few documents itself but in leaves that many
  share. Among the others that share them the shortest is the most relevant, by an index;
* *all*: relevance without anything selective. Every document that may match is scored, and only the
  best are kept.

SQL scores a text by counting: what the text loses when the needle is cut out of it, in whole
occurrences, times the length of the needle, over the length of all leaves. That is the same number
as `patchouli.provider.text_score`, to the last bit.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Final

from patchouli.provider import INTEGER_MAX, Order, holds
from patchouli.provider_sqlite import search_filters
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.index_schema import ENTITY_BITS, ENTITY_MASK
from patchouli.provider_sqlite.search_candidates import (
    BY_LEAVES,
    BY_TEXT,
    CUT,
    Question,
    SharedFound,
)
from patchouli.provider_sqlite.search_order import AFTER, ORDER, bindings_after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider_sqlite.connection import Array
    from patchouli.provider_sqlite.index_text import Needle
    from patchouli.provider_sqlite.search_filters import Bindings
    from patchouli.provider_sqlite.search_found import Found, Wanted
    from patchouli.provider_sqlite.search_snapshot import Snapshot

LONGEST_FETCH: Final = 512  # rows asked for at once when a page turns out to need many
SETS_IN_SQL: Final = 4  # sets of shared leaves whose coverage is part of the statement

_AFTER_ALL_IDS: Final = b""  # SQLite orders a BLOB after every TEXT

_SHELVES: Final = "SELECT shelf_id, type FROM idx.shelf WHERE scope_id = ? ORDER BY type"
_VALUE: Final = "SELECT value FROM entity WHERE entity_id = ?"
_TRUTH: Final = f"CROSS JOIN entity AS e ON e.entity_id = d.document_id & {ENTITY_MASK}"

# LIMIT -1 OFFSET 0 keeps SQLite from folding the inner query into the outer one, which would count
# the needle once for each place where `covered` is mentioned.
_SORTED: Final = """
SELECT document_id, type, id, recorded_at, covered, total FROM (
    SELECT d.document_id, s.type, d.id, d.recorded_at, {covered} AS covered, d.total
    FROM {source} CROSS JOIN idx.shelf AS s ON s.shelf_id = d.shelf_id {truth}
    WHERE d.shelf_id IN (SELECT value FROM carray(:shelves)) {conditions}
    LIMIT -1 OFFSET 0
) WHERE covered > 0 {after} ORDER BY {order} LIMIT :limit"""
_FEW_DOCUMENTS: Final = "carray(:few) AS c CROSS JOIN idx.document AS d ON d.document_id = c.value"
_TEXT_DOCUMENTS: Final = (
    f"({BY_TEXT}) AS c CROSS JOIN idx.document AS d ON d.document_id = c.document_id"
)
_ALL_DOCUMENTS: Final = """
(SELECT * FROM idx.document WHERE document_id BETWEEN :first AND :last) AS d"""

_IN_ORDER_OF_TIME: Final = """
SELECT d.document_id, :type, d.id, d.recorded_at, {covered}, d.total
FROM idx.document AS d INDEXED BY document_newest {truth}
WHERE d.shelf_id = :shelf AND d.recorded_at {direction}= :time
    AND (d.recorded_at {direction} :time OR d.id > :id) {conditions}
ORDER BY d.recorded_at {order}, d.id LIMIT :limit"""
_IN_ORDER_OF_IDS: Final = f"""
SELECT d.document_id, e.type, d.id, d.recorded_at, {{covered}}, d.total
FROM entity AS e
CROSS JOIN idx.document AS d ON d.document_id = (e.scope_id << {ENTITY_BITS} | e.entity_id)
WHERE e.scope_id = :scope AND e.type = :type
    AND e.id {{direction}}= :id AND (e.id {{direction}} :id OR :is_included) {{conditions}}
ORDER BY e.id {{order}} LIMIT :limit"""  # noqa: S608 - of constants
_IN_ORDER_OF_LENGTH: Final = """
SELECT d.document_id, s.type AS type, d.id AS id, d.recorded_at AS recorded_at,
       :covered AS covered, d.total AS total
FROM idx.document AS d INDEXED BY document_shared
CROSS JOIN idx.shelf AS s ON s.shelf_id = d.shelf_id {truth}
WHERE d.shared_id = :shared_id AND d.total >= :least_total
    AND d.document_id NOT IN (SELECT value FROM carray(:few))
    AND d.shelf_id IN (SELECT value FROM carray(:shelves)) {conditions} {after}
ORDER BY d.total, d.recorded_at DESC, s.type, d.id LIMIT :limit"""
_AFTER_LENGTH: Final = """AND (:covered * 1.0 / d.total < :score OR (
    :covered * 1.0 / d.total = :score AND (d.recorded_at < :time OR (
        d.recorded_at = :time AND (s.type, d.id) > (:type, :id)))))"""

Row = tuple[int, str, str, int, int, int]
"""document_id, type, id, recorded_at, covered, total."""


def find_documents(snapshot: Snapshot, wanted: Wanted) -> Iterator[Found]:
    """Return the documents that match and are not fresh, in the order of the plan."""
    types = None if wanted.plan.types is None else frozenset(wanted.plan.types)
    shelves: list[tuple[int, str]] = [
        (shelf_id, type_)
        for shelf_id, type_ in snapshot.connection.execute(_SHELVES, (snapshot.scope_id,))
        if types is None or type_ in types
    ]
    question = Question(snapshot, wanted)
    if not shelves or not question.can_match:
        return iter(())
    few = question.few([type_ for _, type_ in shelves])
    search = _Search(snapshot, wanted, question, shelves)
    if few is not None:
        return search.among(few) if few else iter(())
    if wanted.plan.order is not Order.RELEVANCE:
        return search.in_order()
    if question.needle is not None and question.shared:
        with_text = question.few_by_text(question.needle)
        if with_text is not None:
            return search.by_shared(with_text)
    return search.among_all()


class _Search:
    """The statements of one plan and the rows they yield."""

    def __init__(
        self,
        snapshot: Snapshot,
        wanted: Wanted,
        question: Question,
        shelves: list[tuple[int, str]],
    ) -> None:
        self._connection = snapshot.connection
        self._wanted = wanted
        self._plan = plan = wanted.plan
        self._question = question
        self._shelves = shelves
        self._conditions, filters = search_filters.conditions(plan.filters, "e.value")
        self._truth = _TRUTH if self._conditions else ""
        self._bindings = question.scope | filters
        self._bindings["shelves"] = number_array([shelf_id for shelf_id, _ in shelves])
        fresh = snapshot.fresh_documents()
        if fresh is not None:
            self._conditions += " AND d.document_id NOT IN (SELECT value FROM carray(:fresh))"
            self._bindings["fresh"] = fresh
        self._covered = "1" if question.needle is None else self._coverage(question.needle)

    def among(self, few: list[int]) -> Iterator[Found]:
        """Return the matches among some documents."""
        return self._sorted(_FEW_DOCUMENTS, {"few": number_array(few)})

    def among_all(self) -> Iterator[Found]:
        """Return the matches of the scope, each scored."""
        question = self._question
        source, conditions = _ALL_DOCUMENTS, ""
        bindings: Bindings = {}
        if (
            question.needle is not None
            and question.needle.match is not None
            and not question.shared
        ):
            source = _TEXT_DOCUMENTS
            bindings["text_match"] = question.needle.match
        if question.leaf_match is not None:
            conditions = f" AND d.document_id IN ({BY_LEAVES})"
            bindings["leaf_match"] = question.leaf_match
        return self._sorted(source, bindings, conditions)

    def in_order(self) -> Iterator[Found]:
        """Return the matches by reading the scope in the order of the plan."""
        return heapq.merge(
            *(self._shelf(shelf_id, type_) for shelf_id, type_ in self._shelves),
            reverse=self._wanted.is_descending,
        )

    def by_shared(self, with_text: list[int]) -> Iterator[Found]:
        """Return the matches; `with_text` may hold the needle, others only share it."""
        few = number_array(with_text)
        sources = [self._sorted(_FEW_DOCUMENTS, {"few": few})] if with_text else []
        sources += [self._sharing(shared, few) for shared in self._question.shared]
        return heapq.merge(*sources)

    def _coverage(self, needle: Needle) -> str:
        """Return how many characters the needle covers in the leaves of a document."""
        shared = self._question.shared
        self._bindings |= {
            "literal": needle.literal,
            "octets": len(needle.literal.encode()),
            "characters": needle.characters,
            "shared": number_array([found.shared_id for found in shared]),
        }
        in_text = f"{CUT.format('d.text')} / :octets * :characters"
        if not shared:
            return f"({in_text})"
        if len(shared) > SETS_IN_SQL:
            cut = f"SELECT {CUT.format('n.text')} FROM idx.shared AS n"  # noqa: S608 - of constants
            return f"({in_text} + ({cut} WHERE n.shared_id = d.shared_id) / :octets * :characters)"
        cases = ""
        for number, found in enumerate(shared):
            self._bindings[f"shared{number}"] = found.shared_id
            self._bindings[f"covered{number}"] = found.covered
            cases += f" WHEN :shared{number} THEN :covered{number}"
        return f"({in_text} + CASE d.shared_id{cases} ELSE 0 END)"

    def _sorted(self, source: str, bindings: Bindings, conditions: str = "") -> Iterator[Found]:
        """Return the matches among the documents of `source`, in order."""
        order = self._plan.order
        bound = self._bindings | bindings | bindings_after(self._plan.after)
        limit = self._plan.limit + 1
        after = "" if self._plan.after is None else f"AND {AFTER[order]}"
        while True:
            sql = _SORTED.format(
                covered=self._covered,
                source=source,
                truth=self._truth,
                conditions=self._conditions + conditions,
                after=after,
                order=ORDER[order],
            )
            rows = self._rows(sql, bound | {"limit": limit})
            yield from self._verified(rows)
            if len(rows) < limit:
                return
            after = f"AND {AFTER[order]}"
            bound |= self._after_row(rows[-1])
            limit = min(2 * limit, LONGEST_FETCH)

    def _sharing(self, shared: SharedFound, few: Array) -> Iterator[Found]:
        """Return the matches that share these leaves, but for `few`, the shortest first."""
        bound = self._bindings | bindings_after(self._plan.after)
        bound |= {"few": few, "shared_id": shared.shared_id, "covered": shared.covered}
        bound["least_total"] = 0
        after = "" if self._plan.after is None else _AFTER_LENGTH
        limit = self._plan.limit + 1
        while True:
            sql = _IN_ORDER_OF_LENGTH.format(
                truth=self._truth, conditions=self._conditions, after=after
            )
            rows = self._rows(sql, bound | {"limit": limit})
            yield from self._verified(rows)
            if len(rows) < limit:
                return
            after = _AFTER_LENGTH
            bound |= self._after_row(rows[-1])
            bound["least_total"] = rows[-1][5]
            limit = min(2 * limit, LONGEST_FETCH)

    def _shelf(self, shelf_id: int, type_: str) -> Iterator[Found]:
        """Return the matches of one type, read in the order of the plan."""
        order = self._plan.order
        is_by_time = order in {Order.NEWEST, Order.OLDEST}
        is_down = order in {Order.NEWEST, Order.ID_DESCENDING}
        conditions = self._conditions
        if self._question.needle is not None:
            conditions += " AND (instr(d.text, :literal)"
            conditions += " OR d.shared_id IN (SELECT value FROM carray(:shared)))"
        sql = (_IN_ORDER_OF_TIME if is_by_time else _IN_ORDER_OF_IDS).format(
            covered=self._covered,
            truth=self._truth,
            conditions=conditions,
            direction="<" if is_down else ">",
            order="DESC" if is_down else "",
        )
        bound = self._bindings | {"shelf": shelf_id, "type": type_}
        bound |= self._first_time(type_) if is_by_time else self._first_id(type_)
        limit = self._plan.limit + 1
        while True:
            rows = self._rows(sql, bound | {"limit": limit})
            yield from self._verified(rows)
            if len(rows) < limit:
                return
            _, _, id_, recorded_at, _, _ = rows[-1]
            bound |= {"time": recorded_at, "id": id_, "is_included": 0}
            limit = min(2 * limit, LONGEST_FETCH)

    def _first_time(self, type_: str) -> Bindings:
        """Return after which time and id a type continues; all ids are greater than ''."""
        after = self._plan.after
        is_down = self._plan.order is Order.NEWEST
        if after is None:
            return {"time": INTEGER_MAX if is_down else -1, "id": ""}
        time = after.recorded_at_unix_ms
        if type_ == after.type:
            return {"time": time, "id": after.id}
        if type_ > after.type:
            return {"time": time, "id": ""}
        return {"time": time - 1 if is_down else time + 1, "id": ""}

    def _first_id(self, type_: str) -> Bindings:
        """Return after which id a type continues, and whether with that id itself."""
        after = self._plan.after
        is_down = self._plan.order is Order.ID_DESCENDING
        if after is None:
            return {"id": _AFTER_ALL_IDS if is_down else "", "is_included": 1}
        is_included = type_ < after.type if is_down else type_ > after.type
        return {"id": after.id, "is_included": int(is_included)}

    def _after_row(self, row: Row) -> Bindings:
        return bindings_after(self._found(row).position)

    def _rows(self, sql: str, bindings: Bindings) -> list[Row]:
        return self._connection.execute(sql, bindings).fetchall()

    def _verified(self, rows: list[Row]) -> Iterator[Found]:
        for row in rows:
            found = self._found(row)
            if self._wanted.admits(found.type, found.id) and self._holds(found.entity_id):
                yield found

    def _holds(self, entity_id: int) -> bool:
        filters = self._plan.filters
        if not filters:
            return True
        value = json.loads(self._connection.execute(_VALUE, (entity_id,)).get)
        return all(holds(filter_, value) for filter_ in filters)

    def _found(self, row: Row) -> Found:
        document_id, type_, id_, recorded_at, covered, total = row
        score = 0.0 if self._plan.text is None else covered / total
        return self._wanted.found(document_id & ENTITY_MASK, type_, id_, score, recorded_at)
