"""Whatever the index has seen, a retrieval answers what `matching` says of the heads."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchouli.provider import (
    EntityKey,
    Filter,
    Operator,
    Order,
    RetrievePlan,
    ScopeText,
    leaves,
    resolve,
)
from patchouli.provider_sqlite import index_patterns, search_candidates
from patchouli.provider_sqlite.changes import prune
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.testing.library import SCOPE, Library, filter_of, plan_of, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from random import Random  # noqa: TID251 - the class; hypothesis seeds it

    from patchouli.provider import Json

EXAMPLES = int(os.environ.get("PATCHOULI_EXAMPLES", "25"))
SMALL = IndexLimits(batch_changes=3, batch_bytes=400)
SCOPES = (SCOPE, ScopeText('{"w":"2"}'))
TYPES = ("artifact", "knowledge", "relation")


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    library = Library(tmp_path / "db", limits=SMALL)
    yield library
    library.close()


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
        # Values of one origin: the same members, mostly with the same leaves.
        self._usual = {name: self.value(1) for name in self._names[:4]}

    def key(self) -> EntityKey:
        ids = ("a", "b", "c", "d", "e", "é\x00", "10", "9", "Z")
        return EntityKey(
            self._chance.choice(SCOPES), self._chance.choice(TYPES), self._chance.choice(ids)
        )

    def values(self) -> list[Json]:
        """Return what the heads of an entity hold: mostly one value."""
        kind = self._chance.randrange(10)
        if kind == 0:
            return [None]
        if kind == 1:
            return [self.value(), None]
        return [self.head() for _ in range(2 if kind == 2 else 1)]

    def head(self) -> Json:
        if self._chance.random() < 0.5:
            return self.value()
        return self._usual | {self._chance.choice(self._names): self.text()}

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
        return filter_of(pointer, operator, operand)

    def plan(self, stored: Sequence[Json]) -> RetrievePlan:
        text = self.needle(stored) if self._chance.random() < 0.6 else None
        return plan_of(
            self._chance.choice(SCOPES),
            text=text,
            filters=tuple(self.filter(stored) for _ in range(self._chance.choice((0, 0, 1, 1, 2)))),
            order=self._chance.choice(list(Order)),
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
    library = Library(tmp_path_factory.mktemp("library") / "db", limits=SMALL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_candidates, "FEW", few)
            patch.setattr(index_patterns, "LEARNT_FROM", 2)
            patch.setattr(index_patterns, "WORTH_SHARING", 1)
            patch.setattr(index_patterns, "MISSES", 3)
            for _ in range(chance.randint(10, 60)):
                step = chance.randrange(10)
                if step == 0:
                    library.index.build_on()
                elif step <= 2:
                    library.index.catch_up()
                else:
                    library.put(corpus.key(), corpus.values(), recorded_at=chance.randint(0, 5))
            if chance.random() < 0.7:
                library.index_all()
                for _ in range(chance.choice((0, 0, 3))):
                    library.put(corpus.key(), corpus.values(), recorded_at=chance.randint(0, 5))
            stored = library.values()
            for _ in range(30):
                _check_pages(library, corpus.plan(stored))
    finally:
        library.close()


@settings(max_examples=EXAMPLES, deadline=None)
@given(chance=st.randoms(use_true_random=True), few=st.sampled_from((0, 2, 1000)))
def test_a_work_unit_answers_what_its_heads_say_wherever_the_index_stands(
    tmp_path_factory: pytest.TempPathFactory, chance: Random, few: int
) -> None:
    corpus = Corpus(chance)
    library = Library(tmp_path_factory.mktemp("library") / "db", limits=SMALL)

    def put(rounds: int) -> None:
        for _ in range(rounds):
            step, at = chance.randrange(8), chance.randint(0, 5)
            key, values = corpus.key(), corpus.values()
            if step == 0:
                library.index.build_on()
            elif step == 1:
                library.index.catch_up()
            elif step == 2 and key.scope in library.heads_in_unit:
                keeps_heads = chance.random() < 0.3
                library.stage(key, values, recorded_at=at, keeps_heads=keeps_heads)
            else:
                library.put(key, values, recorded_at=at)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_candidates, "FEW", few)
            put(chance.randint(0, 20))
            for scope in SCOPES:
                if chance.random() < 0.5:
                    library.index_all()
                library.open_unit(scope)
                put(chance.randint(0, 20))
            if chance.random() < 0.3:
                library.index_all()
            if chance.random() < 0.3:
                through = chance.randint(0, library.frontier)
                prune(library.connection, recorded_before_unix_ms=9, through=through, limit=99)
            heads = [heads for view in library.heads_in_unit.values() for heads in view.values()]
            active = [head.value_json for some in heads for head in some if head.value_json]
            stored = [*map(json.loads, active), *library.values()]
            has_index = chance.random() < 0.8
            for _ in range(30):
                plan = corpus.plan(stored)
                plan = replace(plan, unit=unit_of(plan.scope))
                _check_pages(library, plan, has_index=has_index)
    finally:
        library.close()


def _check_pages(library: Library, plan: RetrievePlan, *, has_index: bool = True) -> None:
    """Walk through the pages; each holds the next expected hits and says whether more follow."""
    expected = library.expected(plan)
    for page in library.walk(plan, has_index=has_index):
        assert list(page.hits) == expected[: plan.limit]
        assert page.has_more == (len(expected) > plan.limit)
        expected = expected[plan.limit :]


def entity(name: str, type_: str = "knowledge", scope: ScopeText = SCOPE) -> EntityKey:
    return EntityKey(scope, type_, name)


HOSTILE = (
    'say "hi"', "50%", "a_b", "50% off_*", "C:\\temp\\x", "it's", "a NEAR b", "NEAR(a b)",
    "x AND y", "(a OR b)", "a*", "^a", "-a", "a:b", "{a}", "--", "; DROP TABLE entity", "a\nb",
    "tab\there", "e\u0301", "🙂🙃", "👩‍👩‍👧", "\u202ertl", "\ufeff", "\uffff", "\x7f", "\x01",
    "\x1b[1m",
    "nul\x00nul", "\x1f", "a\x1fb", "\x1c", "\x1d", "\x1e",
)  # fmt: skip


@pytest.mark.parametrize("needle", HOSTILE, ids=ascii)
@pytest.mark.parametrize("is_indexed", [True, False])
def test_signs_of_any_language_are_literal(
    library: Library, needle: str, *, is_indexed: bool
) -> None:
    library.put(entity("whole"), [{"text": f"xx {needle} yy"}])
    library.put(entity("name"), [{needle: 1}])
    library.put(entity("element"), [["k", needle]])
    library.put(entity("apart"), [["xx", *needle, "yy"]])
    library.put(entity("other"), [{"text": "something else altogether"}])
    if is_indexed:
        library.index_all()

    for order in Order:
        plan = plan_of(text=needle, order=order)
        assert list(library.search(plan).hits) == library.expected(plan)
    for operator in (Operator.CONTAINS, Operator.EQUAL, Operator.GREATER_OR_EQUAL):
        for pointer in ("/text", "/0", "/1"):
            plan = plan_of(filters=(filter_of(pointer, operator, needle),))
            assert list(library.search(plan).hits) == library.expected(plan)


def test_a_match_never_spans_two_leaves(library: Library) -> None:
    library.put(entity("apart"), [["数", "据", "ab", "cd", "п", "и", "é", "e"]])
    library.put(entity("together"), [["数据", "abcd", "пи", "ée"]])
    library.index_all()

    for needle in ("数据", "bc", "abcd", "пи", "ée"):
        assert library.ids(plan_of(text=needle)) == ["together"]


def test_a_needle_of_a_hundred_thousand_letters_is_found(library: Library) -> None:
    long = "".join(chr(97 + i * i % 23) + "数据茶"[i % 3] for i in range(50_000))
    library.put(entity("long"), [{"text": f"<{long}>"}])
    library.put(entity("nearly"), [{"text": f"<{long[:-1]}>"}])
    library.index_all()

    assert library.ids(plan_of(text=long, order=Order.RELEVANCE)) == ["long"]
    assert library.ids(plan_of(filters=(filter_of("/text", Operator.EQUAL, f"<{long}>"),))) == [
        "long"
    ]


def test_thirty_thousand_ids_restrict(library: Library) -> None:
    for name in ("a", "b", "c\x00", "d"):
        library.put(entity(name), [{"text": "window"}])
    library.index_all()
    many = frozenset(f"none-{n}" for n in range(30_000)) | {"b", "c\x00"}

    assert library.ids(plan_of(ids=many)) == ["b", "c\x00"]
    assert library.ids(plan_of(ids=many, text="window", order=Order.RELEVANCE)) == ["b", "c\x00"]


def test_a_thousand_filters_all_hold(library: Library) -> None:
    value: dict[str, Json] = {f"m{n}": n for n in range(1000)}
    library.put(entity("all"), [value])
    library.put(entity("one differs"), [value | {"m999": -1}])
    library.index_all()

    filters = tuple(filter_of(f"/m{n}", Operator.EQUAL, n) for n in range(1000))
    assert library.ids(plan_of(filters=filters)) == ["all"]
    filters = tuple(filter_of(f"/m{n}", Operator.LESS_OR_EQUAL, n) for n in range(1000))
    assert library.ids(plan_of(filters=filters)) == ["all", "one differs"]


def test_deep_values_and_long_pointers(library: Library) -> None:
    deep: Json = "bottom"
    for _ in range(400):
        deep = {"d": [deep]}
    library.put(entity("deep"), [deep])
    library.index_all()

    pointer = "/d/0" * 400
    assert library.ids(plan_of(filters=(filter_of(pointer, Operator.EQUAL, "bottom"),))) == ["deep"]
    assert library.ids(plan_of(filters=(filter_of(pointer + "/d", Operator.EQUAL, 1),))) == []
    assert library.ids(plan_of(text="bottom")) == ["deep"]


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/a~1b", ["slash"]),
        ("/m~0n", ["tilde"]),
        ("/~01", ["tilde one"]),
        ("/", ["empty"]),
        ("/x y", ["space"]),
        ("/0", ["array", "index as a name"]),
        ("/00", []),
        ("/-", []),
        ("/01", []),
        ('/q"', ["quote"]),
        ("/$", ["dollar"]),
        ("/n\n", ["line"]),
        ("/é", ["accent"]),
        ("/a.b", ["dot"]),
        ("/a[0]", ["bracket"]),
    ],
)
def test_pointers_name_members_as_they_are(
    library: Library, pointer: str, expected: list[str]
) -> None:
    names = {
        "slash": "a/b", "tilde": "m~n", "tilde one": "~1", "empty": "", "space": "x y",
        "index as a name": "0", "quote": 'q"', "dollar": "$", "line": "n\n", "accent": "é",
        "dot": "a.b", "bracket": "a[0]",
    }  # fmt: skip
    for id_, name in names.items():
        library.put(entity(id_), [{name: 7}])
    library.put(entity("array"), [[7.0]])
    library.index_all()

    for operator in (Operator.EQUAL, Operator.LESS_OR_EQUAL, Operator.NOT_EQUAL):
        operand = 8 if operator is Operator.NOT_EQUAL else 7
        plan = plan_of(filters=(filter_of(pointer, operator, operand),))
        assert library.ids(plan) == expected


def test_other_scopes_and_history_change_nothing(library: Library) -> None:
    library.put(entity("a"), [{"text": "the old word"}], recorded_at=1)
    library.put(entity("b"), [{"text": "a window seat"}], recorded_at=2)
    library.put(entity("c"), [{"text": "window window"}], recorded_at=3)
    library.index_all()
    plan = plan_of(text="window", order=Order.RELEVANCE)
    before = library.search(plan).hits

    for n in range(50):
        library.put(entity(f"x{n}", scope=SCOPES[1]), [{"text": "window " * (n % 7 + 1), "n": n}])
        library.put(entity("a"), [{"text": f"word {n}"}], recorded_at=n)
    library.index_all()

    assert library.search(plan).hits == before
    assert library.ids(plan_of(text="old word")) == []


def test_a_page_ends_at_its_byte_bound_with_at_least_one_hit(library: Library) -> None:
    for n in range(6):
        library.put(entity(f"e{n}"), [{"text": "茶" * 100}], recorded_at=n)
    library.index_all()
    size = len('{"text":""}') + 300

    for bound, length in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (6 * size, 6)):
        page = library.search(plan_of(order=Order.NEWEST, limit_bytes=bound))
        assert len(page.hits) == length
        assert page.has_more == (length < 6)


def test_vacuum_changes_no_hit(library: Library) -> None:
    for n in range(40):
        library.put(entity(f"e{n}"), [{"text": f"tea number {n}", "n": n % 5}], recorded_at=n)
    for n in range(0, 40, 3):
        library.put(entity(f"e{n}"), [None])
    library.index_all()
    plans = [
        plan_of(text="tea", order=Order.RELEVANCE),
        plan_of(filters=(filter_of("/n", Operator.EQUAL, 2),)),
    ]
    before = [library.search(plan).hits for plan in plans]

    library.connection.execute("VACUUM")

    assert [library.search(plan).hits for plan in plans] == before


def test_an_interrupted_retrieval_says_so_and_leaves_the_reader_usable(library: Library) -> None:
    for n in range(30):
        library.put(entity(f"e{n}"), [{"text": "tea", "n": n}])
    library.index_all()
    reader = cast("apsw.Connection", library.reader)
    reader.set_progress_handler(lambda: True, 100)

    with pytest.raises(apsw.InterruptError):
        library.search(plan_of(text="e", order=Order.RELEVANCE))

    reader.set_progress_handler(None)
    assert len(library.ids(plan_of(text="e", order=Order.RELEVANCE))) == 30


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_texts_that_only_shared_leaves_have_come_shortest_first(
    library: Library, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(search_candidates, "FEW", 5)
    for n in range(30):
        text = "lifecycle of a tea" if n in {4, 20} else "x" * (n % 3 + 1)
        library.put(
            entity(f"e{n:02}", TYPES[n % 2]), [{"lifecycle": text, "n": n % 2}], recorded_at=n // 4
        )
    library.index_all()

    _check_pages(library, plan_of(text="lifecycle", order=Order.RELEVANCE, limit=limit))
    even = (filter_of("/n", Operator.EQUAL, 0),)
    _check_pages(
        library, plan_of(text="lifecycle", order=Order.RELEVANCE, limit=limit, filters=even)
    )


def test_numbers_are_found_in_values_of_a_learnt_shape(library: Library) -> None:
    for n in range(120):
        value: dict[str, Json] = {"kind": "a note of the usual kind", "rank": n, "text": f"no {n}"}
        library.put(entity(f"e{n:03}"), [value], recorded_at=n)
    library.index_all()

    for low, high in ((7, 9), (100, 119), (64, 64), (-5, 0)):
        plan = plan_of(
            filters=(
                filter_of("/rank", Operator.GREATER_OR_EQUAL, low),
                filter_of("/rank", Operator.LESS, high + 0.5),
            )
        )
        assert library.ids(plan) == [f"e{n:03}" for n in range(max(low, 0), high + 1)]
    assert library.ids(plan_of(filters=(filter_of("/rank", Operator.EQUAL, 77.0),))) == ["e077"]
    assert library.ids(
        plan_of(filters=(filter_of("/kind", Operator.EQUAL, "a note of the usual kind"),), limit=2)
    ) == ["e000", "e001"]
