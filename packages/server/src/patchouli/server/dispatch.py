"""From a line to its answer: the method table at work.

The order of checks is that of SPEC `envelope.order`: line, JSON, envelope, handshake, method,
capability, params, deadline, operation. What comes before the operation needs no waiting and is
done at once by `begin`; the operation is one coroutine that ends with the bytes of the answer and
never raises, whatever happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from patchouli.protocol import (
    HANDSHAKE,
    METHODS,
    ErrorCode,
    Oversized,
    RpcError,
    parse_deadline,
    read_request,
)
from patchouli.server.encoding import error_line, result_line
from patchouli.server.errors import INTERNAL, LOGGED, to_wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from patchouli.protocol import FrameEvent, Method, RequestId
    from patchouli.provider import Clock
    from patchouli.server.logs import Log
    from patchouli.server.session import Session

SILENT_SECONDS: Final = 10.0  # between two log lines about the same trouble of the store
_OVERSIZED: Final = error_line(
    None, RpcError(ErrorCode.NOT_A_REQUEST, "the line is longer than a request may be")
)
_NOTHING: Final[frozenset[str]] = frozenset()
_TOO_LARGE: Final = RpcError(
    ErrorCode.OVERLOADED, "the answer is larger than a response may be", retryable=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a method does.

    Attributes:
        call: Gets the session, the parsed params and the deadline.
        encode: Makes the `result` of the answer, as JSON, of what the call ends with.
        is_overtakable: It is an independent read that may take long: requests behind it on the
            same connection do not wait for it.
        is_immediate: It seldom has to wait, so it is worth trying without a task. Until its first
            wait it must not need one, which rules out `asyncio.timeout` and task groups there.
        count_begun: For calls of which several may be under way at once on one connection, in the
            order of their lines: how many were begun so that nothing behind them can come before
            them. One that has not counted when it first waits holds up those behind it.
    """

    call: Callable[[Session, Any, int | None], Awaitable[Any]]
    encode: Callable[[Any], bytes] = bytes
    is_overtakable: bool = False
    is_immediate: bool = False
    count_begun: Callable[[], int] | None = None


# An answer that is known at once, or the coroutine that ends with it, and its operation.
Begun: TypeAlias = "bytes | tuple[Coroutine[Any, Any, bytes], Operation]"


class Dispatcher:
    """Answers the lines of all connections with the operations of one daemon."""

    def __init__(
        self,
        operations: Mapping[str, Operation],
        *,
        clock: Clock,
        log: Log,
        max_response_bytes: int,
    ) -> None:
        self._rows: Final[dict[str, tuple[Method[Any], Operation]]] = {
            name: (METHODS[name], operation) for name, operation in operations.items()
        }
        self._clock: Final = clock
        self._log: Final = log
        self._is_debugging: Final = log.is_debugging
        self._max_response_bytes: Final = max_response_bytes
        self._silent_until: Final[dict[type[Exception], float]] = {}
        self.is_stopping = False

    def begin(self, session: Session, frame: FrameEvent) -> Begun:
        """Return the answer where it is known at once, else what ends with it, and its operation.

        The coroutine has not been started.
        """
        if isinstance(frame, Oversized):
            return _OVERSIZED
        request_id: RequestId | None = None
        try:
            request_id, name, params = read_request(frame)
            method, operation = self._row(session, name)
            parsed = method.parse_params(params)
            deadline = None if name == HANDSHAKE else parse_deadline(parsed.meta)
            if deadline is not None and self._clock.unix_ms() >= deadline:
                raise RpcError(ErrorCode.DEADLINE_EXCEEDED, "the deadline has passed already")
            if self.is_stopping:
                raise RpcError(ErrorCode.OVERLOADED, "the daemon is stopping", retryable=True)
        except RpcError as error:
            return error_line(error.request_id if request_id is None else request_id, error)
        except Exception as error:
            self._log.error("request.failed", error=error, request=type(frame).__name__)
            return error_line(request_id, INTERNAL)
        return self._answer(operation, session, parsed, deadline, request_id), operation

    def _row(self, session: Session, name: str) -> tuple[Method[Any], Operation]:
        negotiated = session.capabilities
        if negotiated is None:
            if name != HANDSHAKE:
                raise RpcError(
                    ErrorCode.UNAUTHENTICATED, f"the first request of a connection is {HANDSHAKE}"
                )
            negotiated = _NOTHING
        row = self._rows.get(name)
        if row is None:
            raise RpcError(ErrorCode.UNKNOWN_METHOD, "there is no such method here")
        capability = row[0].capability
        if capability is not None and capability not in negotiated:
            raise RpcError(
                ErrorCode.UNSUPPORTED_CAPABILITY,
                f"the handshake of this connection did not agree on {capability}",
            )
        return row

    async def _answer(
        self,
        operation: Operation,
        session: Session,
        params: object,
        deadline: int | None,
        request_id: RequestId,
    ) -> bytes:
        try:
            result = operation.encode(await operation.call(session, params, deadline))
        except Exception as error:
            refusal = to_wire(error)
            if self._is_debugging:
                self._log.debug(
                    "request.refused", request=type(params).__name__, error=type(error).__name__
                )
            if refusal is None:
                self._log.error("request.failed", error=error, request=type(params).__name__)
            elif isinstance(error, LOGGED):
                self._report(error)
            return error_line(request_id, refusal or INTERNAL)
        if len(result) > self._max_response_bytes:
            return error_line(request_id, _TOO_LARGE)
        if self._is_debugging:
            self._log.debug("request.answered", request=type(params).__name__, bytes=len(result))
        return result_line(request_id, result)

    def _report(self, error: Exception) -> None:
        """Tell the operator of a store in trouble, once in a while and not for each request."""
        now = self._clock.monotonic()
        if now >= self._silent_until.get(type(error), now):
            self._silent_until[type(error)] = now + SILENT_SECONDS
            self._log.error("store.failed", kind=type(error).__name__, detail=str(error))
