"""Random histories of clients, units, strategies, clocks and restarts: the engine and the policy.

Every request is asked of an engine over a real store and of the model in `policy_model.py`; the
answers, what readers see afterwards and the change log must be the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from patchouli.backend import Engine, EngineError, VersionView, load_policy
from patchouli.protocol import (
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    ReadData,
    ReadParams,
    Ref,
    RetrieveData,
    RetrieveParams,
    UpdateData,
    UpdateParams,
)
from patchouli.provider import ChangesPlan, Cursor, SystemIds
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage
from patchouli.provider_sqlite import SqliteProvider

from tests.stateful.policy_model import TTL_MS, CrashError, Policy, RefusedError, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.provider import Provider, Publish, PublishOutcome

    from tests.stateful.policy_model import Key, Version

EXAMPLES = int(os.environ.get("PATCHOULI_EXAMPLES", "25"))
T = TypeVar("T")

KEYS: list[Key] = [("memo", "a"), ("memo", "b"), ("note", "a")]
STRICT = frozenset({"note"})
SCOPE = {"team": "north"}


def behavior(entity_type: str, *, is_keyed: bool, is_batch: bool) -> dict[str, Any]:
    snapshot = {"mode": "shared", "key_by": ["unit"]} if is_batch else {"mode": "request"}
    keyed = {"mode": "keyed", "key_by": ["call"]}
    batch = {
        "mode": "batch",
        "key_by": ["unit"],
        "close_when": {"kind": "marker", "field": "state", "equals": "done"},
        "staging_ttl_ms": TTL_MS,
        "on_expire": "discard",
    }
    return {
        "consistency": {
            "snapshot": snapshot,
            "acquire": {"allow_sources": ["authority"], "requirements": []},
            "sessions": [],
            "commit": {"ordering": {"kind": "none"}},
        },
        "idempotency": keyed if is_keyed else {"mode": "disabled"},
        "conflict": {
            "default_strategy": "merge",
            "strategy_from": "strategy",
            "base_versions": "bases",
            "merge": [{"path": "/items", "strategy": "automerge", "group_by": []}],
            "otherwise": "reject" if entity_type in STRICT else "mvcc",
        },
        "publication": batch if is_batch else {"mode": "immediate"},
    }


def entity_type(name: str) -> dict[str, Any]:
    rules = [(["unit", "call"], True, True), (["unit"], False, True), (["call"], True, False)]
    return {
        "value_schema": True,
        "rules": [
            {
                "name": "_".join(present),
                "when": {"all_present": present},
                "behavior": behavior(name, is_keyed=is_keyed, is_batch=is_batch),
            }
            for present, is_keyed, is_batch in rules
        ],
        "fallback": behavior(name, is_keyed=False, is_batch=False),
    }


POLICY = {
    "$schema": "./patchouli.schema.json",
    "version": 1,
    "retention": {"idempotency_seconds": 86_400, "changes_seconds": 86_400},
    "meta_fields": {
        name: {"pointer": f"/{name}", "schema": True}
        for name in ("team", "unit", "state", "call", "strategy", "bases")
    },
    "entity_identity": {"scope_by": ["team"]},
    "entity_types": {name: entity_type(name) for name in ("memo", "note")},
}


class PolicyMachine(RuleBasedStateMachine):
    """One engine and the model of the policy beside it."""

    is_on_disk: ClassVar = False

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.storage = ModelStorage()
        self.directory = tempfile.TemporaryDirectory() if self.is_on_disk else None
        self.policy = Policy(strict=STRICT)
        self.versions: dict[Key, list[Version]] = {key: [] for key in KEYS}
        self.requests: list[Request] = []
        self.units = 0
        self.serial = 0
        self.engine: Engine
        self.provider: Provider

    # Life

    @initialize()
    def begin(self) -> None:
        self.start()
        for key in KEYS[:2]:
            self.ask(Request("create", key, self.fresh(), 0))

    def start(self) -> tuple[int, int]:
        self.provider = (
            ModelProvider(self.storage, self.clock)
            if self.directory is None
            else SqliteProvider(Path(self.directory.name) / "db", clock=self.clock)
        )
        self.let_publish_crash()
        self.engine = self.run(
            Engine.start(
                load_policy(json.dumps(POLICY)), self.provider, clock=self.clock, ids=SystemIds()
            )
        )
        return self.engine.recovery

    def let_publish_crash(self) -> None:
        publish = self.provider.publish

        async def publish_or_crash(plan: Publish) -> PublishOutcome:
            if plan.resolutions and self.policy.crashes_next and self.is_watched:
                raise CrashError
            return await publish(plan)

        self.is_watched = True
        self.provider.publish = publish_or_crash  # type: ignore[method-assign]

    def teardown(self) -> None:
        with suppress(AttributeError):
            self.run(self.engine.shutdown())
        self.runner.close()
        if self.directory is not None:
            self.directory.cleanup()

    @rule()
    def restart(self) -> None:
        self.run(self.engine.shutdown())
        found = self.start()
        assert found == self.policy.restart()
        self.compare()

    @rule(ms=st.sampled_from([1, 1, 500, TTL_MS // 2, TTL_MS]))
    def let_time_pass(self, ms: int) -> None:
        self.clock.now_unix_ms += ms
        self.policy.now += ms
        # Whether a unit that is overdue only for a moment has expired is for the store to say.
        self.run(self.engine.checkpoint(None))
        self.policy.expire()

    @rule(ms=st.sampled_from([1, TTL_MS // 2, 3 * TTL_MS]))
    def set_the_clock_back(self, ms: int) -> None:
        self.clock.now_unix_ms -= ms
        self.policy.now -= ms

    # Requests

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def create(self, data: st.DataObject, key: Key) -> None:
        self.ask(Request("create", key, self.fresh(), self.mark(data), **self.drawn(data)))

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def update(self, data: st.DataObject, key: Key) -> None:
        options = self.drawn(data)
        bases = self.bases(data, key, options["unit"])
        if not bases:
            return
        items = frozenset[str]().union(*(base.items or () for base in bases))
        gone = data.draw(st.sets(st.sampled_from(sorted(items)))) if items else set[str]()
        request = Request(
            "update", key, items - gone | self.fresh(), self.mark(data), bases, **options
        )
        self.ask(request)

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def delete(self, data: st.DataObject, key: Key) -> None:
        options = self.drawn(data)
        bases = self.bases(data, key, options["unit"])
        if bases:
            self.ask(Request("delete", key, bases=bases, **options))

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def overtake(self, data: st.DataObject, key: Key) -> None:
        """Change an entity in a unit and outside of it."""
        unit = data.draw(st.sampled_from(self.open_units() or [f"u{self.units}"]), label="unit")
        self.compare_heads(key, unit)
        self.units = max(self.units, int(unit[1:]) + 1)
        for place in (unit, None):
            options = {**self.drawn(data, place=place), "is_closing": False}
            bases = self.bases(data, key, place)
            operation = data.draw(st.sampled_from(["update", "update", "delete"]))
            if operation == "delete" and bases:
                self.ask(Request("delete", key, bases=bases, **options))
            elif bases:
                items = frozenset[str]().union(*(base.items or () for base in bases))
                mark = self.mark(data)
                self.ask(Request("update", key, items | self.fresh(), mark, bases, **options))
            else:
                self.ask(Request("create", key, self.fresh(), self.mark(data), **options))

    @precondition(lambda self: self.open_units("closing"))
    @rule(data=st.data(), key=st.sampled_from(KEYS), crashes=st.booleans())
    def close(self, data: st.DataObject, key: Key, *, crashes: bool) -> None:
        """Close a unit; the process may end before what drifted is published."""
        unit = data.draw(st.sampled_from(self.open_units("closing")), label="unit")
        options = {**self.drawn(data, place=unit), "is_closing": True}
        bases = self.bases(data, key, unit)
        self.policy.crashes_next = crashes
        if not bases:
            self.ask(Request("create", key, self.fresh(), self.mark(data), **options))
        elif data.draw(st.sampled_from([False, False, True]), label="deletes"):
            self.ask(Request("delete", key, bases=bases, **options))
        else:
            items = frozenset[str]().union(*(base.items or () for base in bases))
            mark = self.mark(data)
            self.ask(Request("update", key, items | self.fresh(), mark, bases, **options))
        self.policy.crashes_next = False

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Ask again for what was asked before, as it was or a little different."""
        request = data.draw(st.sampled_from(self.requests[-8:]), label="request")
        change = data.draw(st.sampled_from(["nothing", "nothing", "close", "place", "value"]))
        if change == "close" and request.unit is not None:
            request = request._replace(is_closing=not request.is_closing)
        elif change == "place":
            unit = data.draw(self.some_unit())
            request = request._replace(
                unit=unit, is_closing=request.is_closing and unit is not None
            )
        elif change == "value":
            request = request._replace(items=request.items | self.fresh())
        self.ask(request)

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def read(self, data: st.DataObject, key: Key) -> None:
        self.compare_heads(key, data.draw(self.some_unit()))

    @rule(data=st.data())
    def retrieve(self, data: st.DataObject) -> None:
        unit = data.draw(self.some_unit())
        params = RetrieveParams(meta=self.meta(unit), data=RetrieveData(query="{}"))
        found = self.outcome(self.engine.retrieve(params))
        expected = expectation(partial(self.policy.retrieve, unit))
        if isinstance(expected, Exception):
            assert getattr(found, "reason", found) == getattr(expected, "reason", None)
        else:
            assert {(hit.variants[0].type, hit.variants[0].id) for hit in found.hits} == expected

    # What is drawn

    def some_unit(self) -> st.SearchStrategy[str | None]:
        """Return no unit, one of the newest, or one that is not there yet."""
        names = [f"u{number}" for number in range(max(0, self.units - 2), self.units + 1)]
        return st.none() | st.sampled_from(names)

    def open_units(self, *others: str) -> list[str]:
        """Return the units that are open, or in one of some other states."""
        states = {"open", *others}
        return [name for name, unit in self.policy.units.items() if unit.state in states]

    def drawn(self, data: st.DataObject, *, place: Any = ...) -> dict[str, Any]:
        unit = data.draw(self.some_unit(), label="unit") if place is ... else place
        if unit == f"u{self.units}":
            self.units += 1
        call = data.draw(st.sampled_from([None, None, "fresh"]), label="call")
        is_closing = unit is not None and data.draw(
            st.sampled_from([False, False, True]), label="closing"
        )
        return {
            "unit": unit,
            "call": f"call-{self.number()}" if call else None,
            "is_closing": is_closing,
            "strategy": data.draw(
                st.sampled_from(["merge", "merge", "merge", "mvcc", "reject"]), label="strategy"
            ),
        }

    def bases(self, data: st.DataObject, key: Key, unit: str | None) -> tuple[Version, ...]:
        """Return versions that a client may know: heads, old ones, some of another view."""
        versions = self.versions[key]
        if not versions:
            return ()
        heads = self.policy.heads.get(key, [])
        if unit in self.policy.units:
            heads = self.policy.units[unit].heads(key) or heads
        known = [head for head in heads if head.token]
        which = data.draw(st.sampled_from(["heads", "heads", "one", "old", "some"]), label="bases")
        if which == "heads" and known:
            return tuple(known)
        if which == "one" and known:
            return (data.draw(st.sampled_from(known)),)
        if which == "some":
            places = data.draw(st.sets(st.integers(0, len(versions) - 1), min_size=1, max_size=3))
            return tuple(versions[place] for place in sorted(places))
        return (data.draw(st.sampled_from(versions)),)

    def mark(self, data: st.DataObject) -> int:
        """Return what is not merged: the same as others, or something that nobody else has."""
        return 0 if data.draw(st.booleans(), label="like others") else self.number()

    def fresh(self) -> frozenset[str]:
        return frozenset({f"i{self.number()}"})

    def number(self) -> int:
        self.serial += 1
        return self.serial

    # Comparing

    def ask(self, request: Request) -> None:
        """Ask both for a mutation and compare what they say and show."""
        self.requests.append(request)
        found = self.outcome(self.call(request))
        expected = expectation(partial(self.policy.mutate, request))
        if isinstance(expected, RefusedError):
            self.compare_refusals(found, expected)
        elif isinstance(expected, CrashError):
            assert isinstance(found, CrashError), found
        else:
            assert isinstance(found, VersionView), found
            assert value_of(found) == expected.value
            assert (found.type, found.id) == request.key
            self.learn(request.key, expected, found.version)
            if request.call is not None:  # the answer may be lost, so the same request comes again
                assert self.outcome(self.call(request)) == found
                assert self.policy.mutate(request) is expected
        self.compare()
        unit = request.unit
        if unit in self.policy.units and self.policy.units[unit].state == "open":
            self.compare_heads(request.key, unit)

    def compare_refusals(self, found: Any, refusal: RefusedError) -> None:
        assert isinstance(found, EngineError), (found, refusal)
        assert found.reason == refusal.reason
        if refusal.reason == "VERSION_CONFLICT":
            error: Any = found
            assert list(error.current_versions) == tokens(refusal.heads)
            conflicts = [
                ((c.entity_type, c.entity_id), list(c.current_versions)) for c in error.conflicts
            ]
            assert conflicts == [(key, tokens(heads)) for key, heads in refusal.conflicts]

    def compare(self) -> None:
        """Compare what everybody sees: heads and changes."""
        for key in KEYS:
            self.compare_heads(key, None)
        plan = ChangesPlan(
            scope=self.engine.scope(self.meta(None)),
            after=Cursor(0),
            limit=10_000,
            retained_after_unix_ms=0,
        )
        page = self.run(self.provider.read_changes(plan))
        changes = [(c.type, c.id, c.kind.value, sorted(c.head_versions)) for c in page.changes]
        assert changes == [(*key, kind, tokens(heads)) for key, kind, heads in self.policy.log]

    def compare_heads(self, key: Key, unit: str | None) -> None:
        """Compare the heads of an entity, and learn what the engine calls them."""
        params = ReadParams(meta=self.meta(unit), data=ReadData(ref=Ref(type=key[0], id=key[1])))
        found = self.outcome(self.engine.read(params))
        heads = expectation(partial(self.policy.read, key, unit))
        if isinstance(heads, Exception):
            assert getattr(found, "reason", found) == getattr(heads, "reason", None)
            return
        assert not isinstance(found, Exception), found
        named = {head.token for head in heads}
        rest = [variant for variant in found.variants if variant.version not in named]
        for head in heads:
            if not head.token:
                same = [variant for variant in rest if value_of(variant) == head.value]
                assert same, (head.value, [value_of(variant) for variant in rest])
                self.learn(key, head, same[0].version)
                rest.remove(same[0])
        by_token = {variant.version: value_of(variant) for variant in found.variants}
        assert by_token == {head.token: head.value for head in heads}

    def learn(self, key: Key, version: Version, token: str) -> None:
        assert version.token in ("", token)
        if not version.token:
            version.token = token
            self.versions[key].append(version)

    # Asking

    def run(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def outcome(self, awaitable: Any) -> Any:
        """Return what a request is answered, errors included."""
        try:
            return self.run(awaitable)
        except (EngineError, CrashError) as error:
            return error

    async def call(self, request: Request) -> VersionView:
        entity_type, entity_id = request.key
        ref = Ref(type=entity_type, id=entity_id)
        value = {"items": dict.fromkeys(sorted(request.items), 1), "mark": request.mark}
        meta = self.meta(request.unit)
        if request.operation != "create":
            meta |= {"bases": [base.token for base in request.bases]}
        meta |= {"strategy": request.strategy}
        if request.call is not None:
            meta["call"] = request.call
        if request.is_closing:
            meta["state"] = "done"
        match request.operation:
            case "create":
                data = CreateData(type=entity_type, id=entity_id, value=value)
                result = await self.engine.create(CreateParams(meta=meta, data=data))
            case "update":
                changed = UpdateData(ref=ref, value=value)
                result = await self.engine.update(UpdateParams(meta=meta, data=changed))
            case "delete":
                params = DeleteParams(meta=meta, data=DeleteData(ref=ref))
                result = await self.engine.delete(params)
        return result.entity

    def meta(self, unit: str | None) -> dict[str, Any]:
        return {**SCOPE} if unit is None else {**SCOPE, "unit": unit}


def expectation(ask: Callable[[], T]) -> T | RefusedError | CrashError:
    """Return what the model says, refusals included."""
    try:
        return ask()
    except (RefusedError, CrashError) as error:
        return error


def value_of(variant: VersionView) -> tuple[frozenset[str], int] | None:
    if variant.value_json is None:
        return None
    value = json.loads(variant.value_json)
    return frozenset(value["items"]), value["mark"]


def tokens(heads: Any) -> list[str]:
    return sorted(head.token for head in heads)


class PolicyOnDiskMachine(PolicyMachine):
    """The same on SQLite."""

    is_on_disk = True


@pytest.mark.slow
@pytest.mark.timeout(600)  # to shrink a failure takes minutes
@pytest.mark.parametrize("machine", [PolicyMachine, PolicyOnDiskMachine])
def test_the_engine_does_what_the_policy_says(machine: type[PolicyMachine]) -> None:
    number = max(1, EXAMPLES // 4) if machine.is_on_disk else EXAMPLES
    run_state_machine_as_test(
        machine, settings=settings(max_examples=number, stateful_step_count=40, deadline=None)
    )
