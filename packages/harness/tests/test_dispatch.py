"""The five ways to run listeners, and what becomes of what they leave running."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import Aborted, Context, Effect, Kernel, PluginSpec, ScopeState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from conftest import Mule


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened, which takes steps and no time."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


@pytest.mark.checklist("HN-17")
async def test_a_notified_listener_that_raises_keeps_no_other_from_it(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def first(_: str) -> None:
        raise ValueError("sneeze")

    async def second(word: str) -> None:
        seen.append(f"second {word}")
        raise ValueError("cough")

    async def start(ctx: Context, _: object) -> None:
        ctx.on("bell", first)
        ctx.on("bell", second)
        ctx.on("bell", lambda word: seen.append(f"third {word}"))

    await kernel.root.plugin(PluginSpec(name="ears", start=start))

    kernel.root.notify("bell", "ding")
    before = [*seen]
    await until(lambda: len(logged.records) == 2)

    assert before == ["third ding"]
    assert seen == ["third ding", "second ding"]
    assert [(r.name, r.levelname) for r in logged.records] == [("ears", "ERROR")] * 2


class Ending(BaseException):
    """Something that is no `Exception` and ends nobody else."""


@pytest.mark.checklist("HN-17")
@pytest.mark.parametrize("error", [Ending("over"), asyncio.CancelledError(), GeneratorExit()])
async def test_whatever_a_notified_listener_raises_is_contained(
    kernel: Kernel, logged: pytest.LogCaptureFixture, error: BaseException
) -> None:
    seen: list[str] = []

    def first() -> None:
        raise error

    kernel.root.on("bell", first)
    kernel.root.on("bell", lambda: seen.append("second"))

    kernel.root.notify("bell")

    assert seen == ["second"]
    assert [record.exc_info and record.exc_info[1] for record in logged.records] == [error]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
async def test_the_end_of_the_process_is_raised_once_all_were_notified(
    kernel: Kernel, error: BaseException
) -> None:
    seen: list[str] = []

    def first() -> None:
        raise error

    kernel.root.on("bell", first)
    kernel.root.on("bell", lambda: seen.append("second"))

    with pytest.raises(type(error)):
        kernel.root.notify("bell")

    assert seen == ["second"]


@pytest.mark.checklist("HN-18")
async def test_an_announced_listener_that_raises_at_once_stops_the_rest(
    kernel: Kernel, logged: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def first() -> None:
        seen.append("first")
        raise ValueError("late")

    def veto() -> None:
        raise ValueError("no")

    kernel.root.on("proposal", first)
    kernel.root.on("proposal", veto)
    kernel.root.on("proposal", lambda: seen.append("third"))

    with pytest.raises(ValueError, match="no"):
        kernel.root.announce("proposal")
    await until(lambda: bool(logged.records))

    assert seen == ["first"]
    assert ["late" in record.message for record in logged.records] == [True]


@pytest.mark.checklist("HN-19")
@pytest.mark.parametrize("kind", [ValueError, Ending])
async def test_gather_awaits_all_and_raises_the_first_failure_in_order(
    kernel: Kernel, kind: type[BaseException]
) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def slow() -> None:
        await gate.wait()
        seen.append("slow")
        raise kind("first in order")

    async def fast() -> None:
        seen.append("fast")
        raise ValueError("first in time")

    def at_once() -> None:
        seen.append("at once")
        raise kind("first of all")

    for listener in (slow, fast, at_once):
        kernel.root.on("flush", listener)
    gathering = asyncio.create_task(kernel.root.gather("flush"))
    await until(lambda: seen == ["at once", "fast"])
    done_early = gathering.done()
    gate.set()

    with pytest.raises(kind, match="first in order"):
        await gathering

    assert not done_early
    assert seen == ["at once", "fast", "slow"]


async def test_gather_without_listeners_or_failures_returns(kernel: Kernel) -> None:
    await kernel.root.gather("flush")
    kernel.root.on("flush", lambda: 7)

    await kernel.root.gather("flush")

    assert (kernel.has_listeners("flush"), kernel.has_listeners("flash")) == (True, False)


async def test_a_cancelled_gather_cancels_its_listeners_and_waits_for_them(kernel: Kernel) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def slow() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            ended.append("slow")

    kernel.root.on("flush", slow)
    gathering = asyncio.create_task(kernel.root.gather("flush"))
    await begun.wait()
    gathering.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    done_early = gathering.done()
    gate.set()

    with pytest.raises(asyncio.CancelledError):
        await gathering
    assert (done_early, ended) == (False, ["slow"])


async def test_a_listener_that_cancels_itself_does_not_look_like_a_cancelled_caller(
    kernel: Kernel,
) -> None:
    async def cancels() -> None:
        raise asyncio.CancelledError

    kernel.root.on("flush", cancels)

    with pytest.raises(Aborted, match="flush"):
        await kernel.root.gather("flush")


async def test_listeners_run_in_the_context_of_the_caller(kernel: Kernel) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    async def listener(*_: object) -> None:
        await asyncio.sleep(0)
        seen.append(variable.get())

    for event in ("gather", "serial", "chain", "notify"):
        kernel.root.on(event, listener)

    async def call() -> None:
        variable.set("caller")
        await kernel.root.gather("gather")
        await kernel.root.serial("serial")
        await kernel.root.chain("chain", default=lambda: None)
        kernel.root.notify("notify")

    await asyncio.create_task(call())
    await until(lambda: len(seen) == 4)

    assert seen == ["caller"] * 4


async def test_serial_stops_at_the_first_result(kernel: Kernel) -> None:
    seen: list[object] = []

    def returning(result: object) -> Callable[[], Awaitable[object]]:
        async def listener() -> object:
            seen.append(result)
            return result

        return listener

    for result in (None, False, 0, "unreached"):
        kernel.root.on("ask", returning(result))

    assert await kernel.root.serial("ask") == 0
    assert seen == [None, False, 0]
    assert await kernel.root.serial("silence") is None


async def test_serial_propagates_what_a_listener_raises(kernel: Kernel) -> None:
    def fail() -> None:
        raise ValueError("wrong")

    kernel.root.on("ask", fail)

    with pytest.raises(ValueError, match="wrong"):
        await kernel.root.serial("ask")


@pytest.mark.checklist("HN-20")
async def test_a_prepended_listener_has_the_last_word(kernel: Kernel) -> None:
    def wrapping(name: str) -> Callable[..., Awaitable[list[str]]]:
        async def listener(word: str, call_next: Callable[[], Awaitable[list[str]]]) -> list[str]:
            return [*await call_next(), f"{name} {word}"]

        return listener

    kernel.root.on("wrap", wrapping("first"))
    kernel.root.on("wrap", wrapping("second"))
    kernel.root.on("wrap", wrapping("prepended"), prepend=True)

    result = await kernel.root.chain("wrap", "x", default=lambda: ["default"])

    assert result == ["default", "second x", "first x", "prepended x"]


async def test_a_chain_that_does_not_go_on_replaces_the_rest(kernel: Kernel) -> None:
    seen: list[str] = []

    async def default() -> str:
        seen.append("default")
        return "default"

    assert await kernel.root.chain("wrap", default=default) == "default"
    kernel.root.on("wrap", lambda _: "replaced")
    kernel.root.on("wrap", lambda _: seen.append("inner"))

    assert await kernel.root.chain("wrap", default=default) == "replaced"
    assert seen == ["default"]


async def test_the_rest_of_a_chain_runs_once(kernel: Kernel) -> None:
    async def greedy(call_next: Callable[[], Awaitable[int]]) -> int:
        return await call_next() + await call_next()

    kernel.root.on("wrap", greedy)

    with pytest.raises(RuntimeError, match="twice"):
        await kernel.root.chain("wrap", default=lambda: 1)


@pytest.mark.parametrize("mode", ["notify", "gather", "serial", "chain"])
async def test_a_dispatch_keeps_the_listeners_it_began_with(kernel: Kernel, mode: str) -> None:
    seen: list[str] = []

    async def first(*args: object) -> object:
        seen.append("first")
        await second_effect.dispose()
        kernel.root.on("bell", lambda *_: seen.append("added"))
        return await args[-1]() if mode == "chain" else None  # type: ignore[operator] - next

    def second(*_: object) -> None:
        seen.append("second")

    kernel.root.on("bell", first)
    second_effect = kernel.root.on("bell", second)
    if mode == "notify":
        kernel.root.notify("bell")
        await until(lambda: len(seen) == 2)
    elif mode == "chain":
        await kernel.root.chain("bell", default=lambda: None)
    else:
        await getattr(kernel.root, mode)("bell")

    assert sorted(seen) == ["first", "second"]


async def test_listeners_go_with_their_scope(kernel: Kernel) -> None:
    seen: list[str] = []

    def start(ctx: Context, _: object) -> None:
        ctx.on("bell", lambda: seen.append("heard"))

    scope = kernel.root.plugin(PluginSpec(name="ears", start=start))
    await scope
    await scope.close()

    kernel.root.notify("bell")

    assert seen == []
    assert not kernel.has_listeners("bell")


async def test_a_stop_cuts_notified_listeners_and_waits_for_the_others(kernel: Kernel) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    log: list[str] = []

    async def notified() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("notified was cut")

    async def asked() -> str:
        begun.set()
        await gate.wait()
        log.append("asked has ended")
        return "answer"

    def start(ctx: Context, _: object) -> None:
        ctx.effect(lambda: lambda: log.append("undone"))
        ctx.on("tell", notified)
        ctx.on("ask", asked)

    scope = kernel.root.plugin(PluginSpec(name="ears", start=start))
    await scope
    kernel.root.notify("tell")
    asking = asyncio.create_task(kernel.root.serial("ask"))
    await begun.wait()
    closing = asyncio.create_task(scope.close())
    await until(lambda: bool(log))
    state = scope.state
    gate.set()
    await closing

    assert state is ScopeState.STOPPING
    assert await asking == "answer"
    assert log == ["notified was cut", "asked has ended", "undone"]


@pytest.mark.parametrize("what", ["notify", "announce", "gather", "effect", "undo"])
def test_what_is_cut_before_its_first_step_is_not_left_behind(what: str) -> None:
    made: list[Coroutine[Any, Any, Any]] = []
    began: list[bool] = []

    async def never() -> None:
        began.append(True)

    def keep() -> Awaitable[Any]:
        made.append(never())
        return made[-1]

    async def play() -> None:
        kernel = Kernel()
        root = kernel.root
        match what:
            case "effect":
                root.effect(keep)
            case "undo":
                root.effect(lambda: keep)
                tasks.append(asyncio.create_task(kernel.aclose()))
            case "gather":
                root.on("bell", keep)
                tasks.append(asyncio.create_task(root.gather("bell")))
            case _:
                root.on("bell", keep)
                getattr(root, what)("bell")
        await until(lambda: bool(made))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as the end of a program does
            task.cancel()

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(play())

    assert began == []
    assert [inspect.getcoroutinestate(one) for one in made] == [inspect.CORO_CLOSED]


async def test_a_listener_may_remove_itself_while_it_runs(kernel: Kernel) -> None:
    seen: list[str] = []

    async def once() -> None:
        await effect.dispose()
        seen.append("once")

    effect = kernel.root.on("bell", once)
    kernel.root.notify("bell")
    await until(lambda: bool(seen))
    kernel.root.notify("bell")
    await kernel.root.gather("bell")

    assert seen == ["once"]


async def test_a_stop_waits_for_a_handler_whose_listener_was_removed(kernel: Kernel) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    log: list[str] = []

    async def once() -> None:
        await effects[0].dispose()
        begun.set()
        await gate.wait()
        log.append("the handler has ended")

    effects: list[Effect] = []

    def start(ctx: Context, _: object) -> None:
        effects.append(ctx.on("ask", once))
        ctx.effect(lambda: lambda: log.append("undone"))

    scope = kernel.root.plugin(PluginSpec(name="ears", start=start))
    await scope
    asking = asyncio.create_task(kernel.root.serial("ask"))
    await begun.wait()
    closing = asyncio.create_task(scope.close())
    await until(lambda: scope.state is ScopeState.STOPPING)
    for _ in range(10):
        await asyncio.sleep(0)
    early = [*log]
    gate.set()
    await closing
    await asking

    assert early == []
    assert log == ["the handler has ended", "undone"]


async def test_a_stop_waits_once_for_handlers_that_hang_however_many_listeners_it_removes(
    kernel: Kernel, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, mule: Mule
) -> None:
    monkeypatch.setattr("patchouli.harness.runs.STOP_LIMIT_MS", 20)

    async def hang() -> str:
        await mule.stand()
        return "late"

    def start(ctx: Context, _: object) -> None:
        ctx.on("ask", hang)
        ctx.on("tell", hang)
        for number in range(5):
            ctx.on(f"other {number}", hang)

    scope = kernel.root.plugin(PluginSpec(name="ears", start=start))
    await scope
    kernel.root.notify("tell")
    asking = [
        asyncio.create_task(kernel.root.serial("ask")),
        asyncio.create_task(kernel.root.gather("ask")),
    ]
    await mule.begun.wait()
    await scope.close()
    errors = [record.message for record in logged.records]
    mule.let_go()

    assert await asyncio.gather(*asking) == ["late", None]
    assert errors == [
        "task tell listener goes on 0.02 s after its cancellation",
        "a handler of ask goes on and is abandoned",
        "a handler of ask goes on and is abandoned",
    ]


async def test_whoever_removes_a_listener_during_a_stop_waits_no_longer_than_the_stop(
    kernel: Kernel, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, mule: Mule
) -> None:
    loop = asyncio.get_running_loop()
    time, skipped = loop.time, [0]  # s
    monkeypatch.setattr(loop, "time", lambda: time() + sum(skipped))
    monkeypatch.setattr("patchouli.harness.runs.STOP_LIMIT_MS", 6000)
    effects: list[Effect] = []

    def start(ctx: Context, _: object) -> None:
        effects.append(ctx.on("ask", mule.stand))

    async def steps() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    scope = kernel.root.plugin(PluginSpec(name="ears", start=start))
    await scope
    asking = asyncio.create_task(kernel.root.serial("ask"))
    await mule.begun.wait()
    closing = asyncio.create_task(scope.close())
    await steps()
    skipped.append(4)
    removing = asyncio.create_task(effects[0].dispose())
    await steps()
    early = closing.done() or removing.done()
    skipped.append(3)
    await until(lambda: closing.done() and removing.done())
    mule.let_go()
    await asking

    assert not early
    assert [r.message for r in logged.records] == ["a handler of ask goes on and is abandoned"]
