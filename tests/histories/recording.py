"""Clients that write down what they ask for and what they are told.

All clients of a recorder share one clock, which grows with everything sent and received. They run
in one event loop, so the numbers are the order of what happened on this side of the sockets, and an
operation that was answered before another one was sent has a smaller number there as well.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from patchouli.backend import read_resource
from patchouli.protocol import CHANGE_EVENT, CREATE, DELETE, READ, RETRIEVE, SUBSCRIBE, UPDATE
from patchouli.server.home import create_home
from patchouli.server.testing import Peer

from tests.histories.history import (
    DELETED,
    Accepted,
    Change,
    Conflict,
    Entity,
    NotFound,
    Operation,
    Outcome,
    Refused,
    Shown,
)
from tests.histories.timeline import Look, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.histories.history import Kind, Strategy

WORKSPACE: Final = "atlas"
METHODS: Final = {"create": CREATE, "read": READ, "update": UPDATE, "delete": DELETE}
WAIT_SECONDS: Final = 20.0
NOT_FOUND: Final = -32003
VERSION_CONFLICT: Final = -32004
OVERLOADED: Final = -32009  # which is also the answer where it is open what happened


def create_recorded_home(root: Path) -> Path:
    """Make `root` a home of memos and notes, whose changes name the operation, and return it.

    A memo belongs to a work unit where the request names one; an entry does, too, and each of its
    mutations has to name its call; a note has sessions and causal tokens. All take any value and
    merge their `text`.
    """
    create_home(root)
    policy: dict[str, Any] = json.loads(read_resource("patchouli.default.json"))
    fields = policy["meta_fields"]
    text = {"type": "string", "minLength": 1}
    fields["operation"] = {"pointer": "/operation", "schema": {"type": "integer"}}
    fields["session"] = {"pointer": "/session", "schema": text}
    fields["causal_token"] = {"pointer": "/causal_token", "schema": text}
    memo: dict[str, Any] = policy["entity_types"]["knowledge"]
    memo["value_schema"] = True
    merge = [{"path": "/text", "strategy": "automerge", "group_by": []}]
    for behavior in (memo["fallback"], *(rule["behavior"] for rule in memo["rules"])):
        behavior["conflict"]["merge"] = merge
    note = json.loads(json.dumps({**memo, "rules": []}))
    note["fallback"]["consistency"] |= {
        "acquire": {
            "allow_sources": ["authority", "replica"],
            "requirements": [{"kind": "causal_after", "token": "causal_token", "optional": True}],
        },
        "sessions": [
            {"key_by": ["session"], "guarantees": ["monotonic_reads", "read_your_writes"]}
        ],
    }
    entry = json.loads(json.dumps(memo))
    fields["call"] = {"pointer": "/call", "schema": text}
    for behavior in (entry["fallback"], *(rule["behavior"] for rule in entry["rules"])):
        behavior["idempotency"] = {"mode": "keyed", "key_by": ["call"]}
    policy["entity_types"] = {"entry": entry, "memo": memo, "note": note}
    (root / "config.json").write_text(json.dumps(policy), encoding="utf-8")
    return root


class Recorder:
    """The history of all clients of a test."""

    def __init__(self, on_answer: Callable[[], None] = lambda: None) -> None:
        """Begin; `on_answer` is called whenever an answer was written down."""
        self._on_answer: Final = on_answer
        self._clock = count(1)
        self._clients = count(1)
        self._numbers = count(1)
        self._operations: Final[dict[int, Operation]] = {}
        self._events: Final[list[tuple[str, int]]] = []
        self._lists: Final[list[Look]] = []
        self._answers = 0
        self._enough: Final = asyncio.Event()
        self._awaited: int | None = None

    @property
    def operations(self) -> list[Operation]:
        """Everything that was asked for."""
        return list(self._operations.values())

    def copy(self) -> Recorder:
        """Return a recorder that goes on from here with a history of its own."""
        other = Recorder()
        other._operations.update(self._operations)
        other._events.extend(self._events)
        other._lists.extend(self._lists)
        start = self.tick()
        other._clock = count(start)
        other._clients = count(10_000 + start)
        other._numbers = count(len(self._operations) + 1)
        return other

    def tick(self) -> int:
        """Return the next number of the clock."""
        return next(self._clock)

    async def connect(self, endpoint: Path, user: str = "mira") -> Client:
        """Return a client of its own."""
        peer = await Peer.connect(endpoint, capabilities=["subscriptions"])
        return Client(self, next(self._clients), peer, user)

    def begin(self, client: int, kind: Kind, entity: Entity, **more: Any) -> Operation:
        """Write down that an operation is about to be sent."""
        number = next(self._numbers)
        operation = Operation(
            number=number, client=client, kind=kind, entity=entity, invoked=self.tick(), **more
        )
        self._operations[number] = operation
        return operation

    def end(self, operation: Operation, answer: dict[str, Any]) -> Operation:
        """Write down the answer to an operation."""
        self._answers += 1
        if self._answers == self._awaited:
            self._enough.set()
        outcome = _outcome(operation, answer)
        if outcome is not None:
            token = answer.get("result", {}).get("meta", {}).get("causal_token")
            operation = replace(operation, responded=self.tick(), outcome=outcome, token=token)
            self._operations[operation.number] = operation
        self._on_answer()
        return operation

    async def wait_for(self, answers: int) -> None:
        """Return when so many further answers have come."""
        self._awaited = self._answers + answers
        self._enough.clear()
        await asyncio.wait_for(self._enough.wait(), WAIT_SECONDS)

    def see_event(self, cursor: str) -> None:
        """Write down that a subscriber got an event."""
        self._events.append((cursor, self.tick()))

    def see_list(self, look: Look) -> None:
        """Write down what a listing showed."""
        self._lists.append(look)

    def of(self, user: str, *, type_: str = "memo") -> list[Operation]:
        """Return what was asked for of one type in one scope."""
        return [o for o in self.operations if o.entity.user == user and o.entity.type == type_]

    def looks(self, changes: Sequence[Change]) -> list[Look]:
        """Return what listings and events showed of a scope.

        An event may be late, so it says nothing about what was before it; from then on nobody may
        see the scope as it was before that change.
        """
        moments = Timeline(changes).moment_of_cursor
        return self._lists + [
            Look(what=f"event {cursor}", invoked=0, responded=when, exactly=moments[cursor])
            for cursor, when in self._events
            if cursor in moments
        ]


class Client:
    """One connection, which asks for one thing after the other."""

    def __init__(self, recorder: Recorder, number: int, peer: Peer, user: str) -> None:
        self._recorder: Final = recorder
        self.number: Final = number
        self._user: Final = user
        self.peer: Final = peer

    async def close(self) -> None:
        """End the connection."""
        await self.peer.close()

    def entity(self, name: str, type_: str = "memo") -> Entity:
        """Return an entity of the client's scope."""
        return Entity(self._user, type_, name)

    async def create(self, name: str, value: Any, **more: Any) -> Operation:
        """Create an entity."""
        return await self._do("create", name, value=value, **more)

    async def read(self, name: str, **more: Any) -> Operation:
        """Read an entity."""
        return await self._do("read", name, **more)

    async def update(self, name: str, bases: Iterable[str], value: Any, **more: Any) -> Operation:
        """Update an entity."""
        return await self._do("update", name, bases=frozenset(bases), value=value, **more)

    async def delete(self, name: str, bases: Iterable[str], **more: Any) -> Operation:
        """Delete an entity."""
        return await self._do("delete", name, bases=frozenset(bases), **more)

    async def _do(
        self,
        kind: Kind,
        name: str,
        *,
        type_: str = "memo",
        bases: frozenset[str] = frozenset(),
        value: Any = None,
        strategy: Strategy = "merge",
        unit: str | None = None,
        is_closing: bool = False,
        session: str | None = None,
        after: tuple[str, ...] = (),
        call: str | None = None,
    ) -> Operation:
        entity = self.entity(name, type_)
        operation = self._recorder.begin(
            self.number,
            kind,
            entity,
            bases=bases,
            value=value,
            strategy=strategy,
            unit=unit,
            is_closing=is_closing,
            session=session,
            after=after,
            call=call,
        )
        answer = await self.peer.call(METHODS[kind], _params(operation))
        return self._recorder.end(operation, answer)

    async def repeat(self, operation: Operation) -> Operation:
        """Send an operation again, and return what it is told now.

        One that had no answer gets this one. The history does not change otherwise: the repetition
        of what was answered is no operation.
        """
        answer = await self.peer.call(METHODS[operation.kind], _params(operation))
        if operation.outcome is None:
            return self._recorder.end(operation, answer)
        token = answer.get("result", {}).get("meta", {}).get("causal_token")
        return replace(operation, outcome=_outcome(operation, answer), token=token)

    async def list(self, type_: str = "memo") -> None:
        """List the entities of the scope, up to the limit of one page."""
        invoked = self._recorder.tick()
        query = json.dumps({"order": "id_asc"})
        data = {"query": query, "types": [type_], "limit": 100}
        result = await self.peer.result(RETRIEVE, {"meta": _scope(self._user), "data": data})
        seen = {
            Entity(self._user, type_, hit["variants"][0]["ref"]["id"]): frozenset(
                variant["version"] for variant in hit["variants"]
            )
            for hit in result["data"]["hits"]
        }
        responded = self._recorder.tick()
        what = f"client {self.number} list"
        self._recorder.see_list(Look(what=what, invoked=invoked, responded=responded, seen=seen))

    async def follow(self) -> None:
        """Write down the events of the scope as they come, until the connection ends."""
        await self.peer.result(SUBSCRIBE, {"meta": _scope(self._user), "data": {}})
        while True:
            try:
                message = await self.peer.notification()
            except (EOFError, ConnectionError):
                return
            self._recorder.see_event(message["params"]["data"]["change"]["cursor"])


async def read_changes(endpoint: Path, recorder: Recorder, user: str = "mira") -> list[Change]:
    """Return the change log of a scope up to a memo that is created for its end."""
    client = await recorder.connect(endpoint, user)
    try:
        end = await client.create(f"end-{recorder.tick()}", "the end")
        begin = {"meta": _scope(user), "data": {"after_cursor": "0"}}
        await client.peer.result(SUBSCRIBE, begin)
        changes: list[Change] = []
        while not changes or changes[-1].operation != end.number:
            message = await client.peer.notification()
            if message["method"] == CHANGE_EVENT:
                changes.append(_change(user, message["params"]))
    finally:
        await client.close()
    return changes


def _change(user: str, params: dict[str, Any]) -> Change:
    meta, change = params["meta"], params["data"]["change"]
    return Change(
        cursor=change["cursor"],
        entity=Entity(user, change["ref"]["type"], change["ref"]["id"]),
        kind=change["kind"],
        heads=frozenset(change["head_versions"]),
        operation=meta["operation"],
        unit=meta.get("transaction_id"),
        token=meta.get("causal_token"),
    )


def _scope(user: str) -> dict[str, Any]:
    return {"workspace_id": WORKSPACE, "user_id": user}


def _params(operation: Operation) -> dict[str, Any]:
    ref = {"type": operation.entity.type, "id": operation.entity.id}
    data: dict[str, Any] = ref if operation.kind == "create" else {"ref": ref}
    if operation.kind in {"create", "update"}:
        data = {**data, "value": operation.value}
    meta = _scope(operation.entity.user)
    if operation.kind != "read":
        meta |= {"operation": operation.number, "conflict_strategy": operation.strategy}
    if operation.bases:
        meta["base_versions"] = sorted(operation.bases)
    if operation.unit is not None:
        meta["transaction_id"] = operation.unit
    if operation.is_closing:
        meta["transaction_state"] = "commit"
    if operation.session is not None:
        meta["session"] = operation.session
    if operation.call is not None:
        meta["call"] = operation.call
    if operation.after:
        (meta["causal_token"],) = operation.after
    return {"meta": meta, "data": data}


def _outcome(operation: Operation, answer: dict[str, Any]) -> Outcome | None:
    """Return what the answer says happened; None if it does not."""
    if "error" in answer:
        error = answer["error"]
        if error["code"] == NOT_FOUND:
            return NotFound()
        if error["code"] == VERSION_CONFLICT and "current_versions" in error["data"]:
            return Conflict(frozenset(error["data"]["current_versions"]))
        # A close that was refused because of drift is staged; it may be published later on.
        is_open = error["code"] in {OVERLOADED, VERSION_CONFLICT}
        return None if is_open else Refused(error["code"])
    data = answer["result"]["data"]
    if operation.kind == "read":
        return Shown(
            data["state"], {v["version"]: v.get("value", DELETED) for v in data["variants"]}
        )
    return Accepted(data["entity"]["version"], data["entity"].get("value", DELETED))
