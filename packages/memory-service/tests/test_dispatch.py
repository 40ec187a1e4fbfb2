"""Updates and retrievals: order, isolation, deadlines, and the two ways to be told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import META, Plain, Stuck, asked, gate, quiet, settled, until
from patchouli.harness import CancelSource, Kernel, NotJson
from patchouli.memory_service import CallMeta, MemoryRequest, MemoryService, Outcome, memory_service

if TYPE_CHECKING:
    from collections.abc import Callable


class Withdrawn(Exception):  # noqa: N818 - a reason, not a failure
    """Why a caller of these tests leaves."""


@pytest.mark.checklist("MS-15")
async def test_outcomes_come_in_registration_order(memory: MemoryService) -> None:
    memory.register(Plain("oak", {"kept": 1}))
    memory.register(Plain("elm", OSError("no room")))

    outcomes = await memory.update(asked("seeds"))

    assert outcomes == (
        Outcome(plugin_id="oak", ok=True, value={"kept": 1}),
        Outcome(plugin_id="elm", ok=False, error="no room"),
    )
    assert [one.to_json() for one in outcomes] == [
        {"pluginId": "oak", "ok": True, "value": {"kept": 1}},
        {"pluginId": "elm", "ok": False, "error": "no room"},
    ]


@pytest.mark.checklist("MS-16")
@pytest.mark.parametrize("operation", ["update", "retrieve"])
async def test_plugins_see_the_request_and_the_signal_of_the_caller(
    memory: MemoryService, operation: str
) -> None:
    plugins = [Plain("oak"), Plain("elm")]
    for plugin in plugins:
        memory.register(plugin)
    source = CancelSource()
    request = asked({"deep": [1, {"a": None}]})

    await getattr(memory, operation)(request, signal=source.signal)

    for plugin in plugins:
        ((_, seen, ctx),) = plugin.asked
        assert seen == request
        assert seen.data is request.data
        assert ctx.signal is source.signal


@pytest.mark.checklist("MS-17")
async def test_a_deadline_hits_one_plugin_alone(started: Callable[..., Any]) -> None:
    memory = await started(
        {"retrieveTimeoutMs": 1000, "routing": {"slow": {"retrieveTimeoutMs": 20}}}
    )
    slow = Stuck("slow")
    memory.register(slow)
    memory.register(Plain("fast", 1))

    failed, fine = await settled(memory.retrieve(asked()))

    assert (failed.plugin_id, failed.ok) == ("slow", False)
    assert "'slow'" in failed.error
    assert "retrieve" in failed.error
    assert "20 ms" in failed.error
    assert (fine.plugin_id, fine.value) == ("fast", 1)
    await settled(slow.left.wait())
    assert slow.was_cancelled


@pytest.mark.checklist("MS-18")
async def test_a_fired_signal_ends_a_retrieval_with_its_reason(memory: MemoryService) -> None:
    stuck = Stuck("oak")
    memory.register(stuck)
    memory.register(Plain("fast", 1))
    source = CancelSource()
    call = asyncio.ensure_future(memory.retrieve(asked(), signal=source.signal))
    await stuck.entered.wait()

    source.cancel(Withdrawn())

    with pytest.raises(Withdrawn):
        await settled(call)
    await settled(stuck.left.wait())
    assert stuck.was_cancelled


@pytest.mark.checklist("MS-19")
async def test_a_signal_that_has_fired_runs_nothing(memory: MemoryService) -> None:
    filtered: list[object] = []
    plugin = Plain("oak")
    memory.register(plugin, filter=lambda call: bool(filtered.append(call)) or True)
    source = CancelSource()
    source.cancel(Withdrawn())

    for operation in (memory.update, memory.retrieve):
        with pytest.raises(Withdrawn):
            await operation(asked({1, 2}), signal=source.signal)

    assert (filtered, plugin.asked) == ([], [])


@pytest.mark.checklist("MS-20")
@pytest.mark.parametrize("operation", ["update", "retrieve"])
async def test_a_signal_that_fires_behind_the_last_answer_still_counts(
    memory: MemoryService, operation: str
) -> None:
    source = CancelSource()
    stuck = Stuck("oak")
    memory.register(stuck)
    call = asyncio.ensure_future(getattr(memory, operation)(asked(), signal=source.signal))
    await stuck.entered.wait()
    (task,) = [one for one in asyncio.all_tasks() if one.get_name() == f"patchouli {operation} oak"]
    # Behind the callback of the service, which settles the last outcome, and before the caller.
    task.add_done_callback(lambda _: source.cancel(Withdrawn()))

    stuck.release.set()

    with pytest.raises(Withdrawn):
        await settled(call)


@pytest.mark.checklist("MS-21")
async def test_an_update_has_no_deadline(started: Callable[..., Any]) -> None:
    memory = await started({"retrieveTimeoutMs": 1, "routing": {"oak": {"retrieveTimeoutMs": 1}}})
    stuck = Stuck("oak")
    memory.register(stuck)
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    call = asyncio.ensure_future(memory.update(asked()))
    await stuck.entered.wait()
    loop.call_later(0.01, passed.set_result, None)
    await passed

    stuck.release.set()

    (outcome,) = await settled(call)
    assert outcome.value == "oak at last"
    ((_, _, ctx),) = stuck.asked
    assert ctx.deadline is None


@pytest.mark.checklist("MS-22")
async def test_without_plugins_there_is_no_outcome(memory: MemoryService) -> None:
    assert await memory.update(asked()) == ()
    assert await memory.retrieve(asked()) == ()


@pytest.mark.checklist("MS-23")
async def test_none_is_an_answer(memory: MemoryService) -> None:
    memory.register(Plain("oak", None))

    assert await memory.retrieve(asked()) == (Outcome(plugin_id="oak", ok=True, value=None),)


@pytest.mark.checklist("MS-24")
@pytest.mark.parametrize("operation", ["update", "retrieve"])
async def test_a_plugin_that_raises_a_cancellation_fails_alone(
    memory: MemoryService, operation: str
) -> None:
    memory.register(Plain("oak", asyncio.CancelledError()))
    memory.register(Plain("elm", asyncio.CancelledError("the lake is closed")))
    memory.register(Plain("ash", 1))

    outcomes = await getattr(memory, operation)(asked())

    assert [(one.ok, one.error) for one in outcomes] == [
        (False, "CancelledError"),
        (False, "the lake is closed"),
        (True, None),
    ]


@pytest.mark.checklist("MS-25")
async def test_a_cancelled_caller_leaves_when_its_retrievals_have_ended(
    started: Callable[..., Any],
) -> None:
    memory = await started({"cancelGraceMs": 60_000})
    stuck = Stuck("oak", ignores_cancellation=True)
    memory.register(stuck)
    call = asyncio.ensure_future(memory.retrieve(asked()))
    await stuck.entered.wait()

    call.cancel("gone home")
    await settled(stuck.ignored.wait())  # it tidies up
    await quiet()
    waits = not call.done()
    stuck.release.set()

    with pytest.raises(asyncio.CancelledError, match="gone home"):
        await settled(call)
    assert waits
    assert stuck.left.is_set()


@pytest.mark.checklist("MS-25")
async def test_a_cancelled_caller_waits_no_longer_than_the_grace(
    memory: MemoryService, logged: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck("oak", ignores_cancellation=True)
    memory.register(stuck)
    call = asyncio.ensure_future(memory.retrieve(asked()))
    await stuck.entered.wait()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await settled(call)
    assert not stuck.left.is_set()
    await until(lambda: "plugin oak" in logged.text)
    stuck.release.set()
    await settled(stuck.left.wait())


@pytest.mark.checklist("MS-25")
async def test_a_cancelled_caller_waits_for_updates_and_does_not_cut_them(
    started: Callable[..., Any],
) -> None:
    memory = await started({"cancelGraceMs": 60_000})
    stuck = Stuck("oak")
    memory.register(stuck)
    call = asyncio.ensure_future(memory.update(asked()))
    await stuck.entered.wait()

    call.cancel()
    await quiet()
    waits = not call.done()
    stuck.release.set()

    with pytest.raises(asyncio.CancelledError):
        await settled(call)
    assert waits
    assert not stuck.was_cancelled


async def test_a_caller_that_is_cancelled_twice_leaves_at_once(started: Callable[..., Any]) -> None:
    memory = await started({"cancelGraceMs": 60_000})
    stuck = Stuck("oak")
    memory.register(stuck)
    call = asyncio.ensure_future(memory.update(asked()))
    await stuck.entered.wait()

    call.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await settled(call)
    assert not stuck.left.is_set()
    stuck.release.set()
    await settled(stuck.left.wait())


@pytest.mark.checklist("MS-26")
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"a": [1, {2, 3}]}, "/data/a/1"),
        ({"a": float("nan")}, "/data/a"),
        ({"x/y": float("-inf")}, "/data/x~1y"),
        ({"a": {1: "b"}}, "/data/a"),
        ({"a": ("b",)}, "/data/a"),
        (["\ud800"], "/data/0"),
        (-0.0, "/data"),
        (2**64, "/data"),
        (object(), "/data"),
    ],
)
async def test_data_that_are_no_json_are_refused_with_the_place(
    memory: MemoryService, data: Any, path: str
) -> None:
    filtered: list[object] = []
    plugin = Plain("oak")
    memory.register(plugin, filter=lambda call: bool(filtered.append(call)) or True)

    for operation in (memory.update, memory.retrieve):
        with pytest.raises(NotJson) as refused:
            await operation(asked(data))
        assert refused.value.path == path

    assert (filtered, plugin.asked) == ([], [])


@pytest.mark.checklist("MS-81")
async def test_a_fired_signal_ends_the_call_and_not_the_update(
    memory: MemoryService, logged: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck("oak")
    memory.register(stuck)
    source = CancelSource()
    call = asyncio.ensure_future(memory.update(asked(), signal=source.signal))
    await stuck.entered.wait()

    source.cancel(Withdrawn())

    with pytest.raises(Withdrawn):
        await settled(call)
    assert not stuck.left.is_set()
    stuck.release.set()
    await settled(stuck.left.wait())
    await asyncio.sleep(0)
    assert not stuck.was_cancelled
    assert logged.messages == []


@pytest.mark.checklist("MS-82")
async def test_a_plugin_that_ignores_its_deadline_is_named_once_and_its_answer_dropped(
    started: Callable[..., Any], logged: pytest.LogCaptureFixture
) -> None:
    memory = await started({"cancelGraceMs": 20, "routing": {"oak": {"retrieveTimeoutMs": 20}}})
    stuck = Stuck("oak", ignores_cancellation=True)
    memory.register(stuck)

    (outcome,) = await settled(memory.retrieve(asked()))

    assert "20 ms" in str(outcome.error)
    await settled(stuck.ignored.wait())
    assert not stuck.left.is_set()
    await until(lambda: bool(logged.messages))
    stuck.release.set()
    await settled(stuck.left.wait())
    await asyncio.sleep(0)
    (line,) = logged.messages
    assert "plugin oak" in line


async def test_a_late_failure_of_an_update_is_logged(
    memory: MemoryService, logged: pytest.LogCaptureFixture
) -> None:
    held = gate()
    entered = asyncio.Event()

    async def fail() -> None:
        entered.set()
        await held.wait()
        raise OSError("no room")

    memory.register(Plain("oak", fail))
    source = CancelSource()
    call = asyncio.ensure_future(memory.update(asked(), signal=source.signal))
    await entered.wait()
    source.cancel()
    with pytest.raises(Exception, match="aborted"):
        await settled(call)

    held.set()
    await until(lambda: "after its caller had left" in logged.text)

    (line,) = [one.message for one in logged.records if one.levelname == "WARNING"]
    assert "plugin oak" in line
    assert "no room" in line


async def test_a_service_that_stops_cuts_retrievals_and_waits_for_updates(kernel: Kernel) -> None:
    scope = await kernel.root.plugin(memory_service())
    memory: MemoryService = kernel.root.find("patchouli")
    reading, writing = Stuck("reading"), Stuck("writing")
    memory.register(reading, filter=lambda call: call.operation == "retrieve")
    memory.register(writing, filter=lambda call: call.operation == "update")
    retrieval = asyncio.ensure_future(memory.retrieve(asked()))
    update = asyncio.ensure_future(memory.update(asked()))
    await reading.entered.wait()
    await writing.entered.wait()

    closing = asyncio.ensure_future(scope.close())
    (cut,) = await settled(retrieval)
    waits = not closing.done()
    writing.release.set()
    await settled(closing)

    assert (cut.ok, cut.error) == (False, "the memory service stops")
    assert waits
    assert (await update)[0].value == "writing at last"


async def test_removing_a_registration_does_not_touch_a_call_under_way(
    memory: MemoryService,
) -> None:
    stuck = Stuck("oak")
    registration = memory.register(stuck)
    call = asyncio.ensure_future(memory.update(asked()))
    await stuck.entered.wait()

    await registration.dispose()
    stuck.release.set()

    assert (await settled(call))[0].value == "oak at last"


class Sync(Plain):
    """A memory whose methods are plain functions."""

    def retrieve(self, request: MemoryRequest, ctx: Any) -> Any:  # type: ignore[override] # the contract allows it
        if isinstance(self.answer, BaseException):
            raise self.answer
        return [request.data, self.answer]

    update = retrieve  # type: ignore[assignment] # as above


async def test_methods_may_be_plain_functions_and_fail_before_any_await(
    memory: MemoryService,
) -> None:
    memory.register(Sync("oak", 1))
    memory.register(Sync("elm", KeyError("acorn")))

    fine, failed = await memory.update(asked("seeds"))

    assert fine.value == ["seeds", 1]
    assert failed.error == "'acorn'"


class MuteError(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError"),
        (ValueError(" \t\u3000"), "ValueError"),
        (TimeoutError("its own clock"), "its own clock"),
        (TimeoutError(), "TimeoutError"),
        (MuteError(), "MuteError"),
        (ValueError("\ud800"), "\\ud800"),
        (StopIteration(), None),
        (GeneratorExit("left"), "left"),
        (BaseExceptionGroup("many", [KeyError()]), "many (1 sub-exception)"),
    ],
)
async def test_a_failure_is_told_by_its_text_or_its_class(
    memory: MemoryService, error: BaseException, text: str | None
) -> None:
    memory.register(Plain("oak", error))
    memory.register(Plain("elm", 1))

    failed, fine = await memory.retrieve(asked())

    assert not failed.ok
    assert text is None or failed.error == text
    assert fine.ok


@pytest.mark.parametrize(
    ("answer", "path"),
    [({"hits": [{"score": float("nan")}]}, "/hits/0/score"), ({1}, "the top"), (b"raw", "the top")],
)
async def test_an_answer_that_is_no_json_is_a_failure_with_the_place(
    memory: MemoryService, answer: Any, path: str
) -> None:
    memory.register(Plain("oak", answer))

    (outcome,) = await memory.retrieve(asked())

    assert not outcome.ok
    assert outcome.value is None
    assert path in str(outcome.error)


async def test_an_answer_that_holds_itself_is_a_failure(memory: MemoryService) -> None:
    loop: list[Any] = []
    loop.append(loop)
    memory.register(Plain("oak", loop))

    (outcome,) = await memory.retrieve(asked())

    assert "holds itself" in str(outcome.error)


async def test_checked_data_are_not_walked_again(memory: MemoryService) -> None:
    plugin = Plain("oak")
    memory.register(plugin)
    request = MemoryRequest(meta=META, data={1, 2}, checked=True)  # type: ignore[arg-type] # a caller that lies

    await memory.update(request)

    assert plugin.asked[0][1].data == {1, 2}
    assert request == MemoryRequest(meta=META, data={1, 2})  # type: ignore[arg-type] # as above


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_the_program_is_named_and_goes_its_way(
    ending: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    kernel = Kernel()
    outcomes: list[Outcome] = []

    async def call() -> None:
        await kernel.root.plugin(memory_service())
        memory: MemoryService = kernel.root.find("patchouli")
        memory.register(Plain("oak", ending))
        memory.register(Plain("elm", 1))
        outcomes.extend(await memory.retrieve(asked()))

    calling = loop.create_task(call())
    with pytest.raises(type(ending)):
        loop.run_until_complete(calling)
    loop.run_until_complete(calling)  # for a host that catches it and goes on
    loop.run_until_complete(kernel.aclose())
    loop.close()

    assert "plugin oak ends the program" in caplog.text
    assert [(one.plugin_id, one.ok) for one in outcomes] == [("oak", False), ("elm", True)]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"scope": None}, "/meta/scope"),
        ({"scope": "\udfff"}, "/meta/scope"),
        ({"request_id": 7}, "/meta/requestId"),
        ({"attributes": {"a": {1}}}, "/meta/attributes/a"),
        ({"attributes": [1]}, "/meta/attributes"),
    ],
)
async def test_an_envelope_that_is_no_json_is_refused_with_the_place(
    memory: MemoryService, change: dict[str, Any], path: str
) -> None:
    meta = dataclasses.replace(META, **change)

    with pytest.raises(NotJson) as refused:
        await memory.update(asked(meta=meta))

    assert refused.value.path == path


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (None, "must be a MemoryRequest, not None"),
        ({"meta": {}, "data": 1}, "must be a MemoryRequest, not {'meta'"),
        (MemoryRequest(meta=None, data=1), "meta must be a CallMeta"),  # type: ignore[arg-type] # refused
        (asked(meta=CallMeta(source="chat", scope="atlas")), "meta.source must be a Source"),  # type: ignore[arg-type] # refused
    ],
)
async def test_what_is_no_request_is_refused_by_naming_what_is_expected(
    memory: MemoryService, request_: Any, text: str
) -> None:
    memory.register(Plain("oak"))

    for call in (memory.update, memory.retrieve):
        with pytest.raises(TypeError, match=re.escape(text)):
            await call(request_)
    with pytest.raises(TypeError, match="must be a RouteCall, not None"):
        memory.matching(None)  # type: ignore[arg-type] # what is refused


async def test_an_answer_that_shares_its_parts_is_passed_on_as_it_is(memory: MemoryService) -> None:
    answer: list[Any] = []
    for _ in range(500):  # 2**500 members as a text
        answer = [answer, answer]
    memory.register(Plain("oak", lambda: answer))

    (outcome,) = await memory.retrieve(asked())

    assert outcome.value is answer
