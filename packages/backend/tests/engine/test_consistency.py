"""What a request must observe: causal tokens, sessions, and the wait for what is not there yet."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from patchouli.backend import Limits
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
from patchouli.provider import (
    CausalToken,
    Consistency,
    ControlKey,
    Reading,
    SessionRequirement,
    Source,
    Unavailable,
    UnavailableError,
)
from patchouli.provider_conformance import builders

FAR_MS = 3_600_000
REF = Ref(type="memo", id="a")
FIELDS = {
    "seen": {"pointer": "/ctx/seen", "schema": True},
    "peer": {"pointer": "/peer", "schema": True},
}
METHODS = ("create", "read", "retrieve", "update", "delete")


def requirement(*, optional=True):
    return {"kind": "causal_after", "token": "seen", "optional": optional}


def session(*guarantees):
    return {"key_by": ["peer"], "guarantees": list(guarantees)}


@pytest.fixture
def consistent(policy, plain):
    """The builder of a policy with requirements and sessions."""

    def build(*, requirements=(), sessions=(), **members):
        acquire = {"allow_sources": ["authority", "replica"], "requirements": list(requirements)}
        consistency = {"acquire": acquire, "sessions": list(sessions)}
        fallback = plain(consistency=consistency)
        return policy(fields=FIELDS, fallback=fallback, **members)

    return build


@pytest.fixture
async def desk(open_desk, consistent):
    """An engine whose requests may carry a causal lower bound."""
    return await open_desk(consistent(requirements=[requirement()]))


def asked(desk, method, *, name="new", bases=(), **meta):
    """Return a request with `meta`; a create makes an entity, all others are for `a`."""
    meta = {**desk.meta, "base_versions": [*bases], **meta}
    match method:
        case "create":
            data = CreateData(type="memo", id=name, value={"text": "c"})
            return desk.engine.create(CreateParams(meta=meta, data=data))
        case "read":
            return desk.engine.read(ReadParams(meta=meta, data=ReadData(ref=REF)))
        case "retrieve":
            return desk.engine.retrieve(RetrieveParams(meta=meta, data=RetrieveData(query="{}")))
        case "update":
            data = UpdateData(ref=REF, value={"text": "u"})
            return desk.engine.update(UpdateParams(meta=meta, data=data))
        case _:
            return desk.engine.delete(DeleteParams(meta=meta, data=DeleteData(ref=REF)))


async def publish(desk, name, token):
    """Publish a change of the scope whose token is known beforehand, past the engine."""
    scope = desk.engine.scope(desk.meta)
    key = builders.entity(name, scope=scope, kind="memo")
    commit = builders.create(key, f"version of {name}", causal_token=CausalToken(token))
    await desk.provider.inner.commit(commit)


def later(desk, ms=FAR_MS):
    return desk.clock.unix_ms() + ms


class Waits:
    """The waits for changes that a provider is asked for."""

    def __init__(self, provider):
        self.begun = 0
        self.ended = 0
        self._moved = asyncio.Event()
        self._inner = provider.wait_for_changes
        provider.wait_for_changes = self._wait

    async def reach(self, number):
        """Return when that many have begun."""
        async with asyncio.timeout(5):
            while self.begun < number:
                self._moved.clear()
                await self._moved.wait()

    async def _wait(self, scope, after):
        self.begun += 1
        self._moved.set()
        try:
            await self._inner(scope, after)
        finally:
            self.ended += 1


@pytest.fixture
def waits(desk):
    return Waits(desk.provider)


# Tokens


@pytest.mark.scenario(11)
async def test_a_token_outlives_a_restart_and_an_unknown_one_is_never_observed(desk, refusal):
    made = await asked(desk, "create", name="a")
    token = made.meta["ctx"]["seen"]
    assert token == made.entity.version

    desk = await desk.restart()

    found = await asked(desk, "read", ctx={"seen": token})
    assert found.meta == {"ctx": {"seen": token}}
    assert (await refusal(asked(desk, "read", ctx={"seen": "unknown"}))).reason == "OVERLOADED"


async def test_the_token_of_a_mutation_is_that_of_its_change(desk):
    made = await asked(desk, "create", name="a")
    changed = await asked(desk, "update", bases=[made.entity.version])
    gone = await asked(desk, "delete", bases=[changed.entity.version])

    tokens = [result.meta["ctx"]["seen"] for result in (made, changed, gone)]
    assert tokens == [change.causal_token for change in await desk.changes()]
    assert (await asked(desk, "read")).meta == {"ctx": {"seen": tokens[-1]}}
    assert (await asked(desk, "retrieve")).meta == {"ctx": {"seen": tokens[-1]}}
    for token in tokens:
        assert await asked(desk, "read", ctx={"seen": token})


async def test_nothing_is_observed_in_a_scope_without_changes(desk):
    assert (await asked(desk, "retrieve")).meta == {}


async def test_a_token_of_another_scope_is_unknown(desk, refusal):
    made = await asked(desk, "create", name="a")
    await asked(desk, "create", name="a", team="south")

    error = await refusal(asked(desk, "read", team="south", ctx={"seen": made.entity.version}))

    assert error.reason == "OVERLOADED"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", [None, 7, ["t"], {"t": 1}, True])
async def test_a_token_is_a_string(desk, refusal, method, token):
    error = await refusal(asked(desk, method, ctx={"seen": token}))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/ctx/seen")
    assert desk.provider.calls == []


@pytest.mark.parametrize("method", METHODS)
async def test_a_token_that_is_needed_must_be_there(open_desk, consistent, refusal, method):
    desk = await open_desk(consistent(requirements=[requirement(optional=False)]))

    error = await refusal(asked(desk, method))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/ctx/seen")


@pytest.mark.parametrize("method", METHODS)
async def test_what_cannot_be_observed_is_refused_at_once(desk, waits, refusal, method):
    """No deadline says how long it would be worth waiting."""
    made = await asked(desk, "create", name="a")
    unknown = {"ctx": {"seen": "unknown"}}
    desk.provider.calls.clear()

    error = await refusal(asked(desk, method, bases=[made.entity.version], **unknown))

    assert (error.reason, error.retryable) == ("OVERLOADED", True)
    assert desk.provider.calls == ["retrieve" if method == "retrieve" else "read"]
    assert waits.begun == 0
    assert len(await desk.changes()) == 1


async def test_a_mutation_reads_from_the_authority_and_a_read_from_any_source(desk):
    made = await asked(desk, "create", name="a")
    await asked(desk, "update", bases=[made.entity.version])
    await asked(desk, "read")

    sources = [plan.consistency.allowed_sources for plan in desk.provider.reads]
    assert sources == [{Source.AUTHORITY}, {Source.AUTHORITY, Source.REPLICA}]


# Waiting


@pytest.mark.parametrize("method", METHODS)
async def test_with_a_deadline_a_request_waits_for_its_token(desk, waits, method):
    made = await asked(desk, "create", name="a")
    soon = {"ctx": {"seen": "soon"}, "deadline_unix_ms": later(desk)}

    task = asyncio.create_task(asked(desk, method, bases=[made.entity.version], **soon))
    await waits.reach(1)
    await publish(desk, "unrelated", "other")
    await waits.reach(2)
    assert not task.done()
    await publish(desk, "b", "soon")
    result = await task

    assert waits.begun == waits.ended == 2
    if method in ("read", "retrieve"):
        assert result.meta == {"ctx": {"seen": "soon"}}
    else:
        assert len(await desk.changes()) == 4


async def test_changes_of_another_scope_end_no_wait(desk, waits):
    task = asyncio.create_task(
        asked(desk, "read", ctx={"seen": "soon"}, deadline_unix_ms=later(desk))
    )
    await waits.reach(1)

    await asked(desk, "create", team="south")
    await publish(desk, "a", "soon")
    await task

    assert waits.begun == 1


@pytest.mark.parametrize("method", METHODS)
async def test_the_deadline_ends_the_wait(desk, waits, refusal, method):
    made = await asked(desk, "create", name="a")

    error = await refusal(
        asked(
            desk,
            method,
            bases=[made.entity.version],
            ctx={"seen": "never"},
            deadline_unix_ms=later(desk, 5),
        )
    )

    assert (error.reason, error.retryable) == ("OVERLOADED", True)
    assert waits.begun == waits.ended == 1
    assert len(await desk.changes()) == 1


async def test_a_clock_that_jumps_over_the_deadline_ends_the_wait_at_the_next_change(
    desk, waits, refusal
):
    task = asyncio.create_task(
        refusal(asked(desk, "read", ctx={"seen": "soon"}, deadline_unix_ms=later(desk)))
    )
    await waits.reach(1)

    desk.clock.now_unix_ms += FAR_MS
    await publish(desk, "a", "soon")
    error = await task

    assert error.reason == "OVERLOADED"


async def test_a_clock_that_jumps_back_makes_no_wait_longer(desk, waits, refusal):
    task = asyncio.create_task(
        refusal(asked(desk, "read", ctx={"seen": "never"}, deadline_unix_ms=later(desk, 50)))
    )
    await waits.reach(1)

    desk.clock.now_unix_ms -= FAR_MS

    assert (await task).reason == "OVERLOADED"


async def test_the_latest_deadline_of_all_can_be_waited_for(desk, waits):
    task = asyncio.create_task(
        asked(desk, "read", ctx={"seen": "soon"}, deadline_unix_ms=2**64 - 1)
    )
    await waits.reach(1)
    await publish(desk, "a", "soon")

    assert (await task).state == "active"


async def test_what_waiting_cannot_help_is_refused_at_once(desk, waits, refusal):
    desk.provider.answers.append(Unavailable(detail="a view that stays as it is", frontier=None))

    error = await refusal(asked(desk, "read", deadline_unix_ms=later(desk)))

    assert error.reason == "OVERLOADED"
    assert waits.begun == 0


async def test_all_who_wait_are_told_and_ask_once_for_each_change(desk, waits):
    soon = {"ctx": {"seen": "soon"}, "deadline_unix_ms": later(desk)}
    tasks = [asyncio.create_task(asked(desk, "read", **soon)) for _ in range(40)]
    await waits.reach(40)

    await publish(desk, "b", "other")
    await waits.reach(80)
    await publish(desk, "a", "soon")
    results = await asyncio.gather(*tasks)

    assert {result.state for result in results} == {"active"}
    assert desk.provider.calls.count("read") == 120


async def test_beyond_its_bound_nobody_waits(open_desk, consistent, refusal):
    desk = await open_desk(consistent(requirements=[requirement()]), limits=Limits(max_awaiting=2))
    waits = Waits(desk.provider)
    soon = {"ctx": {"seen": "soon"}, "deadline_unix_ms": later(desk)}
    tasks = [asyncio.create_task(asked(desk, method, **soon)) for method in ("read", "create")]
    await waits.reach(2)

    error = await refusal(asked(desk, "retrieve", **soon))
    await publish(desk, "a", "soon")
    await asyncio.gather(*tasks)

    assert error.reason == "OVERLOADED"
    assert waits.begun == 2
    assert await asked(desk, "retrieve", **soon)


async def test_mutations_that_wait_keep_no_place_and_no_turn(open_desk, consistent):
    desk = await open_desk(consistent(requirements=[requirement()]), limits=Limits(max_queued=1))
    waits = Waits(desk.provider)
    made = await asked(desk, "create", name="a")
    soon = {"ctx": {"seen": "soon"}, "deadline_unix_ms": later(desk)}

    waiting = [
        asyncio.create_task(asked(desk, method, bases=[made.entity.version], **soon))
        for method in ("create", "update", "delete")
    ]
    await waits.reach(3)
    head = await asked(desk, "update", bases=[made.entity.version])
    assert list(await desk.heads()) == [head.entity.version]
    for task in waiting[1:]:
        task.cancel()
    await publish(desk, "b", "soon")
    await waiting[0]

    assert [kind async for kind in kinds(desk)] == ["created", "updated", "created", "created"]


async def kinds(desk):
    for change in await desk.changes():
        yield change.kind


async def test_a_wait_that_is_cancelled_leaves_nothing(desk, waits):
    task = asyncio.create_task(
        asked(desk, "read", ctx={"seen": "never"}, deadline_unix_ms=later(desk))
    )
    await waits.reach(1)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert waits.ended == 1


async def test_no_wait_holds_up_a_stop(desk, waits, refusal):
    soon = {"ctx": {"seen": "soon"}, "deadline_unix_ms": later(desk)}
    tasks = [asyncio.create_task(refusal(asked(desk, method, **soon))) for method in METHODS]
    await waits.reach(len(METHODS))

    desk.engine.stop_waiting()
    errors = [await task for task in tasks]
    late = await refusal(asked(desk, "read", **soon))

    assert [error.reason for error in (*errors, late)] == ["OVERLOADED"] * (len(METHODS) + 1)
    assert waits.begun == waits.ended == len(METHODS)


async def test_a_store_that_stops_ends_the_wait(desk, waits):
    task = asyncio.create_task(
        asked(desk, "read", ctx={"seen": "never"}, deadline_unix_ms=later(desk))
    )
    await waits.reach(1)

    await desk.provider.inner.shutdown()

    with pytest.raises(UnavailableError):
        await task


# Sessions


BOTH = ("monotonic_reads", "read_your_writes")


def peer(desk, name="p"):
    return ControlKey(f'{{"scope":{desk.engine.scope(desk.meta)},"fields":{{"peer":"{name}"}}}}')


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("guarantees", [BOTH[:1], BOTH[1:], BOTH])
async def test_a_request_of_a_session_is_asked_for_with_it(
    open_desk, consistent, method, guarantees
):
    desk = await open_desk(consistent(sessions=[session(*guarantees)]))
    made = await asked(desk, "create", name="a", peer="q")
    desk.provider.reads.clear()
    desk.provider.commits.clear()

    await asked(desk, method, bases=[made.entity.version], peer="p")

    expected = SessionRequirement(
        key=peer(desk),
        monotonic_reads=BOTH[0] in guarantees,
        read_your_writes=BOTH[1] in guarantees,
    )
    (plan,) = desk.provider.retrievals or desk.provider.reads
    assert plan.consistency.sessions == (expected,)
    for commit in desk.provider.commits:
        assert commit.write_sessions == ((peer(desk),) if BOTH[1] in guarantees else ())


@pytest.mark.parametrize("method", METHODS)
async def test_a_request_without_its_session_is_refused(open_desk, consistent, refusal, method):
    desk = await open_desk(consistent(sessions=[session(*BOTH)]))

    error = await refusal(asked(desk, method))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/peer")
    assert desk.provider.calls == []


async def test_guarantees_of_several_types_add_up_in_a_retrieval(open_desk, consistent, plain):
    reader = plain(consistency={"sessions": [session("monotonic_reads")]})
    writer = plain(consistency={"sessions": [session("read_your_writes")]})
    types = {
        name: {"value_schema": True, "rules": [], "fallback": behavior}
        for name, behavior in (("r", reader), ("w", writer))
    }
    desk = await open_desk(consistent(types=types))

    await asked(desk, "retrieve", peer="p")

    (plan,) = desk.provider.retrievals
    both = SessionRequirement(key=peer(desk), monotonic_reads=True, read_your_writes=True)
    assert plan.consistency.sessions == (both,)


async def frontiers(desk):
    """Return the read and the write frontier of the session `p`.

    The view of an open work unit stays at its baseline and is refused to a session beyond it. The
    unit of number n has the baseline n, so the first that is not refused says the frontier; reading
    in it moves nothing.
    """
    found = []
    for guarantee in BOTH:
        requirement = SessionRequirement(
            key=peer(desk), **{name: name == guarantee for name in BOTH}
        )
        for baseline, unit in enumerate(desk.units):
            plan = builders.read(
                desk.key(), unit=unit, consistency=Consistency(sessions=(requirement,))
            )
            if isinstance(await desk.provider.inner.read(plan), Reading):
                found.append(baseline)
                break
    return tuple(found)


async def open_unit(desk):
    """Open a work unit whose baseline is the frontier of now."""
    unit = builders.unit(f"{len(desk.units)}", scope=desk.engine.scope(desk.meta))
    desk.units.append(unit)
    assert isinstance(await desk.provider.inner.read(builders.read(desk.key(), unit=unit)), Reading)


@pytest.mark.scenario(23)
@pytest.mark.parametrize(
    ("guarantees", "written", "read"),
    [(BOTH[1:], (0, 1), (0, 1)), (BOTH[:1], (0, 0), (2, 0)), (BOTH, (0, 1), (2, 1))],
    ids=["read_your_writes", "monotonic_reads", "both"],
)
async def test_a_session_has_two_frontiers(open_desk, consistent, guarantees, written, read):
    desk = await open_desk(consistent(sessions=[session(*guarantees)]))
    desk.units = []
    await open_unit(desk)

    await asked(desk, "create", name="a", peer="p")
    await open_unit(desk)
    assert await frontiers(desk) == written
    await asked(desk, "create", name="b", peer="q")
    await open_unit(desk)
    await asked(desk, "read", peer="p")
    assert await frontiers(desk) == read

    units, desk = desk.units, await desk.restart()
    desk.units = units
    assert await frontiers(desk) == read


@pytest.mark.scenario(24)
@pytest.mark.parametrize("bound", ["token", "session"])
async def test_a_bound_above_the_baseline_of_a_unit_is_refused_at_once(
    open_desk, policy, plain, refusal, bound
):
    """No policy combines units with bounds, so the bound is put into the plan on its way."""
    batch = plain(
        consistency={"snapshot": {"mode": "shared", "key_by": ["peer"]}},
        publication={
            "mode": "batch",
            "key_by": ["peer"],
            "close_when": {"kind": "marker", "field": "seen", "equals": "done"},
            "staging_ttl_ms": FAR_MS,
            "on_expire": "discard",
        },
    )
    rule = {"name": "grouped", "when": {"all_present": ["peer"]}, "behavior": batch}
    desk = await open_desk(policy(fields=FIELDS, rules=[rule]))
    waits = Waits(desk.provider)
    base = await asked(desk, "create", name="a")
    assert (await asked(desk, "read", peer="p")).variants == (base.entity,)
    later_one = await asked(desk, "create", name="b")
    both = SessionRequirement(key=peer(desk), monotonic_reads=True, read_your_writes=True)
    consistency = (
        Consistency(minimum_tokens=(CausalToken(later_one.entity.version),))
        if bound == "token"
        else Consistency(sessions=(both,))
    )
    outside = builders.read(desk.key(), consistency=Consistency(sessions=(both,)))
    assert isinstance(await desk.provider.inner.read(outside), Reading)
    unbounded = desk.provider.read

    async def bounded(plan):
        return await unbounded(replace(plan, consistency=consistency))

    desk.provider.read = bounded
    error = await refusal(asked(desk, "read", peer="p", deadline_unix_ms=later(desk)))

    assert error.reason == "OVERLOADED"
    assert waits.begun == 0
