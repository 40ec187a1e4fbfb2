"""Scopes, needs, effects and stops."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import (
    Aborted,
    AlreadyProvided,
    Context,
    Effect,
    Kernel,
    PendingPlugin,
    PluginSpec,
    ScopeClosed,
    ScopeState,
    ServiceUnavailable,
    Undo,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Mule

WAITING, STARTING, ACTIVE = ScopeState.WAITING, ScopeState.STARTING, ScopeState.ACTIVE
STOPPING, FAILED, CLOSED = ScopeState.STOPPING, ScopeState.FAILED, ScopeState.CLOSED


def idle(_: Context, __: object) -> None:
    """Start and make nothing."""


def provides(name: str, value: object) -> Callable[[Context, object], None]:
    def start(ctx: Context, _: object) -> None:
        ctx.provide(name, value)

    return start


def says(log: list[str], word: str) -> Callable[[], Undo]:
    """Return an effect whose asynchronous undo says when it begins and ends."""

    async def undo() -> None:
        log.append(f"{word} begins")
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(f"{word} ends")

    return lambda: undo


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened, which takes steps and no time."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


@pytest.mark.checklist("HN-1")
async def test_a_plugin_waits_for_its_need_and_has_settled(kernel: Kernel) -> None:
    started: list[object] = []
    scope = kernel.root.plugin(
        PluginSpec(name="reader", start=lambda _, __: started.append(1), needs=("lamp", "chair"))
    )
    kernel.root.provide("chair", 1)

    assert await scope is scope

    assert scope.state is WAITING
    assert started == []
    assert kernel.pending() == [PendingPlugin(name="reader", missing=("lamp",))]


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ("lamp", r"write \('lamp',\) with a comma"),
        ((Kernel,), "the name of a service"),
        ((1,), "not 1"),
    ],
)
async def test_needs_that_can_never_be_met_are_refused(
    kernel: Kernel, needs: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        PluginSpec(name="reader", start=idle, needs=needs)
    with pytest.raises(TypeError, match=words):
        kernel.root.when(needs, lambda _: None)

    assert kernel.pending() == []


@pytest.mark.checklist("HN-2")
async def test_a_need_that_appears_starts_the_body_once_and_later(kernel: Kernel) -> None:
    seen: list[object] = []
    scope = kernel.root.plugin(
        PluginSpec(
            name="reader", start=lambda ctx, _: seen.append(ctx.get("lamp")), needs=("lamp",)
        )
    )

    kernel.root.provide("lamp", "lit")

    assert seen == []
    assert (await scope).state is ACTIVE
    assert seen == ["lit"]


async def test_a_plugin_never_starts_inside_the_call_that_installs_it(kernel: Kernel) -> None:
    seen: list[object] = []

    scope = kernel.root.plugin(PluginSpec(name="one", start=lambda _, __: seen.append(1)))

    assert seen == []
    assert scope.state is STARTING
    await scope
    assert seen == [1]


@pytest.mark.checklist("HN-3")
async def test_what_a_starting_plugin_provides_is_not_seen_yet(kernel: Kernel) -> None:
    gate = asyncio.Event()
    provided = asyncio.Event()

    async def start(ctx: Context, _: object) -> None:
        ctx.provide("lamp", "lit")
        provided.set()
        await gate.wait()

    provider = kernel.root.plugin(PluginSpec(name="shop", start=start))
    dependent = kernel.root.plugin(PluginSpec(name="reader", start=idle, needs=("lamp",)))
    await provided.wait()
    await dependent
    states = (provider.state, dependent.state, kernel.root.find("lamp"))

    gate.set()
    await provider
    await dependent

    assert states == (STARTING, WAITING, None)
    assert (provider.state, dependent.state) == (ACTIVE, ACTIVE)


@pytest.mark.checklist("HN-4")
async def test_a_provider_that_fails_leaves_its_dependents_waiting(kernel: Kernel) -> None:
    def start(ctx: Context, _: object) -> None:
        ctx.provide("lamp", "lit")
        raise ValueError("no bulb")

    provider = kernel.root.plugin(PluginSpec(name="shop", start=start))
    dependent = kernel.root.plugin(PluginSpec(name="reader", start=idle, needs=("lamp",)))

    with pytest.raises(ValueError, match="no bulb"):
        await provider
    await dependent

    assert (provider.state, dependent.state) == (FAILED, WAITING)


@pytest.mark.checklist("HN-5")
async def test_dependents_have_stopped_before_a_provider_undoes_anything(kernel: Kernel) -> None:
    log: list[str] = []

    def provide_lamp(ctx: Context, _: object) -> Undo:
        ctx.effect(says(log, "socket"))
        ctx.provide("lamp", "lit")
        ctx.effect(says(log, "switch"))  # reverse order alone would undo it before the dependents
        return says(log, "shop")()

    def provide_light(ctx: Context, _: object) -> None:
        ctx.provide("light", "bright")
        ctx.effect(says(log, "bulb"))

    def read(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "book"))

    provider = kernel.root.plugin(PluginSpec(name="shop", start=provide_lamp))
    kernel.root.plugin(PluginSpec(name="lamp", start=provide_light, needs=("lamp",)))
    kernel.root.plugin(PluginSpec(name="reader", start=read, needs=("light",)))
    await kernel.settle()

    await provider.close()

    words = ("book", "bulb", "shop", "switch", "socket")
    assert log == [f"{word} {what}" for word in words for what in ("begins", "ends")]


@pytest.mark.checklist("HN-5")
async def test_whoever_loses_a_need_is_marked_in_the_same_step(kernel: Kernel) -> None:
    contexts: dict[str, Context] = {}

    def keep(name: str, provided: str) -> Callable[[Context, object], None]:
        def start(ctx: Context, _: object) -> None:
            contexts[name] = ctx
            ctx.provide(provided, name)

        return start

    first = kernel.root.plugin(PluginSpec(name="first", start=keep("first", "a")))
    second = kernel.root.plugin(PluginSpec(name="second", start=keep("second", "b"), needs=("a",)))
    third = kernel.root.plugin(PluginSpec(name="third", start=keep("third", "c"), needs=("b",)))
    await kernel.settle()

    closing = asyncio.create_task(first.close())
    await until(lambda: first.state is not ACTIVE)

    assert (first.state, second.state, third.state) == (STOPPING, STOPPING, STOPPING)
    assert all(ctx.signal.cancelled for ctx in contexts.values())
    await closing
    assert (first.state, second.state, third.state) == (CLOSED, WAITING, WAITING)


@pytest.mark.checklist("HN-6")
async def test_a_service_provided_again_starts_its_dependents_again(kernel: Kernel) -> None:
    seen: list[object] = []
    dependent = kernel.root.plugin(
        PluginSpec(
            name="reader", start=lambda ctx, _: seen.append(ctx.get("lamp")), needs=("lamp",)
        )
    )
    for value in ("dim", "bright"):
        effect = kernel.root.provide("lamp", value)
        await dependent
        await effect.dispose()
        assert dependent.state is WAITING

    assert seen == ["dim", "bright"]


async def test_disposing_of_a_service_waits_for_those_who_need_it(kernel: Kernel) -> None:
    log: list[str] = []
    effect = kernel.root.provide("lamp", 1)

    def start(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "book"))

    await kernel.root.plugin(PluginSpec(name="reader", start=start, needs=("lamp",)))

    await effect.dispose()

    assert log == ["book begins", "book ends"]


@pytest.mark.checklist("HN-7")
async def test_a_start_that_raises_is_undone_in_reverse(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    def start(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "one"))
        ctx.effect(says(log, "two"))
        raise ValueError("broken")

    scope = kernel.root.plugin(PluginSpec(name="clock", start=start))

    with pytest.raises(ValueError, match="broken"):
        await scope

    assert scope.state is FAILED
    assert isinstance(scope.error, ValueError)
    assert log == ["two begins", "two ends", "one begins", "one ends"]
    assert [(r.name, r.levelname, r.message) for r in logged.records] == [
        ("clock", "ERROR", "the start of clock failed: broken")
    ]


@pytest.mark.checklist("HN-8")
async def test_a_failed_plugin_is_tried_again_when_its_need_is_another(kernel: Kernel) -> None:
    attempts: list[object] = []

    def start(ctx: Context, _: object) -> None:
        attempts.append(ctx.get("lamp"))
        if len(attempts) == 1:
            raise ValueError("broken")

    lamp = kernel.root.provide("lamp", "first")
    scope = kernel.root.plugin(PluginSpec(name="reader", start=start, needs=("lamp",)))
    with pytest.raises(ValueError, match="broken"):
        await scope

    await lamp.dispose()
    with pytest.raises(ValueError, match="broken"):
        await scope
    assert scope.state is FAILED

    kernel.root.provide("lamp", "second")
    await scope
    assert (scope.state, scope.error, attempts) == (ACTIVE, None, ["first", "second"])


@pytest.mark.checklist("HN-9")
async def test_effects_are_undone_in_reverse_and_never_overlap(kernel: Kernel) -> None:
    log: list[str] = []

    def start(ctx: Context, _: object) -> Undo:
        for word in ("A", "B", "C"):
            ctx.effect(says(log, word))
        return says(log, "returned")()

    scope = kernel.root.plugin(PluginSpec(name="clock", start=start))
    await scope
    await scope.close()

    assert log == [
        f"{word} {what}" for word in ("returned", "C", "B", "A") for what in ("begins", "ends")
    ]


class Ending(BaseException):
    """Something that is no `Exception` and ends nobody else."""


@pytest.mark.checklist("HN-10")
@pytest.mark.parametrize("error", [ValueError("rust"), asyncio.CancelledError(), Ending("over")])
async def test_an_undo_that_raises_is_logged_and_stops_nothing(
    kernel: Kernel, logged: pytest.LogCaptureFixture, error: BaseException
) -> None:
    log: list[str] = []

    def raise_it() -> None:
        raise error

    async def raise_it_later() -> None:
        await asyncio.sleep(0)
        raise error

    def start(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "first"))
        ctx.effect(lambda: raise_it, "bolt")
        ctx.effect(lambda: raise_it_later, "nut")

    scope = kernel.root.plugin(PluginSpec(name="clock", start=start))
    await scope
    await scope.close()

    assert log == ["first begins", "first ends"]
    assert scope.state is CLOSED
    assert [("'bolt'" in r.message, "'nut'" in r.message) for r in logged.records] == [
        (False, True),
        (True, False),
    ]


@pytest.mark.checklist("HN-11")
async def test_nothing_can_be_made_once_the_stop_began(kernel: Kernel) -> None:
    refused: list[str] = []

    async def start(ctx: Context, _: object) -> None:
        async def nothing() -> None: ...

        makers: list[Callable[[], object]] = [
            lambda: ctx.effect(lambda: lambda: None),
            lambda: ctx.plugin(PluginSpec(name="child", start=idle)),
            lambda: ctx.when((), lambda _: None),
            lambda: ctx.provide("lamp", 1),
            lambda: ctx.on("tick", lambda: None),
            lambda: ctx.spawn(nothing(), name="loop"),
        ]

        def try_all() -> None:
            for make in makers:
                with pytest.raises(ScopeClosed) as caught:
                    make()
                refused.append(caught.value.scope)

        ctx.signal.add_callback(try_all)
        ctx.effect(lambda: try_all)
        kept.append(try_all)

    kept: list[Callable[[], None]] = []
    scope = kernel.root.plugin(PluginSpec(name="clock", start=start))
    await scope

    await scope.close()
    kept[0]()

    assert refused == ["clock"] * 18


async def test_a_context_makes_nothing_in_a_later_run(kernel: Kernel) -> None:
    contexts: list[Context] = []
    lamp = kernel.root.provide("lamp", 1)
    spec = PluginSpec(name="reader", start=lambda ctx, _: contexts.append(ctx), needs=("lamp",))
    scope = kernel.root.plugin(spec)
    await scope
    await lamp.dispose()
    kernel.root.provide("lamp", 2)
    await scope

    first, second = contexts

    with pytest.raises(ScopeClosed):
        first.on("tick", lambda: None)
    assert (first.signal.cancelled, second.signal.cancelled) == (True, False)


@pytest.mark.checklist("HN-12")
async def test_two_closes_wait_for_one_stop(kernel: Kernel) -> None:
    log: list[str] = []
    gate = asyncio.Event()

    def start(ctx: Context, _: object) -> None:
        async def undo() -> None:
            log.append("begins")
            await gate.wait()
            log.append("ends")

        ctx.effect(lambda: undo)

    scope = kernel.root.plugin(PluginSpec(name="clock", start=start))
    await scope
    closes = [asyncio.create_task(scope.close()) for _ in range(2)]
    await until(lambda: bool(log))
    done_early = [task.done() for task in closes]

    gate.set()
    await asyncio.gather(*closes)

    assert done_early == [False, False]
    assert log == ["begins", "ends"]
    await scope.close()


async def test_a_cancelled_close_goes_on(kernel: Kernel) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def undo() -> None:
        begun.set()
        await gate.wait()

    scope = kernel.root.plugin(PluginSpec(name="clock", start=lambda _, __: undo))
    await scope
    closing = asyncio.create_task(scope.close())
    await begun.wait()

    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert scope.state is STOPPING

    gate.set()
    await scope.close()
    assert scope.state is CLOSED


@pytest.mark.checklist("HN-13")
async def test_children_close_at_their_position(kernel: Kernel) -> None:
    log: list[str] = []

    def start(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "before"))
        ctx.plugin(
            PluginSpec(name="child", start=lambda c, _: c.effect(says(log, "child")) and None)
        )
        ctx.effect(says(log, "after"))

    scope = kernel.root.plugin(PluginSpec(name="parent", start=start))
    await kernel.settle()
    await scope.close()

    assert log == [
        f"{word} {what}" for word in ("after", "child", "before") for what in ("begins", "ends")
    ]


class Registry:
    """A service whose registrations belong to whoever registers."""

    def __init__(self, entries: list[str], ctx: Context | None = None) -> None:
        self.entries = entries
        self._ctx = ctx

    def for_context(self, ctx: Context) -> Registry:
        return Registry(self.entries, ctx)

    def register(self, name: str) -> Effect:
        assert self._ctx is not None

        def enter() -> Undo:
            self.entries.append(name)
            return lambda: self.entries.remove(name)

        return self._ctx.effect(enter)


@pytest.mark.checklist("HN-14")
async def test_what_a_plugin_registers_goes_with_the_plugin(kernel: Kernel) -> None:
    entries: list[str] = []
    kernel.root.provide("registry", Registry(entries))

    def start(ctx: Context, _: object) -> None:
        ctx.get("registry").register("own")
        ctx.when((), lambda child: child.get("registry").register("child's") and None)

    scope = kernel.root.plugin(PluginSpec(name="caller", start=start, needs=("registry",)))
    kernel.root.find("registry").register("host's")
    await kernel.settle()
    before = sorted(entries)

    await scope.close()

    assert before == ["child's", "host's", "own"]
    assert entries == ["host's"]


@pytest.mark.checklist("HN-15")
async def test_a_name_has_one_provider(kernel: Kernel) -> None:
    await kernel.root.plugin(PluginSpec(name="shop", start=provides("lamp", 1)))

    with pytest.raises(AlreadyProvided, match="shop") as caught:
        kernel.root.provide("lamp", 2)

    assert (caught.value.service, caught.value.provider) == ("lamp", "shop")
    assert kernel.root.find("lamp") == 1


@pytest.mark.checklist("HN-16")
async def test_get_takes_what_was_declared_and_find_what_is_there(kernel: Kernel) -> None:
    contexts: dict[str, Context] = {}
    gate = asyncio.Event()

    async def start_shop(ctx: Context, _: object) -> None:
        ctx.provide("lamp", "lit")
        contexts["shop"] = ctx
        await gate.wait()

    def start_other(ctx: Context, _: object) -> None:
        contexts["other"] = ctx
        ctx.when(("chair",), lambda child: contexts.update(child=child))

    kernel.root.provide("chair", "wooden")
    shop = kernel.root.plugin(PluginSpec(name="shop", start=start_shop))
    kernel.root.plugin(PluginSpec(name="other", start=start_other))
    await until(lambda: contexts.keys() == {"shop", "other", "child"})
    other, child = contexts["other"], contexts["child"]

    with pytest.raises(ServiceUnavailable) as undeclared:
        other.get("lamp")
    with pytest.raises(ServiceUnavailable):
        child.get("lamp")
    assert not undeclared.value.is_declared
    assert other.find("lamp") is None
    assert contexts["shop"].get("lamp") == "lit"  # its own
    assert contexts["shop"].find("lamp") is None
    assert child.get("chair") == "wooden"
    assert other.get("chair") == "wooden"  # of the host, which is above all

    gate.set()
    await shop
    assert other.find("lamp") == "lit"
    with pytest.raises(ServiceUnavailable):
        other.get("lamp")
    await shop.close()
    assert other.find("lamp") is None


@pytest.mark.checklist("HN-16")
async def test_a_declared_need_that_is_missing_is_told_from_an_undeclared_one(
    kernel: Kernel,
) -> None:
    errors: list[ServiceUnavailable] = []
    shop = kernel.root.plugin(PluginSpec(name="shop", start=provides("lamp", 1)))

    def start(ctx: Context, _: object) -> Undo:
        assert ctx.get("lamp") == 1

        def undo() -> None:
            with pytest.raises(ServiceUnavailable) as caught:
                ctx.get("lamp")
            errors.append(caught.value)

        return undo

    await shop
    await kernel.root.plugin(PluginSpec(name="reader", start=start, needs=("lamp",)))
    await shop.close()

    assert [(error.service, error.scope, error.is_declared) for error in errors] == [
        ("lamp", "reader", True)
    ]


@pytest.mark.checklist("HN-23")
async def test_configuration_that_is_refused_fails_the_start(kernel: Kernel) -> None:
    started: list[object] = []

    def config(raw: object) -> int:
        return int(str(raw))

    good = kernel.root.plugin(
        PluginSpec(name="good", start=lambda _, c: started.append(c), config=config), "7"
    )
    bad = kernel.root.plugin(
        PluginSpec(name="bad", start=lambda _, c: started.append(c), config=config), "seven"
    )
    await good
    with pytest.raises(ValueError, match="seven"):
        await bad

    assert started == [7]
    assert (bad.state, type(bad.error)) == (FAILED, ValueError)


@pytest.mark.checklist("HN-23")
async def test_configuration_is_made_anew_at_every_start(kernel: Kernel) -> None:
    raw = {"wick": "short"}
    started: list[object] = []

    def config(raw: object) -> str:
        assert isinstance(raw, dict)
        return str(raw["wick"])

    lamp = kernel.root.provide("lamp", 1)
    spec = PluginSpec(
        name="reader", start=lambda _, c: started.append(c), needs=("lamp",), config=config
    )
    scope = kernel.root.plugin(spec, raw)
    await scope
    await lamp.dispose()
    lamp = kernel.root.provide("lamp", 2)
    raw["wick"] = "long"
    await scope
    await lamp.dispose()
    del raw["wick"]
    kernel.root.provide("lamp", 3)

    with pytest.raises(KeyError):
        await scope
    assert started == ["short", "long"]
    assert scope.state is FAILED


@pytest.mark.checklist("HN-25")
async def test_an_undo_that_never_returns_is_abandoned(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    gate = asyncio.Event()

    def start(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "first"))
        ctx.effect(lambda: lambda: gate.wait(), "stuck pipe", undo_limit_ms=1)
        ctx.effect(says(log, "last"))

    scope = kernel.root.plugin(PluginSpec(name="clock", start=start))
    await scope
    await scope.close()

    assert log == ["last begins", "last ends", "first begins", "first ends"]
    assert scope.state is CLOSED
    assert ["stuck pipe" in record.message for record in logged.records] == [True]
    gate.set()  # the fixture sees that it ends


@pytest.mark.checklist("HN-26")
async def test_a_loop_that_ignores_its_cancellation_is_abandoned(
    kernel: Kernel, logged: pytest.LogCaptureFixture, mule: Mule
) -> None:
    def start(ctx: Context, _: object) -> None:
        ctx.spawn(mule.stand(), name="mule")

    scope = kernel.root.plugin(PluginSpec(name="farm", start=start))
    await mule.begun.wait()
    await scope.close()

    assert scope.state is CLOSED
    assert [r.name for r in logged.records if "mule" in r.message] == ["farm"]
    mule.let_go()


async def test_a_spawned_loop_is_cut_and_a_failed_one_stops_nothing(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("loop")

    async def fail() -> None:
        raise ValueError("split")

    tasks: list[asyncio.Task[None]] = []

    def start(ctx: Context, _: object) -> None:
        tasks.append(ctx.spawn(loop(), name="loop"))
        tasks.append(ctx.spawn(fail(), name="log"))

    scope = kernel.root.plugin(PluginSpec(name="farm", start=start))
    await scope
    await until(tasks[1].done)
    state = scope.state

    await scope.close()

    assert state is ACTIVE
    assert ended == ["loop"]
    assert ["log" in r.message for r in logged.records if r.levelname == "ERROR"] == [True]


async def test_needs_that_vanish_during_a_start_let_it_end(kernel: Kernel) -> None:
    log: list[str] = []
    lamp = kernel.root.provide("lamp", 1)

    async def start(ctx: Context, _: object) -> None:
        log.append("starts")
        ctx.effect(says(log, "early"))
        await ctx.signal.wait()
        ctx.effect(says(log, "late"))
        log.append("started")

    scope = kernel.root.plugin(PluginSpec(name="reader", start=start, needs=("lamp",)))
    await until(lambda: bool(log))

    await lamp.dispose()

    assert scope.state is WAITING
    assert log == [
        "starts",
        "started",
        "late begins",
        "late ends",
        "early begins",
        "early ends",
    ]


async def test_a_start_that_raises_because_its_need_went_waits_for_it(kernel: Kernel) -> None:
    attempts: list[object] = []
    lamp = kernel.root.provide("lamp", 1)

    async def start(ctx: Context, _: object) -> None:
        attempts.append(ctx.get("lamp"))
        if len(attempts) == 1:
            raise await ctx.signal.wait()

    scope = kernel.root.plugin(PluginSpec(name="reader", start=start, needs=("lamp",)))
    await until(lambda: bool(attempts))
    await lamp.dispose()
    assert (scope.state, scope.error) == (WAITING, None)

    kernel.root.provide("lamp", 2)
    await scope
    assert attempts == [1, 2]


async def test_a_close_during_a_start_tells_it_and_waits(kernel: Kernel) -> None:
    reasons: list[Exception] = []
    begun = asyncio.Event()

    async def start(ctx: Context, _: object) -> None:
        begun.set()
        reasons.append(await ctx.signal.wait())
        with pytest.raises(ScopeClosed):
            ctx.provide("lamp", 1)

    scope = kernel.root.plugin(PluginSpec(name="slow", start=start))
    await begun.wait()
    await scope.close()

    assert (scope.state, scope.error) == (CLOSED, None)
    assert isinstance(reasons[0], Aborted)


async def test_a_start_that_cancels_itself_fails_and_cancels_nobody(kernel: Kernel) -> None:
    async def start(_: Context, __: object) -> None:
        raise asyncio.CancelledError

    scope = kernel.root.plugin(PluginSpec(name="moody", start=start))

    with pytest.raises(Aborted):
        await scope
    assert scope.state is FAILED


async def test_a_start_that_does_not_end_is_cut_and_its_late_undo_still_runs(
    logged: pytest.LogCaptureFixture, mule: Mule
) -> None:
    undone = asyncio.Event()

    async def start(_: Context, __: object) -> Undo:
        await mule.stand()
        return undone.set

    async with Kernel(start_limit_ms=1, task_grace_ms=1) as kernel:
        scope = kernel.root.plugin(PluginSpec(name="stuck", start=start))
        await mule.begun.wait()
        await scope.close()
        assert scope.state is CLOSED

        mule.let_go()
        async with asyncio.timeout(5):
            await undone.wait()

    assert [r.name for r in logged.records if r.levelname == "ERROR"] == ["stuck", "stuck"]


async def test_a_scope_closed_before_its_start_runs_nothing(kernel: Kernel) -> None:
    started: list[object] = []
    scope = kernel.root.plugin(PluginSpec(name="brief", start=lambda _, __: started.append(1)))

    await scope.close()

    assert (scope.state, started) == (CLOSED, [])


async def test_when_follows_its_needs_while_the_parent_goes_on(kernel: Kernel) -> None:
    log: list[str] = []

    def body(ctx: Context) -> Undo:
        log.append(f"with {ctx.get('lamp')}")
        return lambda: log.append("without")

    def start(ctx: Context, _: object) -> None:
        ctx.when(["lamp"], body)

    scope = kernel.root.plugin(PluginSpec(name="reader", start=start))
    await kernel.settle()
    lamp = kernel.root.provide("lamp", "a lamp")
    await kernel.settle()
    await lamp.dispose()

    assert log == ["with a lamp", "without"]
    assert scope.state is ACTIVE


async def test_a_child_that_loses_its_need_stops_before_its_parent_undoes_anything(
    kernel: Kernel,
) -> None:
    log: list[str] = []

    def start_child(ctx: Context) -> None:
        ctx.effect(says(log, "child"))

    def start(ctx: Context, _: object) -> None:
        ctx.when(("lamp",), start_child)
        ctx.effect(says(log, "parent"))

    lamp = kernel.root.provide("lamp", 1)
    kernel.root.plugin(PluginSpec(name="parent", start=start, needs=("lamp",)))
    await kernel.settle()

    await lamp.dispose()

    assert log == ["child begins", "child ends", "parent begins", "parent ends"]


async def test_an_asynchronous_effect_made_during_a_start_is_part_of_it(kernel: Kernel) -> None:
    gate = asyncio.Event()
    log: list[str] = []

    async def enter() -> Undo:
        await gate.wait()
        return lambda: log.append("undone")

    scope = kernel.root.plugin(
        PluginSpec(name="pump", start=lambda ctx, _: ctx.effect(enter, "pipe") and None)
    )
    for _ in range(5):
        await asyncio.sleep(0)
    state = scope.state
    gate.set()
    await scope

    assert (state, scope.state) == (STARTING, ACTIVE)
    await scope.close()
    assert log == ["undone"]


@pytest.mark.parametrize("steps", range(5))
async def test_an_asynchronous_effect_that_fails_fails_the_start(
    kernel: Kernel, logged: pytest.LogCaptureFixture, steps: int
) -> None:
    async def enter() -> Undo:
        raise ValueError("leak")

    async def start(ctx: Context, _: object) -> None:
        ctx.effect(enter, "pipe")
        for _ in range(steps):  # it may have failed before the start looks
            await asyncio.sleep(0)

    scope = kernel.root.plugin(PluginSpec(name="pump", start=start))

    with pytest.raises(ValueError, match="leak"):
        await scope
    assert scope.state is FAILED
    assert [r.message for r in logged.records] == ["the start of pump failed: leak"]


async def test_a_failure_that_the_start_does_not_raise_is_logged(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    async def enter(word: str) -> Undo:
        if word == "late":
            await gate.wait()
        raise ValueError(word)

    async def start(ctx: Context, _: object) -> None:
        ctx.effect(lambda: enter("late"), "pump")
        ctx.effect(lambda: enter("early"), "pipe")
        for _ in range(5):
            await asyncio.sleep(0)
        raise KeyError("own")

    scope = kernel.root.plugin(PluginSpec(name="pump", start=start))
    await until(lambda: scope.state is STOPPING)
    gate.set()

    with pytest.raises(KeyError):
        await scope
    assert [r.message for r in logged.records] == [
        "the start of pump failed: 'own'",
        "effect pipe failed: early",
        "effect pump failed: late",
    ]


NO_UNDO: Any = 7


async def enter_nothing() -> Any:
    return NO_UNDO


async def enter_never() -> Undo:
    raise ValueError("leak")


@pytest.mark.parametrize("steps", range(5))  # before, while and after the plugin becomes active
@pytest.mark.parametrize(
    ("enter", "message"),
    [(enter_never, "leak"), (enter_nothing, "the undo of effect pipe must be callable, not 7")],
)
async def test_an_effect_that_fails_after_the_body_is_logged_at_once_and_but_once(
    kernel: Kernel,
    logged: pytest.LogCaptureFixture,
    steps: int,
    enter: Callable[[], Any],
    message: str,
) -> None:
    async def work(ctx: Context) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        ctx.effect(enter, "pipe")

    def start(ctx: Context, _: object) -> None:
        ctx.spawn(work(ctx), name="work")

    scope = kernel.root.plugin(PluginSpec(name="pump", start=start))
    await scope
    await until(lambda: bool(logged.records))
    await kernel.aclose()

    assert [r.message for r in logged.records] == [f"effect pipe failed: {message}"]


@pytest.mark.parametrize(
    "start",
    [
        lambda ctx, _: ctx.on("bell", None),
        lambda ctx, _: ctx.effect(None),
        lambda ctx, _: ctx.effect(lambda: NO_UNDO, "pipe"),
        lambda ctx, _: ctx.effect(enter_nothing, "pipe") and None,
        lambda ctx, _: ctx.when((), None),
        lambda ctx, _: ctx.chain("wrap", default=None),
        lambda _, __: NO_UNDO,
        lambda ctx, _: ctx.on("bell", print),  # an effect is no undo
    ],
)
async def test_what_cannot_be_called_is_refused_at_once(kernel: Kernel, start: Any) -> None:
    scope = kernel.root.plugin(PluginSpec(name="pump", start=start))

    with pytest.raises(TypeError, match="must be callable"):
        await scope
    assert not kernel.has_listeners("bell")


@pytest.mark.parametrize("wrong", [{"start": None}, {"start": idle, "config": 7}])
def test_a_plugin_that_cannot_be_called_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be callable"):
        PluginSpec(name="pump", **wrong)


async def test_an_effect_is_undone_once_however_often_it_is_disposed_of(kernel: Kernel) -> None:
    log: list[str] = []
    effect = kernel.root.effect(says(log, "one"))

    await asyncio.gather(effect.dispose(), effect.dispose())
    await effect.dispose()

    assert log == ["one begins", "one ends"]


async def test_an_undo_that_waits_for_itself_is_told(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    effects: list[Effect] = []

    async def undo() -> None:
        await effects[0].dispose()

    effects.append(kernel.root.effect(lambda: undo, "snake"))
    await effects[0].dispose()

    assert [r.exc_info[0] for r in logged.records if r.exc_info] == [RuntimeError]


async def test_a_scope_is_not_closed_from_within(kernel: Kernel) -> None:
    errors: list[BaseException] = []

    async def close(what: Callable[[], object]) -> None:
        try:
            await what()  # pyright: ignore[reportGeneralTypeIssues] - one of two closes
        except RuntimeError as error:
            errors.append(error)

    def start(ctx: Context, _: object) -> None:
        ctx.spawn(close(lambda: scope.close()), name="suicide")
        ctx.spawn(close(kernel.aclose), name="regicide")
        ctx.on("bell", lambda: close(lambda: scope.close()))

    scope = kernel.root.plugin(PluginSpec(name="fool", start=start))
    await scope
    await until(lambda: len(errors) == 2)
    await kernel.root.gather("bell")
    await kernel.root.serial("bell")
    kernel.root.notify("bell")
    await until(lambda: len(errors) == 5)

    assert scope.state is ACTIVE


async def test_a_start_that_waits_for_its_own_end_is_told(kernel: Kernel) -> None:
    async def start(_: Context, __: object) -> None:
        await scope

    scope = kernel.root.plugin(PluginSpec(name="snake", start=start))

    with pytest.raises(RuntimeError, match="its own end"):
        await scope


async def test_a_logger_bears_the_name_of_the_nearest_named_plugin(kernel: Kernel) -> None:
    names: list[str] = []

    def note(ctx: Context) -> None:
        names.append(getattr(ctx.logger, "name", ""))

    def start(ctx: Context, _: object) -> None:
        note(ctx)
        ctx.when((), note)
        ctx.when((), note, name="named")

    kernel.root.plugin(PluginSpec(name="clock", start=start))
    await kernel.settle()

    assert sorted(names) == ["clock", "clock", "named"]


async def test_a_restart_sees_the_variables_of_the_installation(kernel: Kernel) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []
    variable.set("installer")
    scope = kernel.root.plugin(
        PluginSpec(name="reader", start=lambda _, __: seen.append(variable.get()), needs=("lamp",))
    )
    variable.set("provider")
    lamp = kernel.root.provide("lamp", 1)
    await scope
    await lamp.dispose()
    kernel.root.provide("lamp", 2)
    await scope

    assert seen == ["installer", "installer"]


async def test_a_closed_kernel_has_stopped_everything() -> None:
    log: list[str] = []
    kernel = Kernel()
    kernel.root.provide("lamp", 1)
    kernel.root.effect(says(log, "host"))

    def start(ctx: Context, _: object) -> None:
        ctx.effect(says(log, "plugin"))

    scope = kernel.root.plugin(PluginSpec(name="reader", start=start, needs=("lamp",)))
    await scope

    await asyncio.gather(kernel.aclose(), kernel.aclose())

    assert log == ["plugin begins", "plugin ends", "host begins", "host ends"]
    assert scope.state is CLOSED
    assert kernel.root.find("lamp") is None
    with pytest.raises(ScopeClosed):
        kernel.root.provide("lamp", 2)


@pytest.mark.parametrize("plugin", [lambda: None, object()], ids=["function", "object"])
async def test_what_is_no_plugin_is_refused_by_name(kernel: Kernel, plugin: Any) -> None:
    with pytest.raises(TypeError, match="is a PluginSpec, not <"):
        kernel.root.plugin(plugin)

    assert kernel.pending() == []
