"""Newline-delimited JSON without any I/O: bytes of a stream to lines, messages to bytes.

A decoder is in one of two states. *Collecting*: it holds the beginning of a line, never more than
the limit. *Discarding*: the line has passed the limit, was reported, and is dropped up to its line
feed; nothing is held. Whether a line is JSON is not its business.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from patchouli.protocol.constants import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.protocol.jsonvalue import JsonValue

_BLANKS = b" \t\r"  # JSON white space that can stand inside a line
_BLANK = b"!"  # orders after every line that begins with one of them, before every JSON value


class Oversized(NamedTuple):
    """Stands in the place of a line that was longer than the limit and is not kept."""

    limit_bytes: int


FrameEvent: TypeAlias = bytes | Oversized


class LineDecoder:
    """Cuts a stream into lines; holds at most `limit_bytes` and looks at each byte once.

    Not for use by several threads at a time.
    """

    __slots__ = ("_discarding", "_held", "_limit_bytes")

    def __init__(self, limit_bytes: int = MAX_REQUEST_BYTES) -> None:
        if limit_bytes < 1:
            raise ValueError("limit_bytes must be at least 1")
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._discarding = False

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished line that are held at the moment."""
        return len(self._held)

    def feed(self, data: bytes) -> list[FrameEvent]:
        """Return what `data` completes, in the order of the stream.

        A line comes without its line feed; a carriage return before it is still there and has
        counted. Blank lines are left out. An over-long line is reported once, as soon as it has
        passed the limit, and the stream goes on behind its line feed.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        events: list[FrameEvent] = []
        if lines:
            if self._discarding:
                self._discarding = False
                del lines[0]
            elif self._held:
                lines[0] = self._take() + lines[0]
            self._collect(lines, events)
        if rest and not self._discarding:
            if len(self._held) + len(rest) > self._limit_bytes:
                self._discarding = True
                self._held.clear()
                events.append(Oversized(self._limit_bytes))
            else:
                self._held += rest
        return events

    def eof(self) -> list[FrameEvent]:
        """Return the last line, which may lack its line feed; the decoder is then as new."""
        events: list[FrameEvent] = []
        self._collect([self._take()], events)
        self._discarding = False
        return events

    def _collect(self, lines: list[bytes], events: list[FrameEvent]) -> None:
        limit_bytes = self._limit_bytes
        for line in lines:
            if len(line) > limit_bytes:
                events.append(Oversized(limit_bytes))
            elif line > _BLANK or line.strip(_BLANKS):
                events.append(line)

    def _take(self) -> bytes:
        held = bytes(self._held)
        self._held.clear()
        return held


def encode_line(message: Mapping[str, JsonValue]) -> bytes:
    """Return `message` as one line of UTF-8 with its line feed.

    Raises:
        ValueError: It holds NaN, an infinity or a lone surrogate, which JSON cannot say.
        TypeError: It holds something that is no JSON value.
    """
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"
