"""Handlers, their order, and every way in which a subscription ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import META, DaemonProcess, memo, params
from patchouli.storage_client import (
    ChangeClose,
    ClientClosedError,
    ClientConfig,
    ConnectionLostError,
    MalformedAnswerError,
    PatchouliRpcError,
    StorageClient,
)
from patchouli.storage_client.subscriptions import Subscriptions
from patchouli.storage_client.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

SUBSCRIBE = "patchouli.changes.subscribe@1"
UNSUBSCRIBE = "patchouli.changes.unsubscribe@1"
ACCEPTED = {"meta": {"k": 1}, "data": {"subscription_id": "s1", "cursor": "40"}}
REMOVED = {"meta": {}, "data": {"removed": True}}


def event(cursor: str, subscription_id: str = "s1") -> dict[str, Any]:
    data = {"subscription_id": subscription_id, "change": {"cursor": cursor}}
    return notice("patchouli.changes.event@1", data)


def boundary(cursor: str) -> dict[str, Any]:
    return notice("patchouli.changes.boundary@1", {"subscription_id": "s1", "cursor": cursor})


def closed(reason: str, cursor: str, subscription_id: str = "s1") -> dict[str, Any]:
    data = {"subscription_id": subscription_id, "cursor": cursor, "reason": reason}
    return notice("patchouli.changes.closed@1", data)


def notice(method: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {"meta": {"m": 1}, "data": data}}


def cursors(seen: Any) -> list[str]:
    return [one["data"]["change"]["cursor"] for one in seen.events]


async def subscribed(
    raw: Any, handler: Callable[[Any], Any], *behind: dict[str, Any], on_boundary: Any = None
) -> tuple[StorageClient, Any, Any]:
    """Return a client with a subscription `s1`; `behind` came with its answer."""
    client, peer = await raw.connect()
    subscribing = asyncio.ensure_future(client.subscribe(params({}), handler, on_boundary))
    request = await peer.receive()
    assert request["method"] == SUBSCRIBE
    peer.answer(request, ACCEPTED, *behind)
    return client, peer, await subscribing


async def test_changes_come_in_order_with_their_metadata(
    client: StorageClient, name: str, seen: Any
) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    subscription = await client.subscribe(params({"filter": {"ids": names}}), seen)

    for one in names:
        await client.create(params(memo(one)))
    first, *_ = await seen.until(3)

    assert seen.ids == names
    assert first["meta"] == META
    assert first["data"]["subscription_id"] == subscription.subscription_id
    assert first["data"]["change"]["kind"] == "created"
    assert subscription.closed_with is None


async def test_a_saved_cursor_goes_on_behind_it(
    client: StorageClient, name: str, seen: Any
) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    opened = await client.subscribe(params({"filter": {"ids": names}}), lambda _: None)
    for one in names:
        await client.create(params(memo(one)))

    resumed = await client.subscribe(
        params({"filter": {"ids": names}, "after_cursor": opened.data["cursor"]}), seen
    )
    events = await seen.until(3)
    again = type(seen)()
    await client.subscribe(
        params({"filter": {"ids": names}, "after_cursor": events[0]["data"]["change"]["cursor"]}),
        again,
    )
    await again.until(2)

    assert resumed.data["cursor"] == opened.data["cursor"]
    assert seen.ids == names
    assert again.ids == names[1:]


@pytest.mark.checklist("MS-67")
async def test_an_event_in_the_read_of_the_answer_is_delivered_once(raw: Any, seen: Any) -> None:
    client, _, subscription = await subscribed(raw, seen, event("41"), event("42"))

    assert cursors(seen) == ["41", "42"]
    assert seen.events[0] == event("41")["params"]
    assert subscription.meta == {"k": 1}
    assert subscription.data == {"subscription_id": "s1", "cursor": "40"}
    await client.close()


@pytest.mark.checklist("MS-68")
@pytest.mark.parametrize("removed", [True, False])
async def test_an_event_behind_the_answer_to_an_unsubscribe_is_dropped(
    raw: Any,
    seen: Any,
    removed: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    client, peer, subscription = await subscribed(raw, seen)

    ending = asyncio.ensure_future(client.unsubscribe(params({"subscription_id": "s1"})))
    request = await peer.receive()
    peer.send(event("41"))
    peer.answer(request, {"meta": {}, "data": {"removed": removed}}, event("42"))
    answer = await ending

    assert answer["data"] == {"removed": removed}
    assert await subscription.wait_closed() == ChangeClose(kind="unsubscribed")
    assert cursors(seen) == ["41"]
    await client.close()


@pytest.mark.checklist("MS-70")
async def test_two_unsubscribes_are_one_request(raw: Any, seen: Any) -> None:
    client, peer, subscription = await subscribed(raw, seen)

    both = [asyncio.ensure_future(subscription.unsubscribe()) for _ in range(2)]
    request = await peer.receive()
    assert request["method"] == UNSUBSCRIBE
    assert not any(one.done() for one in both)
    peer.answer(request, REMOVED)
    await asyncio.gather(*both)
    await subscription.unsubscribe()
    closing = asyncio.ensure_future(client.close())

    assert await peer.is_closed()
    await closing
    assert (await subscription.wait_closed()).kind == "unsubscribed"


@pytest.mark.checklist("MS-70")
async def test_a_failed_unsubscribe_is_forgotten(raw: Any, seen: Any) -> None:
    client, peer, subscription = await subscribed(raw, seen)

    first = asyncio.ensure_future(subscription.unsubscribe())
    request = await peer.receive()
    error = {"code": -32009, "message": "later", "data": {"reason": "OVERLOADED"}}
    peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    with pytest.raises(PatchouliRpcError):
        await first
    assert subscription.closed_with is None
    second = asyncio.ensure_future(subscription.unsubscribe())
    peer.answer(await peer.receive(), REMOVED)
    await second

    assert subscription.closed_with == ChangeClose(kind="unsubscribed")
    await client.close()


async def test_a_cancelled_unsubscribe_goes_on_for_the_others(raw: Any, seen: Any) -> None:
    client, peer, subscription = await subscribed(raw, seen)
    one, other = (asyncio.ensure_future(subscription.unsubscribe()) for _ in range(2))
    request = await peer.receive()

    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    peer.answer(request, REMOVED)
    await other

    assert subscription.closed_with == ChangeClose(kind="unsubscribed")
    await client.close()


async def test_close_fails_an_unsubscribe_as_it_fails_any_call(raw: Any, seen: Any) -> None:
    client, peer, subscription = await subscribed(raw, seen)
    calls = [
        asyncio.ensure_future(call())
        for call in (subscription.unsubscribe, subscription.unsubscribe, client.status)
    ]
    for _ in range(2):
        await peer.receive()

    await client.close()

    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(failure) for failure in failures] == [ClientClosedError] * 3
    assert subscription.closed_with.kind == "client-closed"


@pytest.mark.checklist("MS-71")
async def test_a_lost_connection_settles_the_subscription_once(
    raw: Any, seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client, peer, subscription = await subscribed(raw, seen)
    pending = asyncio.ensure_future(client.status())
    await peer.receive()

    await peer.close()
    close = await subscription.wait_closed()
    with pytest.raises(ConnectionLostError):
        await pending
    await subscription.unsubscribe()
    state, server = client.state, client.server
    await client.close()

    assert close.kind == "connection-lost"
    assert isinstance(close.error, ConnectionLostError)
    assert (state, server) == ("lost", None)
    assert await subscription.wait_closed() == close
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1


@pytest.mark.checklist("MS-71")
async def test_a_daemon_that_is_killed_settles_every_subscription(
    daemon: DaemonProcess, seen: Any
) -> None:
    client = StorageClient(ClientConfig(endpoint=str(daemon.endpoint), auto_start=False))
    await client.start()
    subscriptions = [await client.subscribe(params({}), seen) for _ in range(3)]
    await client.create(params(memo("last")))
    await seen.until(3)

    daemon.kill()
    closes = await asyncio.gather(*(one.wait_closed() for one in subscriptions))

    assert [close.kind for close in closes] == ["connection-lost"] * 3
    assert client.state == "lost"
    await client.close()


async def test_closing_the_client_settles_the_subscription_without_a_warning(
    config: ClientConfig, caplog: pytest.LogCaptureFixture
) -> None:
    client = StorageClient(config)
    await client.start()
    subscription = await client.subscribe(params({}), lambda _: None)

    await client.close()
    close = await subscription.wait_closed()
    await subscription.unsubscribe()

    assert close.kind == "client-closed"
    assert isinstance(close.error, ClientClosedError)
    assert caplog.records == []


@pytest.mark.checklist("MS-90")
async def test_a_closing_notice_ends_one_subscription_alone(raw: Any, seen: Any) -> None:
    client, peer, subscription = await subscribed(raw, seen)
    others = type(seen)()
    subscribing = asyncio.ensure_future(client.subscribe(params({}), others))
    peer.answer(
        await peer.receive(), {"meta": {}, "data": {"subscription_id": "s2", "cursor": "40"}}
    )
    other = await subscribing

    peer.send(closed("CURSOR_EXPIRED", "47"), event("48"), event("49", "s2"))
    close = await subscription.wait_closed()
    await others.until(1)

    assert close == ChangeClose(kind="server-closed", reason="CURSOR_EXPIRED", cursor="47")
    assert seen.events == []
    assert cursors(others) == ["49"]
    assert other.closed_with is None
    assert client.state == "ready"
    await client.close()


@pytest.mark.checklist("MS-90")
async def test_a_daemon_that_stops_says_so_and_names_the_position(
    daemon: DaemonProcess, seen: Any
) -> None:
    client = StorageClient(ClientConfig(endpoint=str(daemon.endpoint), auto_start=False))
    await client.start()
    subscription = await client.subscribe(params({}), seen)
    await client.create(params(memo("last")))
    (last,) = await seen.until(1)

    assert await asyncio.to_thread(daemon.end) == 0
    close = await subscription.wait_closed()
    await client.close()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert close == ChangeClose(
        kind="server-closed",
        reason="SERVER_STOPPING",
        cursor=last["data"]["change"]["cursor"],
    )


async def test_boundaries_stand_in_the_order_of_the_events(raw: Any, seen: Any) -> None:
    client, peer, _ = await subscribed(raw, seen, on_boundary=seen)

    peer.send(event("41"), boundary("44"), event("45"))

    assert await seen.until(3) == [
        event("41")["params"],
        boundary("44")["params"],
        event("45")["params"],
    ]
    await client.close()


async def test_a_boundary_that_nobody_asked_for_is_dropped(raw: Any, seen: Any) -> None:
    client, peer, _ = await subscribed(raw, seen)

    peer.send(boundary("44"), event("45"))

    await seen.until(1)
    assert cursors(seen) == ["45"]
    await client.close()


@pytest.mark.checklist("MS-78")
async def test_a_handler_that_raises_disturbs_nobody(
    client: StorageClient, name: str, seen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise LookupError("lost my keys")

    async def fail_later(_: object) -> None:
        raise LookupError("lost my hat")

    for handler in (fail, fail_later, seen):
        await client.subscribe(params({"filter": {"ids": [name]}}), handler)

    created = await client.create(params(memo(name)))
    await client.delete(
        params(
            {"ref": created["data"]["entity"]["ref"]},
            base_versions=[created["data"]["entity"]["version"]],
        )
    )
    await seen.until(2)
    await client.status()

    assert client.state == "ready"
    warnings = [record for record in caplog.records if record.name.startswith("patchouli")]
    assert len(warnings) == 4
    assert all("subscription-" in record.getMessage() for record in warnings)


async def test_a_handler_that_cancels_itself_disturbs_nobody(
    client: StorageClient, name: str, seen: Any
) -> None:
    def cancel(_: object) -> None:
        raise asyncio.CancelledError

    for handler in (cancel, seen):
        await client.subscribe(params({"filter": {"ids": [name]}}), handler)

    await client.create(params(memo(name)))

    await seen.until(1)
    assert client.state == "ready"


async def test_a_handler_may_raise_what_is_no_exception(raw: Any, seen: Any) -> None:
    class Gone(BaseException):
        pass

    def fail(_: object) -> None:
        raise Gone

    client, peer, handle = await subscribed(raw, fail)
    subscribing = asyncio.ensure_future(client.subscribe(params({}), seen))
    other = {"meta": {}, "data": {"subscription_id": "s2", "cursor": "40"}}
    peer.answer(await peer.receive(), other, event("41"), event("41", "s2"), event("42", "s2"))
    await subscribing

    await seen.until(2)
    assert (client.state, handle.closed_with) == ("ready", None)
    await client.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_reaches_the_loop_behind_what_was_read_with_it(kind: type[BaseException]) -> None:
    got: list[str] = []

    def fail(one: Any) -> None:
        got.append(one["data"]["change"]["cursor"])
        raise kind

    async def unsubscribe(_: str) -> None:
        raise AssertionError("nobody unsubscribes")

    async def main() -> None:
        subscriptions = Subscriptions(Tasks(), unsubscribe)
        subscriptions.open(ACCEPTED, fail, None)
        for cursor in ("41", "42"):
            subscriptions.notify("patchouli.changes.event@1", event(cursor)["params"])
        await asyncio.Event().wait()

    with pytest.raises(kind), asyncio.Runner() as runner:
        runner.run(main())

    assert got == ["41", "42"]


async def test_a_second_subscription_of_one_id_is_malformed(raw: Any, seen: Any) -> None:
    client, peer, handle = await subscribed(raw, seen)
    subscribing = asyncio.ensure_future(client.subscribe(params({}), seen))
    peer.answer(await peer.receive(), ACCEPTED)

    with pytest.raises(MalformedAnswerError):
        await subscribing

    peer.send(event("41"))
    await seen.until(1)
    await client.close()
    assert handle.closed_with.kind == "client-closed"


async def test_handlers_that_wait_begin_in_order_and_overlap(raw: Any) -> None:
    begun: list[str] = []
    ended: list[str] = []
    is_last_begun = asyncio.Event()
    gates = {"41": asyncio.Event(), "42": asyncio.Event()}
    all_ended = asyncio.Event()

    async def handle(one: Any) -> None:
        cursor = one["data"]["change"]["cursor"]
        begun.append(cursor)
        if cursor == "42":
            is_last_begun.set()
        await gates[cursor].wait()
        ended.append(cursor)
        if len(ended) == 2:
            all_ended.set()

    client, peer, _ = await subscribed(raw, handle)
    peer.send(event("41"), event("42"))
    await is_last_begun.wait()
    gates["42"].set()
    gates["41"].set()
    await all_ended.wait()

    assert begun == ["41", "42"]
    assert sorted(ended) == ["41", "42"]
    await client.close()


async def test_handlers_that_still_wait_are_cancelled_by_close(raw: Any) -> None:
    waiting = asyncio.Event()
    ended: list[str] = []

    async def handle(_: object) -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    client, peer, _ = await subscribed(raw, handle)
    peer.send(event("41"))
    await waiting.wait()

    await client.close()

    assert ended == ["cancelled"]


async def test_a_handler_that_is_cancelled_before_its_first_step_is_not_left_behind(
    raw: Any,
) -> None:
    made: list[Coroutine[Any, Any, None]] = []

    async def never() -> None:
        raise AssertionError("it began")

    def handler(_: Any) -> Awaitable[None]:
        made.append(never())
        closing.set_result(
            asyncio.ensure_future(client.close())
        )  # it is stepped before the handler
        return made[-1]

    closing: asyncio.Future[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
    client, peer, _ = await subscribed(raw, handler)
    peer.send(event("41"))
    await (await closing)

    assert [inspect.getcoroutinestate(one) for one in made] == [inspect.CORO_CLOSED]


async def test_a_handler_may_close_the_client_and_may_unsubscribe(raw: Any) -> None:
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle(_: object) -> None:
        await client.close()
        done.set_result(client.state)

    client, peer, subscription = await subscribed(raw, handle)
    peer.send(event("41"))

    assert await done == "closed"
    assert (await subscription.wait_closed()).kind == "client-closed"

    async def end(_: object) -> None:
        await handle_of.unsubscribe()

    other, peer, handle_of = await subscribed(raw, end)
    peer.send(event("41"))
    peer.answer(await peer.receive(), REMOVED)
    assert (await handle_of.wait_closed()).kind == "unsubscribed"
    await other.close()


async def test_events_that_nobody_waits_for_are_dropped(raw: Any, seen: Any) -> None:
    client, peer, _ = await subscribed(raw, seen)

    peer.send(
        event("41", "s7"),
        notice("patchouli.changes.other@1", {"subscription_id": "s1"}),
        {"jsonrpc": "2.0", "method": "patchouli.changes.event@1"},
        {"jsonrpc": "2.0", "method": 7, "params": []},
        event("42"),
    )

    await seen.until(1)
    assert cursors(seen) == ["42"]
    await client.close()


async def test_a_subscription_whose_caller_has_gone_is_ended(raw: Any, seen: Any) -> None:
    client, peer = await raw.connect()
    subscribing = asyncio.ensure_future(client.subscribe(params({}), seen))
    request = await peer.receive()

    subscribing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await subscribing
    peer.answer(request, ACCEPTED, event("41"))
    ending = await peer.receive()

    assert ending["method"] == UNSUBSCRIBE
    assert ending["params"] == {"meta": {}, "data": {"subscription_id": "s1"}}
    assert seen.events == []
    await client.close()


async def test_a_caller_that_goes_in_the_moment_of_the_answer_leaves_no_subscription(
    raw: Any,
) -> None:
    client, peer = await raw.connect()
    events: list[Any] = []

    def cancel_the_caller(one: Any) -> None:
        events.append(one)
        subscribing.cancel()  # after the answer was read, before its caller went on

    subscribing = asyncio.ensure_future(client.subscribe(params({}), cancel_the_caller))
    request = await peer.receive()
    peer.answer(request, ACCEPTED, event("41"))
    with pytest.raises(asyncio.CancelledError):
        await subscribing
    ending = await peer.receive()

    assert ending["method"] == UNSUBSCRIBE
    assert client._subscriptions._open == {}
    await client.close()


async def test_an_answer_that_names_no_subscription_is_malformed(raw: Any, seen: Any) -> None:
    client, peer = await raw.connect()
    subscribing = asyncio.ensure_future(client.subscribe(params({}), seen))
    peer.answer(await peer.receive(), {"meta": {}, "data": {"subscription_id": 4}})

    with pytest.raises(MalformedAnswerError):
        await subscribing
    await client.close()


async def test_a_cursor_of_another_database_is_refused_with_its_reason(
    client: StorageClient, seen: Any
) -> None:
    foreign = f"{'0' * 32}.5"

    with pytest.raises(PatchouliRpcError) as caught:
        await client.subscribe(params({"after_cursor": foreign}), seen)

    assert caught.value.reason == "CURSOR_EXPIRED"
