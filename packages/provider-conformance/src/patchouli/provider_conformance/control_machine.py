"""The machine's rules for what only some providers claim.

Idempotency, causal tokens, sessions and work units; each rule is left out where its claim is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from patchouli.provider import (
    CausalToken,
    Committed,
    Consistency,
    ControlKey,
    EntityKey,
    IdempotencyRecord,
    Json,
    Publish,
    Published,
    Resolution,
    ScopeText,
    SessionRequirement,
    UnitConflict,
    WorkUnit,
)
from patchouli.provider_conformance import mutations
from patchouli.provider_conformance.builders import (
    LATE,
    OTHER_SCOPE,
    SCOPE,
    control,
    probe,
    read,
    retrieve,
    staging,
    tombstone,
    version,
    version_ids,
)
from patchouli.provider_conformance.machine import (
    KEYS,
    EntityMachine,
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
    from collections.abc import Callable

    from patchouli.provider_conformance.comparing import Answer

STAGING_MS = 40  # a unit lives for two moves of the clock or more

scopes = st.sampled_from([SCOPE, OTHER_SCOPE])
ages = st.integers(0, 2)
names = st.sampled_from(["one", "two"])
requests = st.sampled_from(['"first"', '"first"', '"second"'])
guarantees = st.tuples(st.booleans(), st.booleans())


def claims(*required: str) -> Callable[[ProviderMachine], bool]:
    """Return whether the provider makes all of some claims, as a precondition."""
    return lambda machine: all(getattr(machine.model.capabilities(), claim) for claim in required)


class ProviderMachine(EntityMachine):
    """One provider and the model beside it, with everything that the provider claims."""

    def __init__(self) -> None:
        super().__init__()
        self.units = 0

    @precondition(claims("idempotency"))
    @rule(key=keys, value=values, name=names, request=requests, ttl_ms=st.integers(1, 30))
    def create_once(
        self, key: EntityKey, value: Json, name: str, request: str, ttl_ms: int
    ) -> None:
        """Create under an idempotency identity."""
        new = version(self.fresh_id(), value, recorded_at_unix_ms=self.clock.unix_ms())
        plan = self.commit_of(key, [new], expected=[], heads=[new.id])
        record = self.record_of(key.scope, name, request, ttl_ms)
        plan = replace(plan, idempotency=record)
        if isinstance(self.ask(lambda p, _: p.commit(plan)), Committed):
            self.versions[key].append(new.id)

    @precondition(claims("idempotency"))
    @rule(key=keys, name=names, request=requests)
    def ask_whether_done(self, key: EntityKey, name: str, request: str) -> None:
        """Ask whether a request was accepted."""
        plan = read(
            key,
            idempotency=probe(
                control(name, scope=key.scope),
                request,
                now_unix_ms=self.clock.unix_ms(),
            ),
        )
        self.ask(lambda p, _: p.read(plan))

    @precondition(claims("causal_reads"))
    @rule(key=keys, data=st.data())
    def read_after(self, key: EntityKey, data: st.DataObject) -> None:
        """Read with causal bounds, known or not."""
        known = [*self.storage.tables.tokens, "ghost"]
        tokens = data.draw(some_of(known), label="tokens")
        consistency = Consistency(minimum_tokens=tuple(CausalToken(t) for t in tokens))
        self.ask(lambda p, _: p.read(read(key, consistency=consistency)))

    @precondition(claims("monotonic_reads", "read_your_writes"))
    @rule(key=keys, name=names, value=values)
    def write_in_session(self, key: EntityKey, name: str, value: Json) -> None:
        """Replace the heads and advance a session."""
        heads = self.heads(key)
        new = version(
            self.fresh_id(), value, parents=heads, recorded_at_unix_ms=self.clock.unix_ms()
        )
        plan = self.commit_of(key, [new], expected=heads, heads=[new.id])
        plan = replace(plan, write_sessions=(control(name, scope=key.scope),))
        if isinstance(self.ask(lambda p, _: p.commit(plan)), Committed):
            self.versions[key].append(new.id)

    @precondition(claims("monotonic_reads", "read_your_writes"))
    @rule(key=keys, name=names, asked=guarantees)
    def read_in_session(self, key: EntityKey, name: str, asked: tuple[bool, bool]) -> None:
        """Read within a session."""
        consistency = within(control(name, scope=key.scope), asked)
        self.ask(lambda p, _: p.read(read(key, consistency=consistency)))

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
        keyed = claims("idempotency")(self) and data.draw(st.booleans(), label="keyed")
        request = data.draw(requests, label="request") if keyed else f'"{name}"'
        plan = replace(
            plan,
            deadline_unix_ms=deadline,
            base_versions=version_ids(bases),
            with_divergence=True,
            staging=staging(unit, close=close, request=request, policy=f'"{name}"'),
            idempotency=self.record_of(key.scope, "one", request, 30) if keyed else None,
        )
        self.remember(self.ask(lambda p, _: p.commit(plan)))

    @precondition(claims("work_units"))
    @rule(key=keys, age=ages)
    def overtake_and_close(self, key: EntityKey, age: int) -> None:
        """Stage, publish past everything that the unit has staged, and then close the unit."""
        self.stage_plainly(key, age, close=False)
        unit = self.storage.tables.units.get(self.unit(key.scope, age).identity)
        for overtaken in unit.entities if unit is not None else ():
            self.join(key=overtaken, count=1, value="overtaken")
        self.stage_plainly(key, age, close=True)

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
    @rule(key=keys, age=ages, name=names, request=requests, asked=guarantees, data=st.data())
    def read_in_unit_with_bounds(
        self,
        key: EntityKey,
        age: int,
        name: str,
        request: str,
        asked: tuple[bool, bool],
        data: st.DataObject,
    ) -> None:
        """Read the view of a unit with whatever bounds and questions the provider takes."""
        consistency = Consistency()
        if claims("monotonic_reads", "read_your_writes")(self):
            consistency = within(control(name, scope=key.scope), asked)
        if claims("causal_reads")(self):
            known = [*self.storage.tables.tokens, "ghost"]
            tokens = data.draw(some_of(known), label="tokens")
            minimum = tuple(CausalToken(token) for token in tokens)
            consistency = replace(consistency, minimum_tokens=minimum)
        question = None
        if claims("idempotency")(self):
            identity = control(name, scope=key.scope)
            question = probe(identity, request, now_unix_ms=self.clock.unix_ms())
        plan = read(
            key, consistency=consistency, unit=self.unit(key.scope, age), idempotency=question
        )
        self.ask(lambda p, _: p.read(plan))

    @precondition(claims("work_units"))
    @rule(scope=scopes, age=ages, text=mostly_without(texts), limit=st.integers(1, 4))
    def retrieve_in_unit(self, scope: ScopeText, age: int, text: str | None, limit: int) -> None:
        """Retrieve in the view of a unit."""
        unit = self.unit(scope, age)
        plan = retrieve(scope=scope, unit=unit, text=text, limit=limit)
        self.ask(lambda p, _: every_page(p, plan))

    @precondition(claims("work_units"))
    @rule(
        scope=scopes,
        age=ages,
        how=st.sampled_from(["join", "keep both", "join", "half", "stale", "nothing", "discard"]),
    )
    def publish(self, scope: ScopeText, age: int, how: str) -> None:
        """Answer the drift of a unit in one way or another; of a sealed one if there is any.

        Each answer is given too late first, and then in time.
        """
        unit = self.unit(scope, age)
        sealed = [u.unit for u in self.storage.tables.units.values() if u.state == "closing"]
        if sealed:
            unit = replace(sealed[-1], now_unix_ms=self.clock.unix_ms())
        stored = self.storage.tables.units.get(unit.identity)
        drift = ()
        if stored is not None and stored.state == "closing":
            drift = mutations.drift(self.storage.tables, stored)
        resolutions = [] if how == "nothing" else [self.resolution(c, how) for c in drift]
        plan = Publish(
            unit=unit,
            resolutions=tuple(resolutions[: len(drift) // 2] if how == "half" else resolutions),
            recorded_at_unix_ms=self.clock.unix_ms(),
            deadline_unix_ms=LATE,
            discard=how == "discard",
        )
        self.ask(lambda p, _: p.publish(plan))
        in_time = replace(plan, deadline_unix_ms=None)
        self.remember(self.ask(lambda p, _: p.publish(in_time)))

    def stage_plainly(self, key: EntityKey, age: int, *, close: bool) -> None:
        """Stage a version on top of the heads that the unit shows."""
        unit = self.unit(key.scope, age)
        heads = list(self.view(key.scope, unit).head_ids(key))
        at, name = self.clock.unix_ms(), self.fresh_id()
        new = version(name, parents=heads, recorded_at_unix_ms=at)
        plan = self.commit_of(key, [new], expected=heads, heads=[name])
        plan = replace(plan, staging=staging(unit, close=close, request=f'"{name}"'))
        self.remember(self.ask(lambda p, _: p.commit(plan)))

    def resolution(self, conflict: UnitConflict, how: str) -> Resolution:
        """Return new heads of a drifted entity."""
        staged = [head.id for head in conflict.staged_heads]
        published = [head.id for head in conflict.published_heads]
        at = self.clock.unix_ms()
        joined = version(
            self.fresh_id(), "joined", parents=[*staged, *published], recorded_at_unix_ms=at
        )
        keeps_both = how == "keep both"
        return Resolution(
            key=conflict.key,
            expected_published_heads=version_ids(published),
            expected_staged_heads=version_ids(staged[:-1] if how == "stale" else staged),
            new_versions=() if keeps_both else (joined,),
            head_versions=version_ids(
                dict.fromkeys([*staged, *published]) if keeps_both else [joined.id]
            ),
        )

    def unit(self, scope: ScopeText, age: int) -> WorkUnit:
        """Return one of the last units that were named, or a new one."""
        now = self.clock.unix_ms()
        return WorkUnit(
            identity=control(f"unit-{max(self.units - age, 0)}", scope=scope),
            scope=scope,
            policy_json="1",
            now_unix_ms=now,
            expires_at_unix_ms=now + STAGING_MS,
        )

    def view(self, scope: ScopeText, unit: WorkUnit) -> View:
        """Return what the model shows in a unit, also in one that is not open yet."""
        stored = self.storage.tables.units.get(unit.identity)
        tables = self.storage.tables
        frontier = tables.frontier(scope) if stored is None else stored.baseline
        return View(tables, scope, frontier, stored)

    def visible(self, view: View, key: EntityKey) -> list[str]:
        """Return the versions of `key` that `view` knows."""
        every = [version_id for owner, version_id in self.storage.tables.versions if owner == key]
        return list(view.find(key, every))

    def record_of(
        self, scope: ScopeText, name: str, request: str, ttl_ms: int
    ) -> IdempotencyRecord:
        """Return a record with a result of its own."""
        now = self.clock.unix_ms()
        return IdempotencyRecord(
            identity=control(name, scope=scope),
            request_json=request,
            result_json=f'"{self.fresh_id()}"',
            now_unix_ms=now,
            expires_at_unix_ms=now + ttl_ms,
        )

    def remember(self, answer: Answer) -> None:
        """Take over the versions that a publication made known."""
        if isinstance(answer, Published):
            for key in KEYS:
                self.versions[key] = [
                    version_id
                    for (owner, version_id), stored in self.storage.tables.versions.items()
                    if owner == key and stored.cursor is not None
                ]


def within(session: ControlKey, asked: tuple[bool, bool]) -> Consistency:
    """Require one or both guarantees of a session."""
    monotonic, own_writes = asked
    requirement = SessionRequirement(
        key=session, monotonic_reads=monotonic, read_your_writes=own_writes
    )
    return Consistency(sessions=(requirement,))
