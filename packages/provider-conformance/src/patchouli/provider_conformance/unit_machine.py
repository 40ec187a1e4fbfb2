"""The machine's rules for work units, together with everything that a unit can carry."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from patchouli.provider import (
    CausalToken,
    Commit,
    Consistency,
    ControlKey,
    Discarded,
    Drifted,
    EntityKey,
    Json,
    Publish,
    Published,
    Resolution,
    ScopeText,
    SessionRequirement,
    Staged,
    UnitConflict,
    WorkUnit,
)
from patchouli.provider_conformance import compaction, mutations
from patchouli.provider_conformance.builders import (
    LATE,
    OTHER_SCOPE,
    SCOPE,
    closing_again,
    control,
    entity,
    read,
    retrieve,
    staging,
    tombstone,
    version,
    version_ids,
)
from patchouli.provider_conformance.control_machine import (
    NAMES,
    UNKNOWN_TOKEN,
    ControlMachine,
    chances,
    claims,
    names,
    requests,
    scopes,
)
from patchouli.provider_conformance.machine import (
    KEYS,
    RETENTION,
    deadlines,
    every_page,
    keys,
    mostly_without,
    some_of,
    texts,
    values,
)
from patchouli.provider_conformance.tables import View

if TYPE_CHECKING:
    from patchouli.provider_conformance.comparing import Answer
    from patchouli.provider_conformance.tables import StoredUnit

# Every other unit outlives all history; the others live for a few moves of the clock.
STAGING_MS = (30_000, 40)

SCOPES = (SCOPE, OTHER_SCOPE)
SESSIONS = [
    SessionRequirement(key=ControlKey(name), monotonic_reads=reads, read_your_writes=not reads)
    for name, reads in product(NAMES, (True, False))
]

ages = st.integers(0, 2)
answers = st.sampled_from(["join", "keep both", "join", "half", "stale", "nothing", "discard"])
tokens = st.sampled_from(["none", "fresh", "fresh", "used"])


class ProviderMachine(ControlMachine):
    """One provider and the model beside it, with everything that the provider claims."""

    def __init__(self) -> None:
        super().__init__()
        self.units = 0
        self.sent: Commit | None = None
        """The last commit into a unit, for one that comes again."""
        self.kept: list[Commit] = []
        """Commits with an idempotency identity that were staged; see `still_staged`."""

    @precondition(claims("work_units"))
    @rule()
    def name_another_unit(self) -> None:
        """Let later rules name a unit that was not named before."""
        self.units += 1

    @precondition(claims("work_units"))
    @rule(
        key=keys,
        age=ages,
        value=st.none() | values,
        close=st.sampled_from([False, False, False, True]),
        is_stale=st.booleans(),
        holds=chances,
        deadline=deadlines,
        data=st.data(),
    )
    def stage(
        self,
        key: EntityKey,
        age: int,
        value: Json,
        *,
        close: bool,
        is_stale: bool,
        holds: bool,
        deadline: int | None,
        data: st.DataObject,
    ) -> None:
        """Stage a new version in a unit, and perhaps close the unit with it."""
        unit = self.unit(key.scope, age)
        view = self.view(key.scope, unit)
        heads, known = list(view.head_ids(key)), self.visible(view, key)
        bases = data.draw(some_of(known), label="bases")
        expected = data.draw(some_of([*known, "ghost"]), label="expected") if is_stale else heads
        at = self.clock.unix_ms()
        name = self.fresh_id()
        new = (
            tombstone(name, parents=bases, recorded_at_unix_ms=at)
            if value is None
            else version(name, value, parents=bases, recorded_at_unix_ms=at)
        )
        after = [name, *(head for head in heads if head not in bases)]
        plan = self.commit_of(key, [new], expected=expected, heads=after)
        identity = self.drawn_identity(key.scope, data)
        request = data.draw(requests, label="request") if identity else f'"{name}"'
        how = staging(unit, close=close, request=request, policy=f'"{name}"', holds=holds)
        plan = replace(
            plan,
            deadline_unix_ms=deadline,
            base_versions=version_ids(bases),
            with_divergence=True,
            event_meta_json=f'{{"from":"{name}"}}',
            write_sessions=self.drawn_sessions(key.scope, data),
            staging=how,
            idempotency=self.record_of(key.scope, identity, request, 30) if identity else None,
        )
        self.send(plan)

    @precondition(lambda self: self.sent is not None)
    @rule(close=st.booleans())
    def send_again(self, *, close: bool) -> None:
        """Send the last commit into a unit once more, as a caller does that got no answer."""
        sent = self.sent
        if sent is None or sent.staging is None or self.is_uncertain(sent):
            return
        unit = replace(sent.staging.unit, now_unix_ms=self.clock.unix_ms())
        self.send(replace(sent, staging=replace(sent.staging, unit=unit, close=close)))

    @precondition(claims("work_units", "idempotency"))
    @rule(key=keys, age=ages, name=names, value=values)
    def stage_once(self, key: EntityKey, age: int, name: str, value: Json) -> None:
        """Stage on top of the heads that the unit shows, under an idempotency identity."""
        if not self.may_be_gone(control(name, scope=key.scope)):
            plan = self.plain_staging(key, age, value=value, close=False)
            record = self.record_of(key.scope, name, '"first"', 5_000)
            self.send(replace(plan, idempotency=record))

    @precondition(lambda self: bool(self.still_staged()))
    @rule(
        how=st.sampled_from(["well", "well", "well", "stale", "other key", "open", "unnamed"]),
        other=keys,
        deadline=deadlines,
        data=st.data(),
    )
    def close_with_what_is_staged(
        self, how: str, other: EntityKey, deadline: int | None, data: st.DataObject
    ) -> None:
        """Close a unit for a mutation that it has staged already, or almost so."""
        mine = data.draw(st.sampled_from(self.still_staged()), label="mine")
        if mine.staging is None or self.is_uncertain(mine):
            return
        unit = replace(mine.staging.unit, now_unix_ms=self.clock.unix_ms())
        key = other if how == "other key" and other.scope == mine.key.scope else mine.key
        heads = list(self.view(key.scope, unit).head_ids(key))
        plan = closing_again(replace(mine, key=key), unit, heads)
        if how == "stale":
            plan = replace(plan, expected_heads=version_ids([*heads, "ghost"]))
            plan = replace(plan, head_versions=plan.expected_heads)
        if how == "open":
            plan = replace(plan, staging=staging(unit))
        if how == "unnamed":
            plan = replace(plan, idempotency=None)
        plan = replace(plan, deadline_unix_ms=deadline, recorded_at_unix_ms=self.clock.unix_ms())
        self.remember(self.ask(lambda p, _: p.commit(plan)))

    @precondition(claims("work_units"))
    @rule(key=keys, age=ages, other=keys, holds=st.booleans(), then=answers, data=st.data())
    def overtake_and_close(
        self,
        key: EntityKey,
        age: int,
        other: EntityKey,
        then: str,
        *,
        holds: bool,
        data: st.DataObject,
    ) -> None:
        """Stage, publish past everything that the unit has staged, close the unit and answer."""
        first = self.plain_staging(key, age, value=None, close=False, holds=holds)
        identity = self.drawn_identity(key.scope, data)
        record = self.record_of(key.scope, identity, '"first"', 5_000) if identity else None
        sessions = self.drawn_sessions(key.scope, data)
        self.send(replace(first, idempotency=record, write_sessions=sessions))
        unit = self.storage.tables.units.get(self.unit(key.scope, age).identity)
        is_overtaken = not data.draw(chances, label="left alone")
        for overtaken in unit.entities if unit is not None and is_overtaken else ():
            self.join(key=overtaken, count=1, value="overtaken")
        closing = other if other.scope == key.scope else key
        answer = self.send(self.plain_staging(closing, age, value=None, close=True))
        if isinstance(answer, Drifted):
            self.answer(self.unit(key.scope, age), then, data.draw(tokens, label="token"))

    @precondition(claims("work_units"))
    @rule(key=keys, age=ages, policy=st.sampled_from(["1", "1", "1", "2"]), data=st.data())
    def read_in_unit(self, key: EntityKey, age: int, policy: str, data: st.DataObject) -> None:
        """Read the view of a unit, under its own policy or another."""
        unit = replace(self.unit(key.scope, age), policy_json=policy)
        known = self.visible(self.view(key.scope, unit), key)
        bases = data.draw(some_of(known), label="bases")
        plan = read(key, *bases, unit=unit, with_divergence=True)
        self.ask(lambda p, _: p.read(plan))

    @precondition(claims("work_units"))
    @rule(key=keys, age=ages, name=names, request=requests, deadline=deadlines, data=st.data())
    def read_in_unit_with_bounds(
        self,
        key: EntityKey,
        age: int,
        name: str,
        request: str,
        deadline: int | None,
        data: st.DataObject,
    ) -> None:
        """Read the view of a unit with whatever bounds and questions the provider takes."""
        asks = claims("idempotency")(self) and not self.may_be_gone(control(name, scope=key.scope))
        consistency = self.drawn_bounds(key.scope, data)
        plan = read(
            key,
            consistency=replace(consistency, deadline_unix_ms=deadline),
            unit=self.unit(key.scope, age),
            idempotency=self.probe_of(key.scope, name, request) if asks else None,
        )
        self.ask(lambda p, _: p.read(plan))

    @precondition(claims("work_units", "causal_reads"))
    @rule(key=keys, value=values)
    def begin_too_early(self, key: EntityKey, value: Json) -> None:
        """Ask a new unit for what has not come yet, and begin it when something else has."""
        self.units += 1
        bound = Consistency(minimum_tokens=(CausalToken(UNKNOWN_TOKEN),))
        early = read(key, consistency=bound, unit=self.unit(key.scope, 0))
        self.ask(lambda p, _: p.read(early))
        self.join(key=key, count=1, value=value)
        begins = read(key, unit=self.unit(key.scope, 0))
        self.ask(lambda p, _: p.read(begins))

    @precondition(claims("work_units"))
    @rule(
        scope=scopes,
        age=ages,
        text=mostly_without(texts),
        limit=st.integers(1, 4),
        bounded=chances,
        data=st.data(),
    )
    def retrieve_in_unit(
        self,
        scope: ScopeText,
        age: int,
        text: str | None,
        limit: int,
        *,
        bounded: bool,
        data: st.DataObject,
    ) -> None:
        """Retrieve in the view of a unit."""
        consistency = self.drawn_bounds(scope, data) if bounded else Consistency()
        unit = self.unit(scope, age)
        plan = retrieve(scope=scope, unit=unit, text=text, limit=limit, consistency=consistency)
        self.ask(lambda p, _: every_page(p, plan))

    @precondition(claims("work_units"))
    @rule(scope=scopes, age=ages, discard=st.booleans())
    def publish_what_may_not_be_sealed(self, scope: ScopeText, age: int, *, discard: bool) -> None:
        """Publish or discard a unit in any state."""
        plan = Publish(
            unit=self.unit(scope, age),
            recorded_at_unix_ms=self.clock.unix_ms(),
            discard=discard,
        )
        self.remember(self.ask(lambda p, _: p.publish(plan)))

    @precondition(lambda self: bool(self.sealed()))
    @rule(how=answers, token=tokens, data=st.data())
    def publish(self, how: str, token: str, data: st.DataObject) -> None:
        """Answer the drift of a sealed unit."""
        unit = data.draw(st.sampled_from(self.sealed()), label="unit")
        self.answer(replace(unit, now_unix_ms=self.clock.unix_ms()), how, token)

    def answer(self, unit: WorkUnit, how: str, token: str) -> None:
        """Answer the drift of a unit in one way or another, too late first and then in time."""
        stored = self.storage.tables.units.get(unit.identity)
        drift = ()
        if stored is not None and stored.state == "closing":
            drift = mutations.drift(self.storage.tables, stored)
        resolutions = [] if how == "nothing" else [self.resolution(c, how, token) for c in drift]
        staged = [
            identity
            for identity, record in self.storage.tables.records.items()
            if record.unit == unit.identity
        ]
        plan = Publish(
            unit=unit,
            resolutions=tuple(resolutions[: len(drift) // 2] if how == "half" else resolutions),
            results=tuple((identity, f'"{self.fresh_id()}"') for identity in staged[:1]),
            recorded_at_unix_ms=self.clock.unix_ms(),
            deadline_unix_ms=LATE,
            discard=how == "discard",
        )
        self.ask(lambda p, _: p.publish(plan))
        in_time = replace(plan, deadline_unix_ms=None)
        self.remember(self.ask(lambda p, _: p.publish(in_time)))

    def send(self, plan: Commit) -> Answer:
        """Commit into a unit, and remember what a later request may go back to."""
        self.sent = plan
        answer = self.ask(lambda p, _: p.commit(plan))
        if isinstance(answer, Staged) and plan.idempotency is not None:
            self.kept.append(plan)
        self.remember(answer)
        return answer

    def plain_staging(
        self, key: EntityKey, age: int, *, value: Json, close: bool, holds: bool = False
    ) -> Commit:
        """Return a commit on top of the heads that a unit shows."""
        unit = self.unit(key.scope, age)
        heads = list(self.view(key.scope, unit).head_ids(key))
        at, name = self.clock.unix_ms(), self.fresh_id()
        new = version(name, value, parents=heads, recorded_at_unix_ms=at)
        plan = self.commit_of(key, [new], expected=heads, heads=[name])
        how = staging(unit, close=close, request=f'"{name}"', policy=f'"{name}"', holds=holds)
        return replace(plan, staging=how)

    def sealed(self) -> list[WorkUnit]:
        """Return the units that the model holds sealed."""
        return [u.unit for u in self.storage.tables.units.values() if u.state == "closing"]

    def still_staged(self) -> list[Commit]:
        """Return the last of the commits whose record is staged in its unit."""
        staged = {
            identity: stored.record.result_json
            for identity, stored in self.storage.tables.records.items()
            if stored.unit is not None
        }
        return [
            plan
            for plan in self.kept
            if plan.idempotency is not None
            and staged.get(plan.idempotency.identity) == plan.idempotency.result_json
        ]

    def resolution(self, conflict: UnitConflict, how: str, token: str) -> Resolution:
        """Return new heads of a drifted entity."""
        staged = [head.id for head in conflict.staged_heads]
        published = [head.id for head in conflict.published_heads]
        at = self.clock.unix_ms()
        joined = version(
            self.fresh_id(), "joined", parents=[*staged, *published], recorded_at_unix_ms=at
        )
        keeps_both = how == "keep both"
        used = next(iter(self.storage.tables.tokens), "none")
        further = {"fresh": CausalToken(f"token-{self.fresh_id()}"), "used": CausalToken(used)}
        return Resolution(
            key=conflict.key,
            expected_published_heads=version_ids(published),
            expected_staged_heads=version_ids(staged[:-1] if how == "stale" else staged),
            new_versions=() if keeps_both else (joined,),
            head_versions=version_ids(
                dict.fromkeys([*staged, *published]) if keeps_both else [joined.id]
            ),
            causal_token=further.get(token),
        )

    def unit(self, scope: ScopeText, age: int) -> WorkUnit:
        """Return one of the last units that were named, or a new one."""
        number = max(self.units - age, 0)
        identity = control(f"unit-{number}", scope=scope)
        stored = self.storage.tables.units.get(identity)
        if stored is not None and self.is_past_history(stored):
            self.units += 3
            return self.unit(scope, 0)
        now = self.clock.unix_ms()
        return WorkUnit(
            identity=identity,
            scope=scope,
            policy_json="1",
            now_unix_ms=now,
            expires_at_unix_ms=now + STAGING_MS[number % 2],
        )

    def view(self, scope: ScopeText, unit: WorkUnit) -> View:
        """Return what the model shows in a unit, also in one that is not open yet."""
        stored = self.storage.tables.units.get(unit.identity)
        tables = self.storage.tables
        frontier = tables.frontier(scope) if stored is None else stored.baseline
        return View(tables, scope, frontier, stored)

    def visible(self, view: View, key: EntityKey) -> list[str]:
        """Return the versions of `key` that `view` knows and that no provider may have removed."""
        at = compaction.horizons(RETENTION, self.latest_unix_ms)
        needed = compaction.needed_versions(self.storage.tables, key, at)
        return list(view.find(key, sorted(needed)))

    def drawn_identity(self, scope: ScopeText, data: st.DataObject) -> str | None:
        """Return the name of an idempotency identity, None where there is to be none."""
        if not claims("idempotency")(self):
            return None
        name = data.draw(st.none() | names, label="identity")
        is_usable = name is not None and not self.may_be_gone(control(name, scope=scope))
        return name if is_usable else None

    def is_uncertain(self, plan: Commit) -> bool:
        """Return whether what `plan` goes back to may have been removed, or not."""
        at = compaction.horizons(RETENTION, self.latest_unix_ms)
        needed = compaction.needed_versions(self.storage.tables, plan.key, at)
        parents = {parent for new in plan.new_versions for parent in new.parents}
        unit = plan.staging.unit.identity if plan.staging is not None else None
        stored = self.storage.tables.units.get(unit) if unit is not None else None
        record = plan.idempotency
        return (
            not parents <= needed
            or (stored is not None and self.is_past_history(stored))
            or (record is not None and self.may_be_gone(record.identity))
        )

    def look_closely(self) -> None:
        """Compare also what shows of the last units, within the bounds of every session."""
        super().look_closely()
        for number, scope in product(range(max(self.units - 2, 0), self.units + 1), SCOPES):
            stored = self.storage.tables.units.get(control(f"unit-{number}", scope=scope))
            if stored is None or self.is_past_history(stored):
                continue
            unit = replace(stored.unit, now_unix_ms=self.clock.unix_ms())
            for key in KEYS:
                if key.scope == scope:
                    plan = read(key, unit=unit)
                    self.compare(lambda p, _, plan=plan: p.read(plan))
            for session in SESSIONS if stored.state == "open" else ():
                if claims("monotonic_reads", "read_your_writes")(self):
                    requirement = replace(session, key=control(session.key, scope=scope))
                    bounds = Consistency(sessions=(requirement,))
                    plan = read(entity("a", scope=scope), unit=unit, consistency=bounds)
                    self.compare(lambda p, _, plan=plan: p.read(plan))

    def is_past_history(self, unit: StoredUnit) -> bool:
        """Return whether a unit finished so long ago that it may be gone, or not."""
        ended = unit.finished_at_unix_ms
        horizon = compaction.horizons(RETENTION, self.latest_unix_ms).history_unix_ms
        return ended is not None and ended < horizon

    def remember(self, answer: Answer) -> None:
        """Take over the versions that a publication made known."""
        if isinstance(answer, Published | Drifted | Discarded):
            self.look_closely()
        if isinstance(answer, Published):
            for key in KEYS:
                self.versions[key] = [
                    version_id
                    for (owner, version_id), stored in self.storage.tables.versions.items()
                    if owner == key and stored.cursor is not None
                ]
