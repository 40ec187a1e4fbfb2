"""One connection to the daemon: calls under way, and what comes without being asked for.

    open ──▶ ended        once: by the peer, by a line that is no message, by `end`

Answers are matched by id, in any order. Everything that a line causes is done before the next line
is looked at, so that an event directly behind the answer to a subscribe finds its handler. The
connection knows nothing of subscriptions, of capabilities and of connecting again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from patchouli.protocol import LineDecoder
from patchouli.storage_client.errors import (
    ConnectionLostError,
    MalformedAnswerError,
    PatchouliRpcError,
    RequestTooLarge,
)
from patchouli.storage_client.wire import read_line, request_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

RECEIVE_LIMIT_BYTES: Final = 64 * 1024 * 1024  # of a line; the daemon writes none that is longer


class _Call(NamedTuple):
    """A request under way."""

    method: str
    future: asyncio.Future[Any]
    receive: Callable[[Any], Any] | None
    forgotten: Callable[[Any], None] | None


class Connection(asyncio.Protocol):
    """The client's end of a socket; made by the event loop when it has connected."""

    def __init__(
        self,
        endpoint: str,
        *,
        ids: Iterator[int],
        notify: Callable[[str, Any], None],
        ended: Callable[[Connection, Exception], None],
        receive_limit_bytes: int = RECEIVE_LIMIT_BYTES,
    ) -> None:
        """Prepare; `notify` gets what the daemon says unasked, `ended` why this one ended."""
        self._endpoint: Final = endpoint
        self._ids: Final = ids
        self._notify: Final = notify
        self._when_ended: Final = ended
        self._loop: Final = asyncio.get_running_loop()
        self._decoder: Final = LineDecoder(receive_limit_bytes)
        self._calls: Final[dict[int, _Call]] = {}
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()
        self._transport: Any = None  # an asyncio.WriteTransport, once it is there
        self._is_full = False
        self._end: Callable[[], Exception] | None = None
        self._gone: Final[asyncio.Future[None]] = self._loop.create_future()
        self.limit_bytes: int | None = None  # of a request line, once a handshake has told it
        self.has_received = False
        self.refusal: PatchouliRpcError | None = None  # the last error that names no request

    @property
    def is_ended(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._end is not None

    async def call(
        self,
        method: str,
        params: Mapping[str, object],
        *,
        receive: Callable[[Any], T] | None = None,
        forgotten: Callable[[Any], None] | None = None,
    ) -> T:
        """Send a request and return its result, or what `receive` makes of it.

        `receive` is called before the next line is read. If the caller is cancelled the answer is
        dropped; a result that then came all the same goes to `forgotten`.

        Raises:
            NotJsonError: The parameters are no JSON; nothing was sent.
            RequestTooLarge: The line is too long; nothing was sent.
            PatchouliRpcError: The daemon answered with an error.
            MalformedAnswerError: The answer has no result and no error.
            ConnectionLostError: The connection ended.
            ClientClosedError: The client was closed.
        """
        request_id = next(self._ids)
        line = request_line(request_id, method, params)
        if self.limit_bytes is not None and len(line) > self.limit_bytes + 1:
            raise RequestTooLarge(method, len(line) - 1, self.limit_bytes)
        if self._is_full or self._waiting:
            await self._wait_for_room()
        if self._end is not None:
            raise self._end()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[request_id] = _Call(method, future, receive, forgotten)
        self._transport.write(line)
        try:
            return await future
        except asyncio.CancelledError:
            if forgotten is None:
                self._calls.pop(request_id, None)
            elif future.done() and not future.cancelled() and future.exception() is None:
                forgotten(future.result())  # it came, and its receiver was cancelled after that
            raise

    def post(self, method: str, params: Mapping[str, object]) -> None:
        """Send a request whose answer nobody waits for; do nothing if the connection has ended."""
        if self._end is None and self._transport is not None:
            self._transport.write(request_line(next(self._ids), method, params))

    def end(self, error: Callable[[], Exception]) -> None:
        """End the connection; calls under way fail, each with an `error` of its own."""
        if self._end is not None:
            return
        self._end = error
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error())
        while self._waiting:
            _wake(self._waiting.popleft())
        if self._transport is None:
            _wake(self._gone)
        else:
            self._transport.abort()
        self._when_ended(self, error())

    async def wait_gone(self) -> None:
        """Return when the socket is closed, after the connection has ended."""
        await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport
        if self._end is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Do what each line says, one after the other."""
        self.has_received = True
        for line in self._decoder.feed(data):
            if self._end is not None:
                return
            if isinstance(line, bytes):
                self._read(line)
            else:
                self._break(f"a line is longer than {line.limit_bytes} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way, unless that was done already."""
        self._lose("the daemon ended it" if exc is None else _words(exc), exc)
        _wake(self._gone)

    def pause_writing(self) -> None:
        """Let further calls wait: the daemon reads slower than they come."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Let them go on, one after the other, so that they keep their order."""
        self._is_full = False
        if self._waiting:
            _wake(self._waiting[0])

    def _read(self, line: bytes) -> None:
        try:
            message = read_line(line)
        except ValueError as error:
            self._break(f"a line is no message: {error}")
            return
        if "method" in message:
            self._notify(message["method"], message.get("params"))
        else:
            self._answer(message)

    async def _wait_for_room(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            # The line is written before the next in turn can run, and may fill the buffer again.
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._waiting and not self._is_full:
            _wake(self._waiting[0])

    def _answer(self, message: dict[str, Any]) -> None:
        request_id = message.get("id")
        if type(request_id) is not int:
            if "error" in message:
                self.refusal = _failure("-", message["error"])
            return
        call = self._calls.pop(request_id, None)
        if call is None:
            return
        if call.future.done():  # cancelled; only calls that want to know are still here
            if call.forgotten is not None and "result" in message:
                call.forgotten(message["result"])
            return
        try:
            call.future.set_result(_outcome(call, message))
        except (PatchouliRpcError, MalformedAnswerError) as error:
            call.future.set_exception(error)

    def _break(self, problem: str) -> None:
        self._lose(problem, MalformedAnswerError(problem))

    def _lose(self, problem: str, cause: Exception | None) -> None:
        def error() -> Exception:
            lost = ConnectionLostError(self._endpoint, problem)
            lost.__cause__ = cause
            return lost

        self.end(error)


def _outcome(call: _Call, message: dict[str, Any]) -> object:
    if "error" in message:
        raise _failure(call.method, message["error"]) or MalformedAnswerError(
            f"{call.method}: the error of the answer is malformed"
        )
    result: Any = message.get("result")
    if type(result) is not dict:
        raise MalformedAnswerError(f"{call.method}: the answer has no result")
    return cast("object", result) if call.receive is None else call.receive(result)


def _failure(method: str, error: Any) -> PatchouliRpcError | None:
    if type(error) is dict:
        found = cast("dict[str, Any]", error)
        code, text = found.get("code"), found.get("message")
        if type(code) is int and type(text) is str:
            return PatchouliRpcError(method, code, text, found.get("data"))
    return None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _words(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
