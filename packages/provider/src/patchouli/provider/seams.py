"""The only doors to time and chance. Everything else receives one of these."""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for records and deadlines, monotonic time for durations."""

    def unix_ms(self) -> int:
        """Return Unix milliseconds, which may jump in either direction."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...


class IdSource(Protocol):
    """Fresh identifiers."""

    def entity_id(self) -> str:
        """Return a random lower-case UUID (version 4)."""
        ...

    def version_id(self) -> str:
        """Return a lower-case UUID that no other call has returned or will return."""
        ...


class SystemClock:
    """The clock of the machine."""

    def unix_ms(self) -> int:
        """Return the Unix milliseconds of the system clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the seconds of the monotonic system clock."""
        return time.monotonic()


class SystemIds:
    """Identifiers from the operating system's random source.

    Version ids are UUIDs of version 7: their first 60 bits are the time and a counter, so that ids
    made by one process ascend and an index over them grows at its end instead of everywhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def entity_id(self) -> str:
        """Return a random UUID of version 4."""
        return str(uuid.uuid4())  # noqa: TID251 - this is the door

    def version_id(self) -> str:
        """Return a UUID of version 7 greater than every earlier one of this object."""
        now = time.time_ns() // 1_000_000 << 12
        with self._lock:
            # A clock that stands still or goes back must not repeat or reorder ids.
            self._last = stamp = max(now, self._last + 1)
        tail = os.urandom(8).hex()
        head = f"{stamp:015x}"
        variant = "89ab"[int(tail[0], 16) & 3]
        return f"{head[:8]}-{head[8:12]}-7{head[12:]}-{variant}{tail[1:4]}-{tail[4:]}"
