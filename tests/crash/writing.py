"""Many connections that write at once: creates, updates, conflicting updates, deletes.

Every peer has entities of its own, each with one mutation under way at most, and shares some with
all others, for which they race. It keeps a few requests under way, reads now and then, and looks
for what it just wrote, which must be found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
from patchouli.protocol import CREATE, DELETE, HANDSHAKE, READ, RETRIEVE, UPDATE

from tests.crash.account import TYPES, USERS, Key, meta_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random  # noqa: TID251 - what a seeded one is

    from tests.crash.account import Account, Attempt

PEERS: Final = 64
SHARED: Final = 6  # entities of each scope that all its peers write to
_IN_FLIGHT: Final = 4
_HELLO: Final[dict[str, Any]] = {
    "client": {"name": "writer", "version": "1", "instance_id": "w"},
    "protocol_versions": [1],
    "capabilities": [],
}

OVERLOADED: Final = -32009

Answer = dict[str, Any]


class _Own:
    """An entity of one peer, as that peer knows it."""

    __slots__ = ("former", "is_busy", "key", "value", "versions")

    def __init__(self, key: Key) -> None:
        self.key: Final = key
        self.is_busy = False
        self.versions: tuple[str, ...] = ()
        self.former: tuple[str, ...] = ()
        self.value: dict[str, Any] | None = None


class Writer(asyncio.Protocol):
    """One writing connection, until it is lost."""

    def __init__(
        self, number: int, *, account: Account, chance: Random, on_told: Callable[[], None]
    ) -> None:
        self._peer: Final = account.new_peer()
        self._account: Final = account
        self._chance: Final = chance
        self._on_told: Final = on_told
        self._user: Final = USERS[number % len(USERS)]
        self._own: Final[list[_Own]] = []
        self._shared: Final[dict[Key, tuple[str, ...]]] = {}
        self._pending: Final[dict[int, Callable[[Answer], None]]] = {}
        self._rest = b""
        self._count = 0
        self._is_full = False
        self._transport: asyncio.Transport | None = None
        self.is_stopped = False
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands; the answer to that starts the writing."""
        self._transport = cast("asyncio.Transport", transport)
        self._send(HANDSHAKE, _HELLO, lambda _: None)

    def data_received(self, data: bytes) -> None:
        """Take answers and send what follows; half a line at the end is no answer."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = orjson.loads(line)
            self._pending.pop(answer["id"])(answer)
        if self.is_stopped:
            self._end_if_done()
            return
        while len(self._pending) < _IN_FLIGHT:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; what went wrong here, and not on the other side, goes to who waits for the end."""
        self._transport = None
        if exc is None or isinstance(exc, OSError):
            self.lost.set_result(None)
        else:
            self.lost.set_exception(exc)

    def stop(self) -> None:
        """Send nothing more and close when everything was answered."""
        self.is_stopped = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._pending and self._transport is not None:
            self._transport.close()

    def _send(self, method: str, params: dict[str, Any], then: Callable[[Answer], None]) -> None:
        if self._transport is None:
            return
        self._count += 1
        self._pending[self._count] = then
        request = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        self._transport.write(orjson.dumps(request) + b"\n")

    def _next(self) -> None:
        draw = self._chance.random()
        free = [own for own in self._own[-40:] if not own.is_busy and own.versions]
        if draw < 0.45 or not free:
            self._create()
        elif draw < 0.65:
            self._write_shared()
        elif draw < 0.7:
            self._read_shared()
        else:
            self._write_own(self._chance.choice(free))

    # Entities of this peer

    def _create(self) -> None:
        name = f"e-{self._peer}-{len(self._own)}"
        own = _Own(Key(self._user, self._chance.choice(TYPES), name))
        self._own.append(own)
        attempt = self._account.attempt(self._peer, CREATE, own.key)
        self._mutate_own(own, attempt, _new_value(attempt), base=())

    def _write_own(self, own: _Own) -> None:
        draw = self._chance.random()
        if draw < 0.15:
            attempt = self._account.attempt(self._peer, DELETE, own.key, own.versions)
            self._mutate_own(own, attempt, None, base=own.versions)
        elif draw < 0.35 and own.former:
            attempt = self._account.attempt(self._peer, UPDATE, own.key, own.former)
            strategy = self._chance.choice(("mvcc", "mvcc", "merge", "reject"))
            value = _edited(own.value, attempt)
            self._mutate_own(own, attempt, value, base=own.former, conflict_strategy=strategy)
        else:
            attempt = self._account.attempt(self._peer, UPDATE, own.key, own.versions)
            value = _new_value(attempt) if draw < 0.7 else _edited(own.value, attempt)
            self._mutate_own(own, attempt, value, base=own.versions)

    def _mutate_own(
        self, own: _Own, attempt: Attempt, value: Any, *, base: tuple[str, ...], **meta: Any
    ) -> None:
        def then(answer: Answer) -> None:
            self._settle(attempt, answer)
            own.is_busy = False
            if attempt.version is None:
                return
            is_beside = bool(own.versions) and base != own.versions
            own.former = base
            own.versions = (*own.versions, attempt.version) if is_beside else (attempt.version,)
            own.value = attempt.value
            if attempt.value is None:
                own.versions = ()  # it is left alone from now on
            # Where both sides rewrote the same place, a merge mixes the characters of their words.
            elif attempt.word in attempt.value["text"] and self._chance.random() < 0.05:
                self._look_for(own, attempt)

        own.is_busy = True
        self._mutate(attempt, value, then, **meta)

    def _look_for(self, own: _Own, attempt: Attempt) -> None:
        def then(answer: Answer) -> None:
            own.is_busy = False
            if "error" in answer and answer["error"]["code"] == OVERLOADED:
                return  # it stops
            hits = answer["result"]["data"]["hits"]
            found = [hit["variants"][0]["ref"]["id"] for hit in hits]
            if found != [own.key.id]:
                raise AssertionError(f"{attempt.word} of {own.key} is found in {found}")

        own.is_busy = True
        query = orjson.dumps({"text": attempt.word}).decode()
        self._send(RETRIEVE, {"meta": meta_of(self._user), "data": {"query": query}}, then)

    # Entities of all

    def _write_shared(self) -> None:
        key = self._shared_key()
        base = self._shared.get(key, ())
        draw = self._chance.random()
        method = CREATE if not base else UPDATE if draw < 0.9 else DELETE
        attempt = self._account.attempt(self._peer, method, key, base)

        def then(answer: Answer) -> None:
            self._settle(attempt, answer)
            if attempt.version is not None:
                self._shared[key] = (attempt.version,)
            else:
                self._look_at(key)

        strategy = self._chance.choice(("merge", "merge", "mvcc", "reject"))
        value = None if method == DELETE else {"text": f"common {attempt.word}"}
        self._mutate(attempt, value, then, conflict_strategy=strategy)

    def _read_shared(self) -> None:
        self._look_at(self._shared_key())

    def _look_at(self, key: Key) -> None:
        def then(answer: Answer) -> None:
            self._account.see(key, answer)
            if "result" in answer:
                variants = answer["result"]["data"]["variants"]
                self._shared[key] = tuple(variant["version"] for variant in variants)

        data = {"ref": {"type": key.type, "id": key.id}}
        self._send(READ, {"meta": meta_of(self._user), "data": data}, then)

    def _shared_key(self) -> Key:
        return Key(self._user, "memo", f"shared-{self._chance.randrange(SHARED)}")

    # Requests

    def _mutate(
        self, attempt: Attempt, value: Any, then: Callable[[Answer], None], **meta: Any
    ) -> None:
        data: dict[str, Any]
        if attempt.method == CREATE:
            data = {"type": attempt.key.type, "id": attempt.key.id, "value": value}
        else:
            data = {"ref": {"type": attempt.key.type, "id": attempt.key.id}}
            meta["base_versions"] = attempt.bases
            if attempt.method == UPDATE:
                data["value"] = value
        whole = meta_of(self._user, attempt=attempt.number, **meta)
        self._send(attempt.method, {"meta": whole, "data": data}, then)

    def _settle(self, attempt: Attempt, answer: Answer) -> None:
        self._account.settle(attempt, answer)
        self._on_told()


async def connect_writers(
    endpoint: Path, account: Account, chance: Random, *, on_told: Callable[[], None]
) -> list[Writer]:
    """Return writers that have begun; `on_told` is called at every answer to a mutation."""
    loop = asyncio.get_running_loop()
    writers: list[Writer] = []
    for number in range(PEERS):
        writer = Writer(
            number, account=account, chance=type(chance)(chance.random()), on_told=on_told
        )
        await loop.create_unix_connection(lambda writer=writer: writer, str(endpoint))
        writers.append(writer)
    return writers


def _new_value(attempt: Attempt) -> dict[str, Any]:
    return {"text": f"a leaf {attempt.word} falls", "tag": attempt.word}


def _edited(value: dict[str, Any] | None, attempt: Attempt) -> dict[str, Any]:
    """Return `value` with one more word in the text, which can be merged."""
    if value is None:
        return _new_value(attempt)
    return {**value, "text": f"{value['text']} {attempt.word}"}
