"""Documents of the index that match, in the order of the plan, as few looked at as possible.

Three ways, by how much the index can exclude:

* *few*: the trigrams of the text, the tokens of equalities, or the ids leave at most `FEW`
  documents of the scope. They are read, scored and sorted;
* *in order*: nothing excludes enough, and the order does not depend on the text. Documents are read
  in the order of the results, type by type, until the page is full;
* *all*: relevance without anything selective. Every document is scored; only the best are kept.

SQL scores a text by counting: what a text loses when the needle is cut out of it, in whole
occurrences, times the length of the needle, over the length of all leaves. That is the same number
as `patchouli.provider.text_score`, to the last bit.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Final

from patchouli.provider import INTEGER_MAX, Operator, Order, holds
from patchouli.provider_sqlite import search_filters
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.index_leaves import match_of, tokens_of
from patchouli.provider_sqlite.index_schema import ENTITY_MASK, documents_of
from patchouli.provider_sqlite.index_text import needle_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider_sqlite.index_text import Needle
    from patchouli.provider_sqlite.search_filters import Bindings
    from patchouli.provider_sqlite.search_found import Found, Wanted
    from patchouli.provider_sqlite.search_snapshot import Snapshot

FEW: Final = 1000  # documents; reading and scoring them takes a few milliseconds
LONGEST_FETCH: Final = 512  # rows asked for at once when a page turns out to need many
EQUALITIES_ASKED: Final = 16  # of the index; the others are left to the verification

_AFTER_ALL_IDS: Final = b""  # SQLite orders a BLOB after every TEXT

_SHELVES: Final = "SELECT shelf_id, type FROM idx.shelf WHERE scope_id = ? ORDER BY type"
_VALUE: Final = "SELECT value FROM entity WHERE entity_id = ?"
_LISTED: Final = "SELECT group_concat(number) FROM ({numbers} LIMIT :few)"
_BY_TEXT: Final = """
SELECT rowid AS number FROM idx.text_index
WHERE text_index MATCH :text_match AND rowid BETWEEN :first AND :last"""
_BY_LEAVES: Final = """
SELECT rowid AS number FROM idx.leaf_index
WHERE leaf_index MATCH :leaf_match AND rowid BETWEEN :first AND :last"""
_BY_NAMES: Final = """
SELECT document_id AS number FROM idx.document INDEXED BY document_names
WHERE names_id IN (SELECT value FROM carray(:names))"""
_BY_IDS: Final = """
SELECT e.scope_id << 37 | e.entity_id AS number
FROM json_each(:types) AS t CROSS JOIN json_each(:ids) AS i
CROSS JOIN entity AS e ON e.scope_id = :scope AND e.type = t.value AND e.id = i.value"""
_WITHIN_SCOPE: Final = """
SELECT document_id AS number FROM idx.document WHERE document_id BETWEEN :first AND :last"""

_NAMES_SEARCHED: Final = """
SELECT group_concat(n.names_id) FROM idx.names_index AS x
CROSS JOIN idx.names AS n ON n.names_id = x.rowid
WHERE x.names_index MATCH :text_match AND x.rowid BETWEEN :first AND :last
    AND instr(n.text, :literal)"""
_NAMES_SCANNED: Final = """
SELECT group_concat(names_id) FROM idx.names
WHERE names_id BETWEEN :first AND :last AND instr(text, :literal)"""

_COVERED: Final = "(octet_length({0}) - octet_length(replace({0}, :literal, '')))"
_COVERED_NAMES: Final = f"""(
    SELECT {_COVERED.format("n.text")} FROM idx.names AS n WHERE n.names_id = d.names_id)"""  # noqa: S608 - of constants

_BETTER: Final[dict[Order, str]] = {
    Order.RELEVANCE: "covered * 1.0 / total DESC, recorded_at DESC, type, id",
    Order.NEWEST: "recorded_at DESC, type, id",
    Order.OLDEST: "recorded_at, type, id",
    Order.ID_ASCENDING: "id, type",
    Order.ID_DESCENDING: "id DESC, type DESC",
}
_AFTER: Final[dict[Order, str]] = {
    Order.RELEVANCE: """(covered * 1.0 / total < :score OR (covered * 1.0 / total = :score
        AND (recorded_at < :time OR (recorded_at = :time AND (type, id) > (:type, :id)))))""",
    Order.NEWEST: "(recorded_at < :time OR (recorded_at = :time AND (type, id) > (:type, :id)))",
    Order.OLDEST: "(recorded_at > :time OR (recorded_at = :time AND (type, id) > (:type, :id)))",
    Order.ID_ASCENDING: "(id, type) > (:id, :type)",
    Order.ID_DESCENDING: "(id, type) < (:id, :type)",
}
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
    f"({_BY_TEXT}) AS c CROSS JOIN idx.document AS d ON d.document_id = c.number"
)
_ALL_DOCUMENTS: Final = (
    f"({_WITHIN_SCOPE}) AS c CROSS JOIN idx.document AS d ON d.document_id = c.number"
)

_TRUTH: Final = f"CROSS JOIN entity AS e ON e.entity_id = d.document_id & {ENTITY_MASK}"
_IN_ORDER_OF_TIME: Final = """
SELECT d.document_id, :type, d.id, d.recorded_at, {covered}, d.total
FROM idx.document AS d INDEXED BY document_newest {truth}
WHERE d.shelf_id = :shelf AND d.recorded_at {direction}= :time
    AND (d.recorded_at {direction} :time OR d.id > :id) {conditions}
ORDER BY d.recorded_at {order}, d.id LIMIT :limit"""
_IN_ORDER_OF_IDS: Final = """
SELECT d.document_id, e.type, d.id, d.recorded_at, {covered}, d.total
FROM entity AS e CROSS JOIN idx.document AS d ON d.document_id = (:first | e.entity_id)
WHERE e.scope_id = :scope AND e.type = :type
    AND e.id {direction}= :id AND (e.id {direction} :id OR :is_included) {conditions}
ORDER BY e.id {order} LIMIT :limit"""

Row = tuple[int, str, str, int, int, int]
"""document_id, type, id, recorded_at, covered, total."""


def find_documents(snapshot: Snapshot, wanted: Wanted) -> Iterator[Found]:
    """Return the documents that match and are not fresh, in the order of the plan."""
    search = _Search(snapshot, wanted)
    if not search.shelves or not search.can_match:
        return iter(())
    few = search.few()
    if few is not None:
        return search.sorted_from(_FEW_DOCUMENTS, {"few": number_array(few)}) if few else iter(())
    if wanted.plan.order is Order.RELEVANCE:
        return search.sorted_from_all()
    return search.in_order()


class _Search:
    """One plan against one snapshot: what the index can exclude, and the rows that remain."""

    def __init__(self, snapshot: Snapshot, wanted: Wanted) -> None:
        self._snapshot = snapshot
        self._wanted = wanted
        self._plan = plan = wanted.plan
        first, last = documents_of(snapshot.scope_id)
        self._scope: Bindings = {"first": first, "last": last, "scope": snapshot.scope_id}
        types = None if plan.types is None else frozenset(plan.types)
        self.shelves: list[tuple[int, str]] = [
            (shelf_id, type_)
            for shelf_id, type_ in snapshot.connection.execute(_SHELVES, (snapshot.scope_id,))
            if types is None or type_ in types
        ]
        self._needle = None if plan.text is None else needle_of(plan.text)
        self.can_match = self._needle is None or self._needle.is_indexable
        self._names: list[int] = []
        self._leaf_match = self._match_of_leaves()
        self._bindings: Bindings = dict(self._scope)
        conditions, bindings = search_filters.conditions(plan.filters, "e.value")
        self._bindings |= bindings
        self._truth = _TRUTH if conditions else ""
        fresh = snapshot.fresh_documents()
        if fresh is not None:
            conditions += " AND d.document_id NOT IN (SELECT value FROM carray(:fresh))"
            self._bindings["fresh"] = fresh
        self._conditions = conditions
        self._covered = "1"
        if self._needle is not None and self.can_match:
            self._prepare_text(self._needle)

    def few(self) -> list[int] | None:
        """Return at most some thousand documents that hold all matches; None if there are more."""
        lists: list[set[int]] = []
        if self._leaf_match is not None:
            self._append(lists, self._listed(_BY_LEAVES, {"leaf_match": self._leaf_match}))
        if self._needle is not None:
            self._append(lists, self._listed_by_text(self._needle, self._names))
        for filter_ in self._plan.filters[:EQUALITIES_ASKED]:
            operand = json.loads(filter_.operand_json)
            if filter_.operator is Operator.CONTAINS and isinstance(operand, str) and operand:
                needle = needle_of(operand)
                if needle.match is not None:
                    names = self._names_with(needle)
                    self._append(lists, self._listed_by_text(needle, names))
        if not lists:
            return self._listed_by_ids()
        return sorted(set[int].intersection(*lists))

    def sorted_from_all(self) -> Iterator[Found]:
        """Return all matches of the scope in order, each scored."""
        bindings: Bindings = {}
        source, conditions = _ALL_DOCUMENTS, ""
        if self._needle is not None and self._needle.match is not None and not self._names:
            source = _TEXT_DOCUMENTS
            bindings["text_match"] = self._needle.match
        if self._leaf_match is not None:
            conditions = f" AND d.document_id IN ({_BY_LEAVES})"
            bindings["leaf_match"] = self._leaf_match
        return self.sorted_from(source, bindings, conditions)

    def sorted_from(self, source: str, bindings: Bindings, conditions: str = "") -> Iterator[Found]:
        """Return the matches among the documents of `source` in order."""
        order = self._plan.order
        after = self._plan.after
        bound: Bindings = self._bindings | bindings
        bound["shelves"] = number_array([shelf_id for shelf_id, _ in self.shelves])
        if after is not None:
            bound["score"], bound["time"] = after.score, after.recorded_at_unix_ms
            bound["type"], bound["id"] = after.type, after.id
        limit = self._plan.limit + 1
        is_first = after is None
        while True:
            sql = _SORTED.format(
                covered=self._covered,
                source=source,
                truth=self._truth,
                conditions=self._conditions + conditions,
                after="" if is_first else f"AND {_AFTER[order]}",
                order=_BETTER[order],
            )
            rows = self._rows(sql, bound | {"limit": limit})
            yield from self._verified(rows)
            if len(rows) < limit:
                return
            is_first = False
            found = self._found(rows[-1])
            bound["score"], bound["time"] = found.score, found.recorded_at
            bound["type"], bound["id"] = found.type, found.id
            limit = min(2 * limit, LONGEST_FETCH)

    def in_order(self) -> Iterator[Found]:
        """Return the matches of the scope by reading it in the order of the plan."""
        return heapq.merge(
            *(self._shelf_in_order(shelf_id, type_) for shelf_id, type_ in self.shelves),
            reverse=self._wanted.is_descending,
        )

    def _shelf_in_order(self, shelf_id: int, type_: str) -> Iterator[Found]:
        order = self._plan.order
        is_by_time = order in {Order.NEWEST, Order.OLDEST}
        is_down = order in {Order.NEWEST, Order.ID_DESCENDING}
        conditions = self._conditions
        if self._needle is not None:
            conditions += " AND (instr(d.text, :literal)"
            conditions += " OR d.names_id IN (SELECT value FROM carray(:names)))"
        sql = (_IN_ORDER_OF_TIME if is_by_time else _IN_ORDER_OF_IDS).format(
            covered=self._covered,
            truth=self._truth,
            conditions=conditions,
            direction="<" if is_down else ">",
            order="DESC" if is_down else "",
        )
        bound = self._bindings | {"shelf": shelf_id, "type": type_}
        if self._needle is not None:
            bound["names"] = number_array(self._names)
        bound |= self._start(type_) if is_by_time else self._id_start(type_)
        limit = self._plan.limit + 1
        while True:
            rows = self._rows(sql, bound | {"limit": limit})
            yield from self._verified(rows)
            if len(rows) < limit:
                return
            _, _, id_, recorded_at, _, _ = rows[-1]
            bound |= {"time": recorded_at, "id": id_, "is_included": 0}
            limit = min(2 * limit, LONGEST_FETCH)

    def _start(self, type_: str) -> Bindings:
        """Return after which time and id a shelf continues; all ids are greater than ''."""
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

    def _id_start(self, type_: str) -> Bindings:
        """Return after which id a shelf continues, and whether with that id itself."""
        after = self._plan.after
        is_down = self._plan.order is Order.ID_DESCENDING
        if after is not None:
            is_included = type_ < after.type if is_down else type_ > after.type
            return {"id": after.id, "is_included": int(is_included)}
        return {"id": _AFTER_ALL_IDS if is_down else "", "is_included": 1}

    def _prepare_text(self, needle: Needle) -> None:
        self._bindings |= {
            "literal": needle.literal,
            "octets": len(needle.literal.encode()),
            "characters": needle.characters,
        }
        self._names = self._names_with(needle)
        cut = _COVERED.format("d.text")
        if self._names:
            cut = f"({cut} + {_COVERED_NAMES})"
        self._covered = f"({cut} / :octets * :characters)"

    def _names_with(self, needle: Needle) -> list[int]:
        """Return the sets of member names of the scope in which the needle occurs."""
        sql = _NAMES_SCANNED if needle.match is None else _NAMES_SEARCHED
        bindings: Bindings = {"literal": needle.literal, "text_match": needle.match}
        return self._list(sql, bindings) or []

    def _match_of_leaves(self) -> str | None:
        """Return the question for documents that can fulfil the equalities of the plan."""
        matches: list[str] = []
        for filter_ in self._plan.filters:
            is_element = filter_.operator is Operator.CONTAINS
            if len(matches) == EQUALITIES_ASKED:
                break
            if filter_.operator is Operator.EQUAL or (
                is_element and not filter_.operand_json.startswith('"')
            ):
                alternatives = tokens_of(
                    self._snapshot.connection,
                    filter_.pointer,
                    filter_.operand_json,
                    as_element=is_element,
                )
                if alternatives is not None:
                    matches.append(f"({match_of(alternatives)})")
        return " AND ".join(matches) or None

    def _listed_by_text(self, needle: Needle, names: list[int]) -> list[int] | None:
        """Return the documents in whose text or names the needle may occur; None if too many."""
        if needle.match is None:
            return None
        by_text = self._listed(_BY_TEXT, {"text_match": needle.match})
        if by_text is None or not names:
            return by_text
        by_names = self._listed(_BY_NAMES, {"names": number_array(names)})
        return None if by_names is None else by_text + by_names

    def _listed_by_ids(self) -> list[int] | None:
        ids = self._plan.ids
        if ids is None:
            return None
        bindings: Bindings = {
            "types": json.dumps([type_ for _, type_ in self.shelves]),
            "ids": json.dumps(list(ids)),
            "few": -1,
        }
        return self._list(_LISTED.format(numbers=_BY_IDS), bindings) or []

    def _listed(self, numbers: str, bindings: Bindings) -> list[int] | None:
        listed = self._list(_LISTED.format(numbers=numbers), bindings | {"few": FEW + 1})
        if listed is None:
            return []
        return None if len(listed) > FEW else listed

    def _list(self, sql: str, bindings: Bindings) -> list[int] | None:
        listed: str | None = self._snapshot.connection.execute(sql, self._scope | bindings).get
        return None if listed is None else list(map(int, listed.split(",")))

    @staticmethod
    def _append(lists: list[set[int]], listed: list[int] | None) -> None:
        if listed is not None:
            lists.append(set(listed))

    def _rows(self, sql: str, bindings: Bindings) -> list[Row]:
        return self._snapshot.connection.execute(sql, bindings).fetchall()

    def _verified(self, rows: list[Row]) -> Iterator[Found]:
        for row in rows:
            found = self._found(row)
            if self._wanted.admits(found.type, found.id) and self._holds(found.entity_id):
                yield found

    def _holds(self, entity_id: int) -> bool:
        filters = self._plan.filters
        if not filters:
            return True
        value = json.loads(self._snapshot.connection.execute(_VALUE, (entity_id,)).get)
        return all(holds(filter_, value) for filter_ in filters)

    def _found(self, row: Row) -> Found:
        document_id, type_, id_, recorded_at, covered, total = row
        score = 0.0 if self._needle is None else covered / total
        return self._wanted.found(document_id & ENTITY_MASK, type_, id_, score, recorded_at)
