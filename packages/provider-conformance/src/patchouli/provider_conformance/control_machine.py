"""The machine's rules for idempotency, causal tokens and sessions; each where it is claimed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from patchouli.provider import (
    CausalToken,
    Committed,
    Consistency,
    ControlKey,
    EntityKey,
    IdempotencyProbe,
    IdempotencyRecord,
    Json,
    ScopeText,
    SessionRequirement,
)
from patchouli.provider_conformance.builders import (
    OTHER_SCOPE,
    SCOPE,
    control,
    probe,
    read,
    retrieve,
    version,
)
from patchouli.provider_conformance.machine import (
    KEYS,
    EntityMachine,
    deadlines,
    every_page,
    keys,
    mostly_without,
    some_of,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

scopes = st.sampled_from([SCOPE, OTHER_SCOPE])
NAMES = ("one", "two")
names = st.sampled_from(NAMES)
requests = st.sampled_from(['"first"', '"first"', '"second"'])
lifetimes_ms = st.integers(1, 30) | st.sampled_from([900, 5_000])
guarantees = st.tuples(st.booleans(), st.booleans())
chances = st.sampled_from([True, False, False])

UNKNOWN_TOKEN = "ghost"


def claims(*required: str) -> Callable[[ControlMachine], bool]:
    """Return whether the provider makes all of some claims, as a precondition."""
    return lambda machine: all(getattr(machine.model.capabilities(), claim) for claim in required)


class ControlMachine(EntityMachine):
    """What a request may bring besides its entity, as far as the provider claims it."""

    @precondition(claims("idempotency"))
    @rule(
        key=keys,
        value=values,
        name=names,
        request=requests,
        ttl_ms=lifetimes_ms,
        deadline=deadlines,
        data=st.data(),
    )
    def write_once(
        self,
        key: EntityKey,
        value: Json,
        name: str,
        request: str,
        ttl_ms: int,
        deadline: int | None,
        data: st.DataObject,
    ) -> None:
        """Create, or replace the heads, under an idempotency identity."""
        if self.may_be_gone(control(name, scope=key.scope)):
            return
        is_create = data.draw(chances, label="creates")
        heads = [] if is_create else self.heads(key)
        new = version(
            self.fresh_id(), value, parents=heads, recorded_at_unix_ms=self.clock.unix_ms()
        )
        plan = replace(
            self.commit_of(key, [new], expected=heads, heads=[new.id]),
            idempotency=self.record_of(key.scope, name, request, ttl_ms),
            write_sessions=self.drawn_sessions(key.scope, data),
            deadline_unix_ms=deadline,
        )
        if isinstance(self.ask(lambda p, _: p.commit(plan)), Committed):
            self.versions[key].append(new.id)
            # The answer may be lost, so the same call comes again; it is known in every case.
            self.ask(lambda p, _: p.commit(plan))

    @precondition(claims("idempotency"))
    @rule(key=keys, name=names, request=requests, data=st.data())
    def ask_whether_done(
        self, key: EntityKey, name: str, request: str, data: st.DataObject
    ) -> None:
        """Ask whether a request was accepted, within whatever bounds."""
        if self.may_be_gone(control(name, scope=key.scope)):
            return
        plan = read(
            key,
            idempotency=self.probe_of(key.scope, name, request),
            consistency=self.drawn_bounds(key.scope, data),
        )
        self.ask(lambda p, _: p.read(plan))

    @precondition(claims("causal_reads"))
    @rule(key=keys, data=st.data())
    def read_after(self, key: EntityKey, data: st.DataObject) -> None:
        """Read with causal bounds, known or not."""
        tokens = self.drawn_tokens(data)
        consistency = Consistency(minimum_tokens=tokens)
        self.ask(lambda p, _: p.read(read(key, consistency=consistency)))

    @precondition(claims("read_your_writes"))
    @rule(key=keys, value=values, data=st.data())
    def write_in_session(self, key: EntityKey, value: Json, data: st.DataObject) -> None:
        """Replace the heads and advance sessions."""
        heads = self.heads(key)
        new = version(
            self.fresh_id(), value, parents=heads, recorded_at_unix_ms=self.clock.unix_ms()
        )
        plan = self.commit_of(key, [new], expected=heads, heads=[new.id])
        plan = replace(plan, write_sessions=self.drawn_sessions(key.scope, data))
        if isinstance(self.ask(lambda p, _: p.commit(plan)), Committed):
            self.versions[key].append(new.id)

    @precondition(claims("monotonic_reads"))
    @rule(key=keys, data=st.data(), deadline=deadlines)
    def read_in_session(self, key: EntityKey, data: st.DataObject, deadline: int | None) -> None:
        """Read within sessions."""
        consistency = self.drawn_bounds(key.scope, data)
        plan = read(key, consistency=replace(consistency, deadline_unix_ms=deadline))
        self.ask(lambda p, _: p.read(plan))

    @precondition(claims("monotonic_reads"))
    @rule(scope=scopes, data=st.data())
    def retrieve_in_session(self, scope: ScopeText, data: st.DataObject) -> None:
        """Retrieve within sessions."""
        plan = retrieve(scope=scope, consistency=self.drawn_bounds(scope, data))
        self.ask(lambda p, _: every_page(p, plan))

    def look_closely(self) -> None:
        """Compare also what is known under each idempotency identity, and of the last tokens."""
        super().look_closely()
        for key, token in product(KEYS[-2:], list(self.storage.tables.tokens)[-3:]):
            if claims("causal_reads")(self):
                plan = read(key, consistency=Consistency(minimum_tokens=(token,)))
                self.compare(lambda p, _, plan=plan: p.read(plan))
        for name, key in product(NAMES, KEYS[-2:]):
            if claims("idempotency")(self) and not self.may_be_gone(control(name, scope=key.scope)):
                plan = read(key, idempotency=self.probe_of(key.scope, name, '"first"'))
                self.compare(lambda p, _, plan=plan: p.read(plan))

    def drawn_sessions(self, scope: ScopeText, data: st.DataObject) -> tuple[ControlKey, ...]:
        """Return sessions to advance by a write, none where that is not claimed."""
        if not claims("read_your_writes")(self):
            return ()
        drawn = data.draw(st.lists(names, unique=True, max_size=2), label="write sessions")
        return tuple(control(name, scope=scope) for name in drawn)

    def drawn_tokens(self, data: st.DataObject) -> tuple[CausalToken, ...]:
        """Return causal bounds, none where they are not claimed."""
        if not claims("causal_reads")(self):
            return ()
        known = [*self.storage.tables.tokens, UNKNOWN_TOKEN]
        return tuple(CausalToken(t) for t in data.draw(some_of(known), label="tokens"))

    def drawn_bounds(self, scope: ScopeText, data: st.DataObject) -> Consistency:
        """Return bounds of every kind that the provider claims."""
        is_monotonic, is_own = data.draw(guarantees, label="monotonic, own writes")
        requirement = SessionRequirement(
            key=control(data.draw(names, label="session"), scope=scope),
            monotonic_reads=is_monotonic and claims("monotonic_reads")(self),
            read_your_writes=is_own and claims("read_your_writes")(self),
        )
        bounded = data.draw(mostly_without(st.just("tokens")), label="bounds")
        return Consistency(
            sessions=(requirement,), minimum_tokens=self.drawn_tokens(data) if bounded else ()
        )

    def probe_of(self, scope: ScopeText, name: str, request: str) -> IdempotencyProbe:
        """Return the question whether a request was accepted."""
        return probe(control(name, scope=scope), request, now_unix_ms=self.clock.unix_ms())

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

    def may_be_gone(self, identity: ControlKey) -> bool:
        """Return whether a record had expired before the clock was set back to before its end."""
        stored = self.storage.tables.records.get(identity)
        if stored is None:
            return False
        end = stored.record.expires_at_unix_ms
        return self.clock.unix_ms() < end <= self.latest_unix_ms
