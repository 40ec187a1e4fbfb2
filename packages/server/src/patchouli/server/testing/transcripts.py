"""Exchanges as text files, played against a daemon over its socket or without one.

A line is one of

    # a comment; `# clauses: a b` names the clauses that the exchange shows
    > text          send it as it is, with a line feed
    x> 7b7d         send these bytes, in hexadecimal, with a line feed
    < json          receive a line that is this JSON

`name> ` and `name< ` do the same on a further connection, which begins with its first line.
`"$word"` in what is received binds a string, later ones must be equal and what is sent has it in
its place; `"$any"` is any value, `{"$set": [...]}` are these strings in any order. Numbers are
compared with their type: 1 is not 1.0.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from patchouli.protocol import LineDecoder
from patchouli.server.testing.peer import WAIT_SECONDS, Peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from patchouli.protocol import JsonValue
    from patchouli.server.lifecycle import Daemon

_LINE: Final = re.compile(r"(?P<peer>[a-z]*)(?P<way>[<>]) (?P<text>.*)")
_NAME: Final = re.compile(r"\$([a-z][a-z0-9_]*)")


class Talker(Protocol):
    """One end of a connection."""

    def send_bytes(self, data: bytes) -> None:
        """Send `data` as it is."""
        ...

    async def receive(self) -> dict[str, Any]:
        """Return the next line."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


@dataclass(frozen=True, slots=True)
class Transcript:
    """A file: its steps with their line numbers, and the clauses that it shows."""

    name: str
    clauses: tuple[str, ...]
    steps: tuple[tuple[int, str, str, str], ...]

    async def play(self, connect: Callable[[], Awaitable[Talker]]) -> None:
        """Send and receive every line in order.

        Raises:
            AssertionError: What was received is something else; says where and what.
        """
        bound: dict[str, str] = {}
        talkers: dict[str, Talker] = {}
        try:
            for number, peer, way, text in self.steps:
                if peer not in talkers:
                    talkers[peer] = await connect()
                if way == "<":
                    received = await talkers[peer].receive()
                    where = _difference(json.loads(text), received, bound)
                    if where is not None:
                        raise AssertionError(
                            f"{self.name}:{number}: {where}\n  expected {text}\n"
                            f"  received {json.dumps(received, ensure_ascii=False)}"
                        )
                else:
                    talkers[peer].send_bytes(_sent(way, text, bound) + b"\n")
        finally:
            for talker in talkers.values():
                await talker.close()


def read_transcript(path: Path) -> Transcript:
    """Return the transcript in the file `path`."""
    clauses: list[str] = []
    steps: list[tuple[int, str, str, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("# clauses:"):
            clauses += line.removeprefix("# clauses:").split()
        elif line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"{path.name}:{number}: this is no line of a transcript")
            peer, way = match["peer"], match["way"]
            if peer == "x" and way == ">":
                peer, way = "", "x>"
            steps.append((number, peer, way, match["text"]))
    return Transcript(path.stem, tuple(clauses), tuple(steps))


def _sent(way: str, text: str, bound: dict[str, str]) -> bytes:
    if way == "x>":
        return bytes.fromhex(text)
    return _NAME.sub(lambda match: bound.get(match[1], match[0]), text).encode()


def _difference(expected: JsonValue, received: JsonValue, bound: dict[str, str]) -> str | None:
    """Return where `received` is not as expected, or None; bind names on the way."""
    if expected == "$any":
        return None
    if isinstance(expected, str) and (match := _NAME.fullmatch(expected)):
        if not isinstance(received, str):
            return f"no string: {received!r}"
        wanted = bound.setdefault(match[1], received)
        return None if received == wanted else f"not {wanted!r}"
    if isinstance(expected, dict) and (names := expected.get("$set")) is not None:
        found = sorted(map(str, received)) if isinstance(received, list) else None
        listed = sorted(bound[str(name)[1:]] for name in names) if isinstance(names, list) else ()
        return None if found == listed else f"another set: {received!r}"
    if isinstance(expected, dict) and isinstance(received, dict):
        if expected.keys() != received.keys():
            return f"other members: {sorted(received)}"
        pairs = [(f".{name}", expected[name], received[name]) for name in expected]
    elif isinstance(expected, list) and isinstance(received, list):
        if len(expected) != len(received):
            return f"{len(received)} items"
        pairs = [(f"[{i}]", expected[i], received[i]) for i in range(len(expected))]
    else:
        is_same = type(expected) is type(received) and expected == received
        return None if is_same else f"not equal: {received!r}"
    for place, one, other in pairs:
        where = _difference(one, other, bound)
        if where is not None:
            return f"{place} {where}"
    return None


class InProcessPeer:
    """A connection to a daemon's dispatcher without a socket between them."""

    def __init__(self, daemon: Daemon) -> None:
        """Open a session of `daemon`."""
        self._daemon: Final = daemon
        self._outlet: Final = _Lines()
        self._decoder: Final = LineDecoder()
        self._frames: Final[asyncio.Queue[Any]] = asyncio.Queue()
        self._serving: Final = asyncio.ensure_future(self._serve())

    def send_bytes(self, data: bytes) -> None:
        """Send `data` as it is."""
        for frame in self._decoder.feed(data):
            self._frames.put_nowait(frame)

    async def receive(self) -> dict[str, Any]:
        """Return the next line."""
        return json.loads(await asyncio.wait_for(self._outlet.lines.get(), WAIT_SECONDS))

    async def close(self) -> None:
        """End the connection."""
        self._serving.cancel()
        await asyncio.wait([self._serving])

    async def _serve(self) -> None:
        session = self._daemon.open_session(self._outlet)
        try:
            while True:
                begun = self._daemon.dispatcher.begin(session, await self._frames.get())
                self._outlet.send(begun if isinstance(begun, bytes) else await begun[0])
        finally:
            session.subscriptions.close()


class _Lines:
    """An outlet without bounds."""

    def __init__(self) -> None:
        self.lines: Final[asyncio.Queue[bytes]] = asyncio.Queue()

    @property
    def has_room(self) -> bool:
        return True

    async def wait_for_room(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            self.lines.put_nowait(line)

    def close(self) -> None:
        raise AssertionError("a subscription of this test has failed")


async def over_socket(endpoint: Path) -> Talker:
    """Return a connection to the daemon at `endpoint`; a transcript shakes hands itself."""
    return await Peer.connect(endpoint, capabilities=None)
