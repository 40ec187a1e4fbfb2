"""Signals: how one is told that a result is no longer wanted.

A signal fires once, with an exception as its reason, and is separate from the cancellation of
tasks: who is told decides when and how to end. A reason is never `asyncio.CancelledError`, which
task groups swallow. Signals belong to one event loop and are not thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from patchouli.harness.errors import Aborted

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER: Final = logging.getLogger("patchouli.harness")  # noqa: TID251 - no dependency, so no structlog


class CancelSignal(Protocol):
    """The side of whoever is told."""

    @property
    def cancelled(self) -> bool:
        """Whether the signal has fired."""
        ...

    @property
    def reason(self) -> Exception | None:
        """Why it fired; None until then and never afterwards."""
        ...

    def raise_if_cancelled(self) -> None:
        """Raise the reason if the signal has fired."""
        ...

    async def wait(self) -> Exception:
        """Return the reason as soon as the signal has fired."""
        ...

    def add_callback(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Have `fn` called once, when the signal fires or now if it has; return what forgets it."""
        ...


class CancelSource:
    """The side of whoever decides: fires `signal`, once.

    Attributes:
        signal: What is handed to those who are to be told.
    """

    __slots__ = ("_signal", "signal")

    signal: CancelSignal

    def __init__(self) -> None:
        self._signal = _Signal()
        self.signal = self._signal

    def cancel(self, reason: Exception | None = None) -> None:
        """Fire the signal with `reason`, or with `Aborted`; the first reason stays.

        Callbacks run here, in the order in which they were added. One that raises is logged and
        keeps no other from running, unless it ends the process.

        Raises:
            TypeError: `reason` is no `Exception`, for instance a `CancelledError`.
        """
        if reason is not None and not isinstance(reason, Exception):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise TypeError(f"a reason must be an Exception, not {type(reason).__name__}")
        self._signal.fire(Aborted() if reason is None else reason)


class _Signal:
    __slots__ = ("_callbacks", "_reason")

    def __init__(self) -> None:
        self._reason: Exception | None = None
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def cancelled(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> Exception | None:
        return self._reason

    def raise_if_cancelled(self) -> None:
        if self._reason is not None:
            raise self._reason

    async def wait(self) -> Exception:
        if self._reason is None:
            fired = asyncio.get_running_loop().create_future()

            def wake() -> None:
                if not fired.done():
                    fired.set_result(None)

            forget = self.add_callback(wake)
            try:
                await fired
            finally:
                forget()
        assert self._reason is not None  # noqa: S101 - nothing else wakes the wait
        return self._reason

    def add_callback(self, fn: Callable[[], None]) -> Callable[[], None]:
        if not callable(fn):
            raise TypeError(f"a callback must be callable, not {fn!r}")
        if self._reason is not None:
            _call(fn)
            return _forget_nothing
        entry = object()
        self._callbacks[entry] = fn

        def forget() -> None:
            self._callbacks.pop(entry, None)

        return forget

    def fire(self, reason: Exception) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        for entry in [*self._callbacks]:
            if (fn := self._callbacks.pop(entry, None)) is not None:  # unless another forgot it
                _call(fn)


def _forget_nothing() -> None:
    pass


def _call(fn: Callable[[], None]) -> None:
    try:
        fn()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        _LOGGER.exception("a callback of a cancel signal failed")
