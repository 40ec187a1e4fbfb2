"""Which documents of a scope can match at all, as far as the index can tell.

A question to the trigram or the token index costs what its answers in the scope are, and is given
up when there are more than `FEW`: reading the scope in the order of the results is then the better
way. What a question leaves is a superset; `search_documents.py` decides.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import Operator
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.index_schema import ENTITY_BITS, documents_of
from patchouli.provider_sqlite.index_text import Needle, needle_of
from patchouli.provider_sqlite.search_leaves import match_of, ranges_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider_sqlite.search_filters import Bindings
    from patchouli.provider_sqlite.search_found import Wanted
    from patchouli.provider_sqlite.search_snapshot import Snapshot

FEW: Final = 1000  # documents; reading and scoring them takes a few milliseconds
RAREST: Final = 3  # trigrams asked first; the index walks all that it is asked for
SAMPLE: Final = 48  # documents that say how many there will be
SURELY_MANY: Final = 4  # times `FEW`, as a sample promises, are not counted out
QUESTIONS: Final = 16  # of one kind for one plan; further filters are left to the verification

BY_TEXT: Final = """
SELECT rowid AS document_id FROM idx.text_index
WHERE text_index MATCH :text_match AND rowid BETWEEN :first AND :last"""
BY_LEAVES: Final = """
SELECT rowid AS document_id FROM idx.leaf_index
WHERE leaf_index MATCH :leaf_match AND rowid BETWEEN :first AND :last"""
_BY_SHARED: Final = """
SELECT document_id FROM idx.document INDEXED BY document_shared
WHERE shared_id IN (SELECT value FROM carray(:shared))"""
_BY_IDS: Final = f"""
SELECT e.scope_id << {ENTITY_BITS} | e.entity_id AS document_id
FROM json_each(:types) AS t CROSS JOIN json_each(:ids) AS i
CROSS JOIN entity AS e ON e.scope_id = :scope AND e.type = t.value AND e.id = i.value"""  # noqa: S608 - of constants
_SAMPLED: Final = f"SELECT count(*), max(document_id) FROM ({BY_TEXT} LIMIT :sample)"  # noqa: S608 - of constants
_SPAN: Final = """
SELECT (SELECT document_id FROM idx.document WHERE document_id >= :first
        ORDER BY document_id LIMIT 1),
       (SELECT document_id FROM idx.document WHERE document_id <= :last
        ORDER BY document_id DESC LIMIT 1)"""
_LISTED: Final = "SELECT group_concat(document_id) FROM ({documents} LIMIT :limit)"

# What a text loses when the needle is cut out of it, in bytes.
CUT: Final = "(octet_length({0}) - octet_length(replace({0}, :literal, '')))"
_SHARED_FOUND: Final = f"""
SELECT group_concat(n.shared_id || ' ' || {CUT.format("n.text")})
FROM idx.shared_index AS x CROSS JOIN idx.shared AS n ON n.shared_id = x.rowid
WHERE x.shared_index MATCH :text_match AND x.rowid BETWEEN :first AND :last
    AND instr(n.text, :literal)"""  # noqa: S608 - of constants
_SHARED_SCANNED: Final = f"""
SELECT group_concat(shared_id || ' ' || {CUT.format("text")}) FROM idx.shared
WHERE shared_id BETWEEN :first AND :last AND instr(text, :literal)"""  # noqa: S608 - of constants


class SharedFound(NamedTuple):
    """A set of shared leaves with the needle, and how many characters it covers there."""

    shared_id: int
    covered: int


class Question:
    """What the index can be asked for one plan, put once."""

    def __init__(self, snapshot: Snapshot, wanted: Wanted) -> None:
        self._connection = snapshot.connection
        self._plan = wanted.plan
        first, last = documents_of(snapshot.scope_id)
        self.scope: Bindings = {"first": first, "last": last, "scope": snapshot.scope_id}
        self.needle: Needle | None = None
        self.shared: list[SharedFound] = []
        self.can_match = True
        self.leaf_match: str | None = None
        self._ranges: list[list[str]] = []
        if self._plan.text is not None:
            self.needle = needle_of(self._plan.text)
            self.can_match = self.needle.is_indexable
        if self.can_match:
            self._ask_for_leaves()
        if self.can_match and self.needle is not None:
            self.shared = self._shared_with(self.needle)

    def few(self, types: Sequence[str]) -> list[int] | None:
        """Return some documents among which all matches are; None if the index leaves too many."""
        lists: list[set[int]] = []
        if self.leaf_match is not None:
            listed = self._listed(BY_LEAVES, {"leaf_match": self.leaf_match})
            lists += [] if listed is None else [set(listed)]
        for cells in self._ranges[:QUESTIONS]:
            listed = self._listed_by_cells(cells)
            lists += [] if listed is None else [set(listed)]
        needles = [(self.needle, self.shared)] if self.needle is not None else []
        needles += [(needle, self._shared_with(needle)) for needle in self._contained()]
        for needle, shared in needles:
            listed = self.few_by_text(needle, shared)
            lists += [] if listed is None else [set(listed)]
        if lists:
            return sorted(set[int].intersection(*lists))
        return None if self._plan.ids is None else self._listed_by_ids(self._plan.ids, types)

    def few_by_text(self, needle: Needle, shared: Sequence[SharedFound] = ()) -> list[int] | None:
        """Return the documents that may hold the needle, or share one of `shared`; None if many."""
        by_text = self._listed_by_text(needle)
        if by_text is None or not shared:
            return by_text
        ids = number_array([found.shared_id for found in shared])
        by_shared = self._list(_BY_SHARED, {"shared": ids}, FEW + 1)
        if len(by_shared) > FEW:
            return None
        return by_text + by_shared

    def _listed_by_text(self, needle: Needle) -> list[int] | None:
        """Return the documents that may hold the needle; None if many.

        A long posting list costs its length even beside a short one, so the rarest trigrams are
        asked first, and all only if those leave too many.
        """
        if not needle.questions:
            return None
        questions = needle.questions
        if len(questions) > RAREST:
            questions = sorted(questions, key=self._frequency)
            match = " AND ".join(questions[:RAREST])
            listed = self._listed(BY_TEXT, {"text_match": match})
            if listed is not None:
                return listed
        return self._listed(BY_TEXT, {"text_match": " AND ".join(questions)})

    def _frequency(self, question: str) -> tuple[int, int]:
        """Return a key by which rarer trigrams come first.

        If there are more than a sample, the sample ends the sooner the more there are.
        """
        bindings = self.scope | {"text_match": question, "sample": SAMPLE}
        sampled, last = self._connection.execute(_SAMPLED, bindings).fetchone()
        return (sampled, 0) if sampled < SAMPLE else (SAMPLE, -last)

    def _ask_for_leaves(self) -> None:
        matches: list[str] = []
        for filter_ in self._plan.filters:
            if len(matches) == QUESTIONS:
                break
            is_element = filter_.operator is Operator.CONTAINS
            if filter_.operator is Operator.EQUAL or (
                is_element and filter_.operand_json[:1] not in {'"', "[", "{"}
            ):
                match = match_of(self._connection, filter_, is_element=is_element)
                self.can_match = self.can_match and match != ""
                matches += [match] if match else []
        self.leaf_match = " AND ".join(matches) or None
        self._ranges = ranges_of(self._connection, self._plan.filters)
        self.can_match = self.can_match and all(self._ranges)

    def _contained(self) -> list[Needle]:
        """Return what must occur in a leaf because a filter asks for a string that contains it.

        Or for an array with a string as its element: that is a leaf as well.
        """
        needles: list[Needle] = []
        for filter_ in self._plan.filters:
            if filter_.operator is Operator.CONTAINS and filter_.operand_json.startswith('"'):
                operand = json.loads(filter_.operand_json)
                if operand and len(needles) < QUESTIONS:
                    needles.append(needle_of(operand))
        return [needle for needle in needles if needle.questions]

    def _shared_with(self, needle: Needle) -> list[SharedFound]:
        """Return the sets of shared leaves of the scope in which the needle occurs."""
        sql = _SHARED_SCANNED if needle.match is None else _SHARED_FOUND
        bindings: Bindings = {"literal": needle.literal, "text_match": needle.match}
        listed = self._get(sql, bindings)
        if listed is None:
            return []
        octets = len(needle.literal.encode())
        found = (map(int, row.split(" ")) for row in listed.split(","))
        return [
            SharedFound(shared_id, cut // octets * needle.characters) for shared_id, cut in found
        ]

    def _listed_by_ids(self, ids: frozenset[str], types: Sequence[str]) -> list[int]:
        bindings: Bindings = {"types": json.dumps(list(types)), "ids": json.dumps(list(ids))}
        return self._list(_BY_IDS, bindings, -1)

    def _listed(self, documents: str, bindings: Bindings) -> list[int] | None:
        """Return what a question leaves, None if many.

        The index answers in the order of the numbers. So a few answers say how close they lie, and
        whether it is worth having all of them.
        """
        numbers = self._list(documents, bindings, SAMPLE + 1)
        if len(numbers) > SAMPLE:
            if self._promises_many(numbers):
                return None
            numbers = self._list(documents, bindings, FEW + 1)
        return None if len(numbers) > FEW else numbers

    def _listed_by_cells(self, cells: list[str]) -> list[int] | None:
        """Return the documents with a number in one of `cells`, None if many.

        One cell after the other: the index looks at all alternatives of a question for each answer.
        """
        numbers: list[int] = []
        for cell in cells:
            listed = self._listed(BY_LEAVES, {"leaf_match": cell})
            if listed is None or len(numbers) + len(listed) > FEW:
                return None
            numbers += listed
        return numbers

    def _promises_many(self, sample: list[int]) -> bool:
        first, last = self._connection.execute(_SPAN, self.scope).fetchone()
        return len(sample) * (last - first) > SURELY_MANY * FEW * (sample[-1] - first + 1)

    def _list(self, documents: str, bindings: Bindings, limit: int) -> list[int]:
        sql = _LISTED.format(documents=documents)
        listed = self._get(sql, bindings | {"limit": limit})
        return [] if listed is None else [int(number) for number in listed.split(",")]

    def _get(self, sql: str, bindings: Bindings) -> str | None:
        return self._connection.execute(sql, self.scope | bindings).get
