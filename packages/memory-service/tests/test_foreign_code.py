"""What plugins, handlers, stores and callbacks do to the task they run in hurts nobody but them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import META, Plain, asked, gate, quiet, settled, until
from patchouli.harness import Kernel, NotJson
from patchouli.memory_service import (
    Change,
    ChangeEvent,
    MemoryService,
    MemorySubscriptionError,
    SubscribeRequest,
    SubscriptionFailure,
    memory_service,
)

if TYPE_CHECKING:
    from patchouli.memory_service import CallContext, Emit, PluginSubscribeRequest

CHANGES = ["c1", "c2", "c3"]
PLACES = [
    "load",
    "subscribe",
    "wait_closed",
    "save b",
    "handle c1",
    "save c1",
    "unsubscribe",
    "on_error",
]


async def times_out() -> None:
    """A limit written by hand: what it did to its task stays counted there."""
    current().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise MemorySubscriptionError("too slow", retryable=True) from None


async def times_out_and_bears_it() -> None:
    current().cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def cancels_itself() -> None:
    current().cancel()
    await asyncio.sleep(0)


async def cancels_itself_later() -> None:
    """What follows in the task finds the cancellation."""
    current().cancel()


async def raises_a_cancellation() -> None:
    raise asyncio.CancelledError("not today")


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class Scene:
    """A memory, its consumer and its cursors, one of which misbehaves once in one place."""

    def __init__(self, place: str, misbehaves: Any) -> None:
        self.id = "scene"
        self.place = place
        self.misbehaves = misbehaves
        self.saved: dict[str, str] = {}
        self.handled: list[str] = []
        self.failures: list[SubscriptionFailure] = []
        self.emitted: list[asyncio.Future[None]] = []
        self.attempts: list[Open] = []

    async def at(self, place: str) -> None:
        if place == self.place:
            self.place = ""
            await self.misbehaves()

    async def update(self, request: object, ctx: object) -> None:
        return None

    retrieve = update

    async def subscribe(
        self, request: PluginSubscribeRequest, emit: Emit, ctx: CallContext
    ) -> Open:
        opened = Open(self, request.after_cursor or "b")
        self.attempts.append(opened)
        await self.at("subscribe")
        for cursor in CHANGES:
            if cursor > (request.after_cursor or "b"):
                self.emitted.append(emit(Change(cursor=cursor)))
        return opened

    async def load(self, plugin_id: str) -> str | None:
        await self.at("load")
        return self.saved.get(plugin_id)

    async def save(self, plugin_id: str, cursor: str) -> None:
        await self.at(f"save {cursor}")
        self.saved[plugin_id] = cursor

    async def delete(self, plugin_id: str) -> None:
        del self.saved[plugin_id]

    async def handle(self, event: ChangeEvent) -> None:
        await self.at(f"handle {event.cursor}")
        self.handled.append(event.cursor)
        if event.cursor == "c1" and self.place in ("unsubscribe", "on_error"):
            line = self.attempts[-1]
            line.closed.set_exception(MemorySubscriptionError("cut", retryable=True))
            await until(lambda: line.unsubscribed == 1)

    def on_error(self, failure: SubscriptionFailure) -> None:
        self.failures.append(failure)
        if self.place == "on_error":
            self.place = ""
            current().cancel()

    async def follow(self, memory: MemoryService) -> Any:
        memory.register(self)
        return await memory.subscribe(
            SubscribeRequest(meta=META), self.handle, cursors=self, on_error=self.on_error
        )


class Open:
    def __init__(self, scene: Scene, cursor: str) -> None:
        self.cursor = cursor
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.unsubscribed = 0
        self._scene = scene

    async def wait_closed(self) -> None:
        await self._scene.at("wait_closed")
        await asyncio.shield(self.closed)

    async def unsubscribe(self) -> None:
        self.unsubscribed += 1
        if not self.closed.done():
            self.closed.set_result(None)
        await self._scene.at("unsubscribe")


@pytest.mark.parametrize("place", PLACES)
async def test_a_limit_written_by_hand_is_retried_and_loses_no_change(
    memory: MemoryService, place: str
) -> None:
    scene = Scene(place, times_out)
    subscription = await scene.follow(memory)

    await until(lambda: scene.saved.get("scene") == "c3")

    assert [str(one.error) for one in scene.failures] == [
        "cut" if place in ("unsubscribe", "on_error") else "too slow"
    ]
    assert list(dict.fromkeys(scene.handled)) == CHANGES
    await settled(subscription.unsubscribe())
    assert all(one.done() for one in scene.emitted)
    opened = [one for one in scene.attempts if place != "subscribe" or one is scene.attempts[-1]]
    assert [one.unsubscribed for one in opened] == [1] * len(opened)


@pytest.mark.parametrize("place", [one for one in PLACES if one != "on_error"])
async def test_a_limit_that_is_borne_changes_nothing(memory: MemoryService, place: str) -> None:
    scene = Scene(place, times_out_and_bears_it)
    counts: list[int] = []
    handle = scene.handle

    async def counted(event: ChangeEvent) -> None:
        counts.append(current().cancelling())
        await handle(event)

    scene.handle = counted  # type: ignore[method-assign] # to look before the handler
    subscription = await scene.follow(memory)

    await until(lambda: scene.saved.get("scene") == "c3")

    assert list(dict.fromkeys(scene.handled)) == CHANGES
    assert set(counts) == {0}  # or structured concurrency in the next handler would misread it
    assert all("cut" in str(one.error) for one in scene.failures)
    await settled(subscription.unsubscribe())
    assert all(one.exception() is None for one in scene.emitted[-3:] if not scene.failures)


@pytest.mark.parametrize("misbehaves", [cancels_itself, raises_a_cancellation])
@pytest.mark.parametrize("place", [one for one in PLACES if one not in ("on_error", "unsubscribe")])
async def test_who_cancels_its_own_task_fails_for_good_and_is_reported(
    memory: MemoryService, place: str, misbehaves: Any
) -> None:
    scene = Scene(place, misbehaves)
    subscription = await scene.follow(memory)

    await until(lambda: bool(scene.failures))
    await until(lambda: all(one.done() for one in scene.emitted))

    (failure,) = scene.failures
    assert not failure.error.retryable
    assert isinstance(failure.error.__cause__, asyncio.CancelledError)
    await settled(subscription.unsubscribe())
    assert len(scene.attempts) == (0 if place == "load" else 1)


@pytest.mark.parametrize("place", [one for one in PLACES if one != "on_error"])
async def test_a_cancellation_that_is_left_behind_stalls_nothing(
    memory: MemoryService, place: str
) -> None:
    scene = Scene(place, cancels_itself_later)
    subscription = await scene.follow(memory)

    await until(lambda: scene.saved.get("scene") == "c3" or bool(scene.failures))

    await settled(subscription.unsubscribe())
    assert all(one.done() for one in scene.emitted)
    assert [one.unsubscribed for one in scene.attempts] == [1] * len(scene.attempts)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    "raised",
    [asyncio.CancelledError("no"), GeneratorExit("no"), RuntimeError("no"), UnspeakableError()],
)
async def test_an_error_callback_may_raise_anything(
    memory: MemoryService, raised: BaseException, logged: pytest.LogCaptureFixture
) -> None:
    scene = Scene("subscribe", times_out)
    tell = scene.on_error

    def on_error(failure: SubscriptionFailure) -> None:
        tell(failure)
        raise raised

    memory.register(Scene("", None), filter=lambda _: 1 / 0)  # type: ignore[arg-type, return-value] # fails
    scene.id = "other"
    memory.register(scene)
    subscription = await memory.subscribe(
        SubscribeRequest(meta=META), scene.handle, cursors=scene, on_error=on_error
    )

    await until(lambda: scene.saved.get("other") == "c3")

    assert subscription.plugin_ids == ("other",)
    assert [one.plugin_id for one in scene.failures] == ["scene", "other"]
    assert logged.text.count("on_error failed for plugin") == 2
    await settled(subscription.unsubscribe())


async def never_run(_: object) -> None:
    raise AssertionError("nobody would await it")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"request": None}, "must be a SubscribeRequest"),
        ({"request": asked()}, "must be a SubscribeRequest"),
        ({"handler": None}, "handler must be callable, not None"),
        ({"on_error": "print"}, "on_error must be callable"),
        ({"on_error": never_run}, "on_error must be a plain function"),
    ],
)
async def test_a_subscription_that_could_only_fail_is_refused(
    memory: MemoryService, arguments: dict[str, Any], text: str
) -> None:
    scene = Scene("", None)
    memory.register(scene)
    wanted = {"request": SubscribeRequest(meta=META), "handler": scene.handle, **arguments}

    with pytest.raises(TypeError, match=text):
        await memory.subscribe(**wanted, cursors=scene)

    assert scene.attempts == []


async def test_an_error_callback_that_leaves_something_to_await_is_named(
    memory: MemoryService, logged: pytest.LogCaptureFixture
) -> None:
    scene = Scene("subscribe", raises_a_cancellation)
    memory.register(scene)
    subscription = await memory.subscribe(
        SubscribeRequest(meta=META),
        scene.handle,
        cursors=scene,
        on_error=lambda _: never_run(_),  # type: ignore[arg-type, return-value] # what is refused
    )

    await until(lambda: "on_error must answer at once" in logged.text)

    await settled(subscription.unsubscribe())


async def test_a_failure_that_cannot_be_printed_is_reported(memory: MemoryService) -> None:
    async def fails() -> None:
        raise UnspeakableError

    scene = Scene("subscribe", fails)
    subscription = await scene.follow(memory)

    await until(lambda: bool(scene.failures))

    assert str(scene.failures[0].error) == "UnspeakableError"
    await settled(subscription.unsubscribe())


async def test_a_worker_that_is_cancelled_from_outside_says_so(memory: MemoryService) -> None:
    scene = Scene("", None)
    held = gate()
    handle = scene.handle

    async def slow(event: ChangeEvent) -> None:
        await held.wait()
        await handle(event)

    scene.handle = slow  # type: ignore[method-assign] # to hold it
    subscription = await scene.follow(memory)
    await until(lambda: len(scene.emitted) == 3)
    for task in asyncio.all_tasks():
        if task.get_name() == "patchouli subscription scene":
            task.cancel("who are you")

    await until(lambda: bool(scene.failures))
    held.set()
    await until(lambda: all(one.done() for one in scene.emitted))

    assert [str(one.error) for one in scene.failures] == ["who are you"]
    assert [one.unsubscribed for one in scene.attempts] == [1]
    await settled(subscription.unsubscribe())


async def test_a_cursor_store_that_has_nothing_to_save_is_not_named(
    memory: MemoryService, logged: pytest.LogCaptureFixture
) -> None:
    scene = Scene("", None)
    subscription = await scene.follow(memory)
    await until(lambda: scene.saved.get("scene") == "c3")
    loop = asyncio.get_running_loop()
    passed = loop.create_future()

    loop.call_later(0.05, passed.set_result, None)  # behind the grace of any save so far
    await passed

    assert logged.messages == []
    await settled(subscription.unsubscribe())


async def test_a_clock_of_the_host_that_fails_ends_the_attempts(kernel: Kernel) -> None:
    async def sleep(_: float) -> None:
        raise OSError("no clock")

    await kernel.root.plugin(memory_service(sleep=sleep))
    scene = Scene("subscribe", times_out)
    subscription = await scene.follow(kernel.root.find("patchouli"))

    await until(lambda: len(scene.failures) == 2)
    await quiet()

    assert [str(one.error) for one in scene.failures] == ["too slow", "no clock"]
    assert [one.error.retryable for one in scene.failures] == [True, False]
    assert len(scene.attempts) == 1
    await settled(subscription.unsubscribe())


async def test_a_plugin_that_cancels_its_task_is_an_outcome_and_its_peers_answer(
    memory: MemoryService,
) -> None:
    for number, misbehaves in enumerate((cancels_itself, raises_a_cancellation, times_out)):
        memory.register(Plain(f"oak{number}", misbehaves))
    memory.register(Plain("elm", 1))

    outcomes = await memory.update(asked())

    assert [(one.ok, one.error) for one in outcomes] == [
        (False, "CancelledError"),
        (False, "not today"),
        (False, "too slow"),
        (True, None),
    ]


async def test_what_fails_is_logged_for_who_has_to_find_the_mistake(
    memory: MemoryService, logged: pytest.LogCaptureFixture
) -> None:
    def chop() -> None:
        raise OSError("no axe")

    def unsure(_: object) -> bool:
        raise OSError("no opinion")

    memory.register(Plain("oak", chop))
    memory.register(Plain("elm"), filter=unsure)

    await memory.update(asked())

    shown = {one.message: one for one in logged.records if one.levelname == "DEBUG"}
    assert "update of plugin oak failed" in shown
    assert "the filter of plugin elm failed" in shown
    assert "in chop" in logged.text
    assert "in unsure" in logged.text


@pytest.mark.parametrize("loaded", [5, b"c1", "\ud800", {"cursor": "c1"}])
async def test_a_store_that_loads_no_text_fails_before_the_plugin_is_opened(
    memory: MemoryService, loaded: Any
) -> None:
    scene = Scene("", None)
    scene.saved["scene"] = loaded
    subscription = await scene.follow(memory)

    await until(lambda: bool(scene.failures))

    assert isinstance(scene.failures[0].error.__cause__, NotJson)
    assert scene.attempts == []
    await settled(subscription.unsubscribe())


@pytest.mark.parametrize("place", ["load", "save b", "save c1", "save c3"])
async def test_a_hanging_cursor_store_is_named(
    memory: MemoryService, place: str, logged: pytest.LogCaptureFixture
) -> None:
    held = gate()
    scene = Scene(place, held.wait)
    subscription = await scene.follow(memory)

    await until(lambda: bool(logged.records))
    held.set()
    await until(lambda: scene.saved.get("scene") == "c3")

    assert logged.messages == [
        f"the cursor store for plugin scene takes long to {place.split()[0]}"
    ]
    await settled(subscription.unsubscribe())
