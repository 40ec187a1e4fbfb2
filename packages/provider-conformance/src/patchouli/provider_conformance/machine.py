"""Any provider against the model: random histories, and the same answers from both.

`ProviderMachine` (unit_machine.py) adds the rules for what only some providers claim. An adapter
inherits it, says how to open a provider on storage of its own, and lets pytest run its `TestCase`.
A difference shrinks to a short list of the calls that lead to it. What the model answers to a call
stands as a comment before it; after each call both have to show the same heads of all entities.

A provider may remove what is past its retention whenever it likes, and the model does so only when
it is told to compact. So the machine asks about nothing that may be gone: `latest_unix_ms` is the
latest time that the clock has ever shown, and what had ended by then is not asked about, although
the clock may have been set back since.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from hypothesis import HealthCheck, currently_in_test_context, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from patchouli.provider import (
    CausalToken,
    ChangesPlan,
    Commit,
    Committed,
    CompactionPlan,
    Cursor,
    EntityKey,
    Filter,
    Json,
    Operator,
    Order,
    Page,
    ProviderError,
    Retention,
    RetrieveOutcome,
    RetrievePlan,
    ScopeText,
    UnsupportedError,
    Version,
    VersionState,
    change_kind,
)
from patchouli.provider_conformance import compaction
from patchouli.provider_conformance.asking import position_of
from patchouli.provider_conformance.builders import (
    LATE,
    NEVER,
    OTHER_SCOPE,
    SCOPE,
    ManualClock,
    changes,
    commit,
    entity,
    read,
    retrieve,
    tombstone,
    version,
    where,
)
from patchouli.provider_conformance.comparing import Answer, Cursors, SameCursors, comparable
from patchouli.provider_conformance.invariants import check_visible_state
from patchouli.provider_conformance.model import ModelProvider, ModelStorage
from patchouli.provider_conformance.tables import View
from patchouli.provider_conformance.trace import told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from patchouli.provider import Clock, Provider

    Question = Callable[[Provider, Cursors], Awaitable[Answer]]

T = TypeVar("T")

KEYS = [entity("a"), entity("b"), entity("a", kind="task"), entity("a", scope=OTHER_SCOPE)]
VALUES: list[Json] = [
    {"text": "red apple", "n": 1},
    {"text": "Green APPLE", "n": 2, "tags": ["a", "b"]},
    {"text": "pear", "n": 1.0, "deep": {"a/b": [True, None]}},
    {"n": None, "tags": [1, {"n": 1}]},
    "apple",
    ["apple", 3, "Straße ὈΔΌΣ"],
]
TEXTS = ["apple", "a", "pe", "red", "APPLE p", "straße", "ὀδός", "n", "null", "1"]
POINTERS = ["/n", "/text", "/tags", "/tags/0", "/deep/a~1b/0", "/0"]
OPERANDS: list[Json] = [1, 1.5, "pear", "a", True, None, ["a", "b"], {"n": 1.0}]


RETENTION = Retention(changes_seconds=1, idempotency_seconds=1, history_seconds=2)
CHANGES_MS = 1_000  # the same in the unit of the clock
COMPACTION_LIMIT = 3  # things a step, so that a compaction takes several


def titled(text: str) -> Json:
    """Return a value that holds `text`."""
    return {"text": text}


keys = st.sampled_from(KEYS)
values: st.SearchStrategy[Json] = st.sampled_from(VALUES) | st.builds(titled, st.text(max_size=6))
deadlines = st.sampled_from([None, None, None, NEVER, LATE])
texts = st.sampled_from(TEXTS) | st.text(min_size=1, max_size=3)
filters = st.lists(
    st.builds(
        where, st.sampled_from(POINTERS), st.sampled_from(Operator), st.sampled_from(OPERANDS)
    ),
    min_size=1,
    max_size=2,
).map(tuple)
some_ids = st.frozensets(st.sampled_from(["a", "b", "c"]))
some_types = st.frozensets(st.sampled_from(["note", "task", "other"]))


def mostly_without(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """Return what `strategy` gives one time in four: restrictions together leave nothing over."""
    return st.one_of(st.none(), st.none(), st.none(), strategy)


class EntityMachine(RuleBasedStateMachine):
    """One provider and the model beside it; every rule asks both and compares."""

    can_abandon: ClassVar[bool] = False
    """Whether `abandon` is given; without it there are no crashes in the histories."""

    provider: Provider
    model: ModelProvider
    compacts = False
    """Whether the provider compacts on demand."""
    is_open = False
    """Whether both have started and not stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self.clock = ManualClock()
        self.storage = ModelStorage()
        self.cursors = Cursors()
        self.versions: dict[EntityKey, list[str]] = {key: [] for key in KEYS}
        self.serial = 0
        self.cutoff = 0
        self.latest_unix_ms = self.clock.now_unix_ms

    def open_provider(self, clock: Clock) -> Provider:
        """Construct a provider, each time on the same storage that belongs to this machine."""
        raise NotImplementedError

    async def abandon(self, provider: Provider) -> None:
        """Drop `provider` without a clean stop; see `can_abandon`."""
        raise NotImplementedError

    def discard(self) -> None:
        """Remove the storage of this machine."""

    @initialize(population=st.lists(values, max_size=len(KEYS)))
    def begin(self, population: list[Json]) -> None:
        """Start both, with some entities."""
        self.start()
        asked = answer_to(self.provider.compact(CompactionPlan(limit=1)))
        self.compacts = self._runner.run(asked) is not UnsupportedError
        for key, value in zip(KEYS, population, strict=False):
            self.create(key=key, value=value, deadline=None)

    def start(self) -> None:
        """Start both."""
        provider = self.open_provider(self.clock)
        self.model = ModelProvider(self.storage, self.clock, capabilities=provider.capabilities())
        self.provider = provider
        self.ask(lambda p, _: p.initialize(RETENTION))
        self.is_open = True

    def stop(self) -> None:
        """Stop both."""
        self.is_open = False
        self.ask(lambda p, _: p.shutdown())

    @rule(key=keys, value=values, deadline=deadlines)
    def create(self, key: EntityKey, value: Json, deadline: int | None) -> None:
        """Create an entity, which may exist already."""
        new = version(self.fresh_id(), value, recorded_at_unix_ms=self.clock.unix_ms())
        self.write(key, [new], expected=[], heads=[new.id], deadline=deadline)

    @rule(
        key=keys,
        value=st.none() | values,
        is_stale=st.booleans(),
        deadline=deadlines,
        data=st.data(),
    )
    def update(
        self,
        key: EntityKey,
        value: Json,
        *,
        is_stale: bool,
        deadline: int | None,
        data: st.DataObject,
    ) -> None:
        """Replace some versions by a new one (or a tombstone); the other heads stay."""
        known, heads = self.known(key), self.heads(key)
        bases = data.draw(some_of(known, at_least=min(len(known), 1)), label="bases")
        expected = data.draw(some_of([*known, "ghost"]), label="expected") if is_stale else heads
        at = self.clock.unix_ms()
        new = (
            tombstone(self.fresh_id(), parents=bases, recorded_at_unix_ms=at)
            if value is None
            else version(self.fresh_id(), value, parents=bases, recorded_at_unix_ms=at)
        )
        stays = [head for head in heads if head not in bases]
        after = data.draw(st.permutations([*stays, new.id]), label="heads")
        self.write(key, [new], expected=expected, heads=after, bases=bases, deadline=deadline)

    @rule(key=keys, count=st.integers(1, 3), value=values)
    def join(self, key: EntityKey, count: int, value: Json) -> None:
        """Replace all heads by versions derived from all of them."""
        heads = self.heads(key)
        at = self.clock.unix_ms()
        new = [
            version(self.fresh_id(), value, parents=heads, recorded_at_unix_ms=at)
            for _ in range(count)
        ]
        self.write(key, new, expected=heads, heads=[v.id for v in new], bases=heads)

    @rule(key=keys, value=values, data=st.data())
    def merge_at_once(self, key: EntityKey, value: Json, data: st.DataObject) -> None:
        """Add a proposal and, as the only head, what it was merged into."""
        known, heads = self.known(key), self.heads(key)
        bases = data.draw(some_of(known), label="bases")
        at = self.clock.unix_ms()
        proposal = version(self.fresh_id(), value, parents=bases, recorded_at_unix_ms=at)
        rest = [head for head in heads if head not in bases]
        merged = version(
            self.fresh_id(), "merged", parents=[proposal.id, *rest], recorded_at_unix_ms=at
        )
        new = [proposal, merged]
        self.write(key, new, expected=heads, heads=[merged.id], bases=bases)

    @rule(key=keys, data=st.data())
    def drop_heads(self, key: EntityKey, data: st.DataObject) -> None:
        """Keep some of the heads and add nothing, which only the close of a unit may do."""
        heads = self.heads(key)
        stays = data.draw(some_of(heads), label="stays")
        self.write(key, [], expected=heads, heads=stays)

    @rule(
        key=keys,
        wrong=st.sampled_from(["parent", "head", "version", "token", "value", "repeated head"]),
    )
    def contradict(self, key: EntityKey, wrong: str) -> None:
        """Commit what no store may keep."""
        heads, known = self.heads(key), self.known(key)
        name = self.fresh_id()
        new = version(name, parents=["ghost"] if wrong == "parent" else heads)
        after = [name, "ghost"] if wrong == "head" else [name]
        if wrong == "repeated head":
            after = [name, name]
        if wrong == "version" and known:
            new, after = version(known[0], parents=heads), [known[0]]
        if wrong == "value":
            new = replace(new, value_json=None)
        plan = self.commit_of(key, [new], expected=heads, heads=after)
        used = list(self.storage.tables.tokens)
        if wrong == "token" and used:
            plan = replace(plan, causal_token=used[0])
        self.ask(lambda p, _: p.commit(plan))

    @rule(key=keys, data=st.data(), with_divergence=st.booleans())
    def read(self, key: EntityKey, data: st.DataObject, *, with_divergence: bool) -> None:
        """Read heads, bases and perhaps the divergence."""
        others = [] if with_divergence else ["ghost", *self.known(KEYS[0])]
        names = list(dict.fromkeys([*self.known(key), *others]))
        bases = data.draw(some_of(names), label="bases")
        plan = read(key, *bases, with_divergence=with_divergence)
        self.ask(lambda p, _: p.read(plan))

    @rule(
        scope=st.sampled_from([SCOPE, OTHER_SCOPE]),
        order=st.sampled_from(Order),
        limit=st.integers(1, 4),
        types=mostly_without(some_types),
        ids=mostly_without(some_ids),
        text=mostly_without(texts),
        conditions=mostly_without(filters),
    )
    def retrieve(
        self,
        scope: ScopeText,
        order: Order,
        limit: int,
        types: frozenset[str] | None,
        ids: frozenset[str] | None,
        text: str | None,
        conditions: tuple[Filter, ...] | None,
    ) -> None:
        """Retrieve all pages of a query, once as full as can be and once hit by hit."""
        plan = retrieve(
            scope=scope,
            order=order,
            limit=limit,
            types=None if types is None else tuple(sorted(types)),
            ids=ids,
            text=text,
            filters=conditions or (),
        )
        self.ask(lambda p, _: every_page(p, plan))
        one_by_one = replace(plan, limit_bytes=1)
        self.ask(lambda p, _: every_page(p, one_by_one))

    @rule(
        scope=st.sampled_from([SCOPE, OTHER_SCOPE]),
        back=st.integers(-1, 8),
        limit=st.integers(1, 4),
        types=mostly_without(some_types),
        ids=mostly_without(some_ids),
        older_than_ms=st.sampled_from([None, None, -1, 0, 5, 15]),
    )
    def read_changes(
        self,
        scope: ScopeText,
        back: int,
        limit: int,
        types: frozenset[str] | None,
        ids: frozenset[str] | None,
        older_than_ms: int | None,
    ) -> None:
        """Read a page of changes from near the end; the cut-off of retention never goes back."""
        if older_than_ms is not None:
            self.cutoff = max(self.cutoff, self.clock.unix_ms() - older_than_ms)
        self.cutoff = max(self.cutoff, self.latest_unix_ms - CHANGES_MS)
        plan = changes(
            scope=scope, limit=limit, types=types, ids=ids, retained_after_unix_ms=self.cutoff
        )
        after = Cursor(max(self.storage.tables.frontier(scope) - back, 0))
        self.ask(lambda p, cursors: page_after(p, plan, cursors.to_provider(after)))

    @rule(by_ms=st.sampled_from([1, 2, 5, 5, 10, 20, 500, 1_100, 2_500]))
    def move_clock(self, by_ms: int) -> None:
        """Set the clock ahead, sometimes past every retention."""
        self.clock.now_unix_ms += by_ms
        self.latest_unix_ms = max(self.latest_unix_ms, self.clock.now_unix_ms)

    @rule(by_ms=st.sampled_from([1, 20, 100, 600, 3_000]), was_ahead=st.booleans())
    def set_clock_back(self, by_ms: int, *, was_ahead: bool) -> None:
        """Set the clock back, perhaps from a time that it should not have shown.

        What has ended before it is set back is told to both, and does not come back.
        """
        if was_ahead:
            self.move_clock(by_ms=by_ms)
        self.checkpoint()
        self.clock.now_unix_ms -= by_ms
        self.look_closely()

    @precondition(lambda self: self.compacts)
    @rule(ahead_ms=st.sampled_from([0, 1_100, 2_100, 2_500]))
    def compact(self, ahead_ms: int) -> None:
        """Compact both to the end, after a while; what is gone is unknown to both then."""
        self.move_clock(by_ms=ahead_ms)
        for provider in (self.model, self.provider):
            self._runner.run(compact_fully(provider))
        for key, names in self.versions.items():
            left = [name for name in names if (key, name) in self.storage.tables.versions]
            certain = {*self.known(key), *names} - ({*left} - {*self.known(key)})
            plan = read(key, *sorted(certain))
            self.ask(lambda p, _, plan=plan: p.read(plan))
            self.versions[key] = left
        self.look_closely()

    @rule()
    def checkpoint(self) -> None:
        """Flush."""
        self.ask(lambda p, _: p.checkpoint())

    @rule()
    def restart(self) -> None:
        """Stop both cleanly and start them again."""
        self.stop()
        self.start()
        self.look_closely()

    @precondition(lambda self: self.can_abandon)
    @rule()
    def crash(self) -> None:
        """Drop both without a clean stop and start them again."""
        self.is_open = False
        self.model.abandon()
        self._runner.run(self.abandon(self.provider))
        self.start()
        self.look_closely()

    def teardown(self) -> None:
        """Look at the whole of what shows, then stop and remove everything."""
        try:
            if hasattr(self, "provider"):
                if self.shows_everything():
                    for scope in (SCOPE, OTHER_SCOPE):
                        self._runner.run(check_visible_state(self.provider, scope))
                self.stop()
        finally:
            self._runner.close()
            self.discard()

    def shows_everything(self) -> bool:
        """Return whether no change may have been pruned."""
        horizon = max(self.cutoff, self.latest_unix_ms - CHANGES_MS)
        log = self.storage.tables.log
        return not any(e.is_pruned or e.change.recorded_at_unix_ms < horizon for e in log)

    def write(
        self,
        key: EntityKey,
        new: Sequence[Version],
        *,
        expected: Sequence[str],
        heads: Sequence[str],
        bases: Sequence[str] = (),
        deadline: int | None = None,
    ) -> None:
        """Commit, and remember the versions that were published."""
        plan = self.commit_of(key, new, expected=expected, heads=heads)
        plan = replace(
            plan,
            deadline_unix_ms=deadline,
            base_versions=tuple(read(key, *bases).base_versions),
            with_divergence=True,
        )
        answer = self.ask(lambda p, _: p.commit(plan))
        if isinstance(answer, Committed):
            self.versions[key] += [v.id for v in new]

    def commit_of(
        self,
        key: EntityKey,
        new: Sequence[Version],
        *,
        expected: Sequence[str],
        heads: Sequence[str],
    ) -> Commit:
        """Return a commit with a token of its own and the kind that follows from the heads."""
        deleted = {v.id for v in new if v.state is VersionState.DELETED}
        kind = change_kind(
            previous_heads=len(self.heads(key)),
            new_heads=len(heads),
            is_single_tombstone=len(heads) == 1 and heads[0] in deleted,
        )
        return commit(
            key,
            *new,
            expected=expected,
            heads=heads,
            kind=kind,
            causal_token=CausalToken(f"token-{self.fresh_id()}"),
            recorded_at_unix_ms=self.clock.unix_ms(),
        )

    def heads(self, key: EntityKey) -> list[str]:
        """Return the published heads of `key`, as the model knows them."""
        tables = self.storage.tables
        return list(View(tables, key.scope, tables.frontier(key.scope)).head_ids(key))

    def known(self, key: EntityKey) -> list[str]:
        """Return the published versions of `key` that no provider may have removed."""
        at = compaction.horizons(RETENTION, self.latest_unix_ms)
        needed = compaction.needed_versions(self.storage.tables, key, at)
        return [name for name in self.versions[key] if name in needed]

    def fresh_id(self) -> str:
        """Return an id that was not used before; ids do not ascend."""
        self.serial += 1
        return f"{self.serial * 37 % 100:02d}-{self.serial}"

    def ask(self, question: Question) -> Answer:
        """Ask the model and the provider, compare what shows, and return the model's answer."""
        answer = self.compare(question)
        if currently_in_test_context():
            note(f"# {told(answer)}")
        if self.is_open:
            self.look_around()
        return answer

    def look_around(self) -> None:
        """Compare the heads of every entity."""
        for key in KEYS:
            self.compare(lambda p, _, key=key: p.read(read(key)))

    def look_closely(self) -> None:
        """Compare what else shows; after what seldom happens, so that it is not lost again."""

    def compare(self, question: Question) -> Answer:
        """Ask the model and the provider the same, compare, and return the model's answer."""
        same = SameCursors()
        expected = self._runner.run(answer_to(question(self.model, same)))
        actual = self._runner.run(answer_to(question(self.provider, self.cursors)))
        self.cursors.learn(actual, expected)
        assert comparable(actual, self.cursors) == comparable(expected, same)
        return expected


async def answer_to(asked: Awaitable[Answer]) -> Answer:
    """Return the answer, or the type of the error instead of one."""
    try:
        return await asked
    except ProviderError as error:
        return type(error)


async def every_page(provider: Provider, plan: RetrievePlan) -> list[RetrieveOutcome]:
    """Return all pages of `plan`, or the refusal instead of them."""
    outcomes: list[RetrieveOutcome] = []
    while True:
        outcome = await provider.retrieve(plan)
        outcomes.append(outcome)
        if not isinstance(outcome, Page) or not outcome.has_more:
            return outcomes
        plan = replace(plan, after=position_of(outcome.hits[-1]))


async def compact_fully(provider: Provider) -> None:
    """Compact until nothing more is due."""
    plan = CompactionPlan(limit=COMPACTION_LIMIT)
    while (await provider.compact(plan)).is_more_due:
        pass


async def page_after(provider: Provider, plan: ChangesPlan, after: Cursor) -> Answer:
    """Return a page; of one that begins before the horizon only what says so."""
    page = await provider.read_changes(replace(plan, after=after))
    if after < page.pruned_through:
        return replace(page, changes=(), reached=page.frontier)
    return page


def some_of(names: Sequence[str], *, at_least: int = 0) -> st.SearchStrategy[list[str]]:
    """Return some of `names` in any order, each at most once."""
    if not names:
        return st.just([])
    return st.lists(st.sampled_from(list(names)), unique=True, min_size=at_least, max_size=3)


MACHINE_SETTINGS = settings(
    max_examples=int(os.environ.get("PATCHOULI_MACHINE_EXAMPLES", "25")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""Enough for every run of the tests; the environment variable asks for more histories."""
