"""One peer: bytes in, lines through the dispatcher, bytes out.

Order (SPEC `transport.order`). Requests run one after the other in the order of their lines, and
are answered in it. An overtakable one (retrieve, download) begins in its turn and so sees the
effects of all before it; then the next ones go on without waiting for it. An answer that belongs to
a line and to no request stands where its line stood.

Creates that follow each other directly are begun while the ones before still wait for the disk, so
that they share its sync (*run*). Each must have been handed over for good before the next one is
begun; whatever else comes behind them waits for all of them. Their answers keep their order. The
runs of all connections together take half of the places that mutations have: beyond it a connection
has one create under way, so that nobody is refused who would only have had to wait.

A request that seldom has to wait is driven right here and costs no task, unless it waits after all
and goes on as one; the others are tasks from the beginning (`Rest`). An answer is sent in the very
step in which it is there, so a subscription's first event comes after it. The answers of one read
from the socket leave in one write.

Bounds. At most `max_in_flight` requests are held, waiting lines included, and as many are begun in
one step of the loop, fewer where their lines are long; beyond it the socket is not read. Of those
that may be overtaken no more than `max_overtaken` are under way, because each may end with a whole
page that nobody reads. While the peer leaves `outbox_bytes` unread no request is begun; from
`event_outbox_bytes` on events wait, so that an answer stands behind a bounded number of them. A
peer that reads nothing for `stalled_write_ms` is disconnected.

States: *open* -> *ending* (the peer has sent its last line, or the daemon stops: what was begun is
answered, then the socket is closed) -> *lost* (nobody is there; mutations that were begun finish).
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from patchouli.protocol import LineDecoder
from patchouli.server.work import Rest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from patchouli.protocol import FrameEvent
    from patchouli.server.dispatch import Begun, Dispatcher
    from patchouli.server.session import Session
    from patchouli.server.settings import Limits
    from patchouli.server.work import Work

_COALESCED_BYTES: Final = 262_144  # of answers held back for one write
_PORTION_BYTES: Final = 65_536  # of lines, after which others have their turn


class _Member:
    """A create of a run; its answer waits for those of the members before it."""

    __slots__ = ("answer", "is_ahead")

    def __init__(self, *, is_ahead: bool) -> None:
        self.answer: bytes | None = None
        self.is_ahead: Final = is_ahead  # begun before the end of another one


class Connection(asyncio.Protocol):
    """A peer of the daemon; `session` is set before the first byte arrives."""

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_decoder",
        "_dispatcher",
        "_flushed_bytes",
        "_frames",
        "_held",
        "_is_batching",
        "_is_ending",
        "_is_pump_due",
        "_is_reading",
        "_is_serial_read",
        "_limits",
        "_loop",
        "_max_ahead",
        "_on_lost",
        "_overtakable",
        "_room",
        "_run",
        "_run_may_grow",
        "_sent_bytes",
        "_serial",
        "_stalled_since",
        "_transport",
        "_work",
        "opened_at",
        "session",
    )

    session: Session

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        limits: Limits,
        work: Work,
        now: float,
        on_lost: Callable[[Connection, Exception | None], None],
    ) -> None:
        self._dispatcher: Final = dispatcher
        self._limits: Final = limits
        self._max_ahead: Final = min(limits.max_mutations, limits.max_waiting_commits) // 2
        self._work: Final = work
        self._on_lost: Final = on_lost
        self._loop: Final = asyncio.get_running_loop()
        self._decoder: Final = LineDecoder(limits.max_request_bytes)
        self._frames: Final[deque[FrameEvent]] = deque()
        self._transport: asyncio.Transport | None = None
        self._serial: asyncio.Task[Any] | None = None
        self._overtakable: Final[set[asyncio.Task[Any]]] = set()
        self._run: Final[deque[_Member]] = deque()
        self._run_may_grow = True
        self._held: Begun | None = None  # waits for the end of the run
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._is_batching = False
        self._is_reading = True
        self._is_serial_read = False
        self._is_ending = False
        self._is_pump_due = False
        self._room: asyncio.Event | None = None
        self._sent_bytes = 0
        self._flushed_bytes = 0
        self._stalled_since: float | None = None
        self.opened_at: Final = now

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; its marks are those of events, answers look at the outbox."""
        self._transport = cast("asyncio.Transport", transport)
        high = self._limits.event_outbox_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)

    def data_received(self, data: bytes) -> None:
        """Take bytes and do at once what they ask for, as far as nothing is to be waited for."""
        self._frames.extend(self._decoder.feed(data))
        self._pump()

    def eof_received(self) -> bool:
        """Answer what was read, then close; the transport stays until then."""
        self._frames.extend(self._decoder.eof())
        self._is_ending = True
        self.session.subscriptions.close()
        self._pump()
        return self._transport is not None

    def pause_writing(self) -> None:
        """Let events wait."""
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        """Let events and requests go on."""
        if self._room is not None:
            self._room.set()
            self._room = None
        self._pump_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what nobody can be told any more; what was begun and changes something goes on."""
        self._transport = None
        self._frames.clear()
        if isinstance(self._held, tuple):
            self._held[0].close()
        self._held = None
        self._batch.clear()
        if self._room is not None:
            self._room.set()
            self._room = None
        self.session.subscriptions.close()
        for task in self._overtakable:
            task.cancel()
        if self._serial is not None and self._is_serial_read:
            self._serial.cancel()
        self._on_lost(self, exc)

    # What the daemon and the subscriptions call.

    @property
    def has_room(self) -> bool:
        """Whether events may be added to what the peer has not read yet."""
        return self._room is None

    @property
    def unread_bytes(self) -> int:
        """What was written for the peer and has not left this process."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def wait_for_room(self) -> None:
        """Return when there is room again, or the peer is gone."""
        while self._room is not None:
            await self._room.wait()

    def send(self, data: bytes) -> None:
        """Add whole lines to what the peer is to read; nothing happens if it is gone."""
        if self._is_batching:
            self._batch.append(data)
            self._batch_bytes += len(data)
        elif self._transport is not None:
            self._sent_bytes += len(data)
            self._transport.write(data)

    def close(self) -> None:
        """Answer what was begun and the lines that are waiting, read no more, then close."""
        self._is_ending = True
        if self._transport is not None and self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()
        self._pump()

    def abort(self) -> None:
        """Close at once, whatever the peer has not read."""
        if self._transport is not None:
            self._transport.abort()

    def is_abandoned(self) -> bool:
        """Say whether the peer not only sends no more but is gone, whatever is still under way."""
        if self._transport is None or not self._is_ending or sys.platform == "win32":
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def is_stalled(self, now: float) -> bool:
        """Say whether the peer has read nothing of what waits for it, for too long."""
        if self._transport is None:
            return False
        waiting = self._transport.get_write_buffer_size()
        flushed = self._sent_bytes - waiting
        if not waiting:
            self._stalled_since = None
        elif self._stalled_since is None or flushed != self._flushed_bytes:
            self._stalled_since = now
        self._flushed_bytes = flushed
        return (
            self._stalled_since is not None
            and now - self._stalled_since >= self._limits.stalled_write_ms / 1000
        )

    # The pump.

    def _pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Begin waiting requests as far as order and bounds allow, then send what is ready."""
        self._is_pump_due = False
        frames = self._frames
        overtakable = self._overtakable
        room = self._limits.max_in_flight
        portion = _PORTION_BYTES
        overtaken = min(room, self._limits.max_overtaken)
        self._is_batching = True
        try:
            while (
                frames
                and room
                and portion > 0
                and self._serial is None
                and self._held is None
                and self._run_may_grow
                and len(self._run) < self._limits.max_in_flight
                and (not self._run or self._work.ahead < self._max_ahead)
                and len(overtakable) < overtaken
                and not self._is_outbox_full()
            ):
                room -= 1
                portion -= len(frames[0])  # next to nothing for one that was too long to keep
                self._begin(frames.popleft())
        finally:
            self._is_batching = False
            self._flush()
        if frames and (not room or portion <= 0):
            self._pump_soon()  # others have their turn between two portions
        is_busy = (
            frames or overtakable or self._run or self._serial is not None or self._room is not None
        )
        if is_busy or self._is_ending or not self._is_reading:
            self._regulate()  # else it reads already, and may

    def _begin(self, frame: FrameEvent) -> None:
        begun = self._dispatcher.begin(self.session, frame)
        if self._run and (isinstance(begun, bytes) or begun[1].count_begun is None):
            self._held = begun
        else:
            self._start(begun)

    def _start(self, begun: Begun) -> None:
        if isinstance(begun, bytes):
            self.send(begun)
            return
        answer, operation = begun
        if operation.count_begun is not None:
            self._start_member(answer, operation.count_begun)
            return
        if operation.is_immediate:
            try:
                waited = answer.send(None)
            except StopIteration as ended:
                self.send(ended.value)
                return
            task = self._work.begin(Rest(answer, self.send, waited))
        else:
            task = self._work.begin(Rest(answer, self.send))
        if operation.is_overtakable:
            self._overtakable.add(task)
            task.add_done_callback(self._end_overtakable)
        else:
            self._serial = task
            self._is_serial_read = operation.is_immediate
            task.add_done_callback(self._end_serial)

    def _start_member(
        self, answer: Coroutine[Any, Any, bytes], count_begun: Callable[[], int]
    ) -> None:
        member = _Member(is_ahead=bool(self._run))
        self._run.append(member)
        before = count_begun()
        try:
            waited = answer.send(None)
        except StopIteration as ended:
            self._finish_member(member, ended.value)
            return
        self._run_may_grow = count_begun() > before
        self._work.ahead += member.is_ahead
        task = self._work.begin(Rest(answer, partial(self._finish_member, member), waited))
        task.add_done_callback(partial(self._end_member, member))

    def _finish_member(self, member: _Member, answer: bytes) -> None:
        member.answer = answer
        while self._run and (ready := self._run[0].answer) is not None:
            self._run.popleft()
            self.send(ready)

    def _end_member(self, member: _Member, _: asyncio.Task[Any]) -> None:
        self._work.ahead -= member.is_ahead
        if member.answer is None:  # it was cut off
            self._finish_member(member, b"")
        if not self._run:
            self._run_may_grow = True
            if self._held is not None:
                held, self._held = self._held, None
                self._start(held)
        self._pump_soon()

    def _end_overtakable(self, task: asyncio.Task[Any]) -> None:
        self._overtakable.discard(task)
        self._pump()

    def _end_serial(self, _: asyncio.Task[Any]) -> None:
        self._serial = None
        self._pump()

    def _is_outbox_full(self) -> bool:
        if self._batch_bytes >= _COALESCED_BYTES:
            self._flush()
        return (
            self._room is not None
            and self._transport is not None
            and self._transport.get_write_buffer_size() >= self._limits.outbox_bytes
        )

    def _flush(self) -> None:
        batch = self._batch
        if not batch:
            return
        data = batch[0] if len(batch) == 1 else b"".join(batch)
        batch.clear()
        self._batch_bytes = 0
        if self._transport is not None:
            self._sent_bytes += len(data)
            self._transport.write(data)

    def _regulate(self) -> None:
        """Read on while there is room for requests; close once there is nothing left to do."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        held = (
            len(self._frames)
            + len(self._overtakable)
            + len(self._run)
            + (self._held is not None)
            + (self._serial is not None)
        )
        if self._is_ending:
            if not held:
                transport.close()
            return
        may_read = held < self._limits.max_in_flight and not self._is_outbox_full()
        if may_read != self._is_reading:
            self._is_reading = may_read
            if may_read:
                transport.resume_reading()
            else:
                transport.pause_reading()
