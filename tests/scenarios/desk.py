"""A person at a daemon: one request after the other over its socket, and a restart between any two.

How the daemon ends between two requests is one of `Ending`: not at all, in order, or by a kill.
"""

from __future__ import annotations

import copy
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from patchouli.protocol import CREATE, DELETE, READ, RETRIEVE, SUBSCRIBE, UPDATE
from patchouli.provider_sqlite.testing import check_truth, read_contents
from patchouli.server.home import create_home
from patchouli.server.testing import (
    ARTIFACT_METADATA,
    META,
    DaemonProcess,
    Peer,
    serving,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from patchouli.provider_sqlite.testing import Contents


class Ending(StrEnum):
    """What happens between two requests."""

    NEVER = "one run"
    STOP = "restarts"
    KILL = "kills"


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a mutation."""

    meta: dict[str, Any]
    id: str
    version: str
    value: Any


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer to a read."""

    meta: dict[str, Any]
    state: str
    values: dict[str, Any]  # by version; a deleted one has None


class RefusedError(Exception):
    """A request was refused, for this reason and with this data."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.data: Final[dict[str, Any]] = error["data"]
        self.reason: Final[str] = error["data"]["reason"]
        self.code: Final[int] = error["code"]


class Desk:
    """One home, one daemon at a time, one request at a time."""

    def __init__(self, home: Path, ending: Ending) -> None:
        """Prepare a daemon of `home` with the policy of `use`."""
        self.home: Final = home
        self._ending: Final = ending
        self._cleanup = AsyncExitStack()
        self._daemon: DaemonProcess | None = None
        self._endpoint: Path | None = None
        self._peer: Peer | None = None
        create_home(home)

    @property
    def is_one_run(self) -> bool:
        """Whether one daemon serves all requests."""
        return self._ending is Ending.NEVER

    def use(self, policy: dict[str, Any]) -> None:
        """Have the next daemon read this policy."""
        (self.home / "config.json").write_text(json.dumps(policy), encoding="utf-8")

    async def restart(self) -> None:
        """End the daemon, if there is one; the next request starts another."""
        daemon = self._daemon
        self._daemon = self._endpoint = self._peer = None
        if daemon is not None and self._ending is Ending.KILL:
            daemon.kill()
        await self._cleanup.aclose()

    async def end(self) -> None:
        """End the daemon in order; what it leaves must be sound."""
        self._daemon = self._endpoint = self._peer = None
        await self._cleanup.aclose()
        database = self.home / "data" / "patchouli.db"
        if database.exists():
            check_truth(database)

    async def close(self) -> Contents:
        """End the daemon in order and return what it leaves."""
        await self.end()
        return read_contents(self.home / "data" / "patchouli.db")

    async def call(self, method: str, data: dict[str, Any], **meta: Any) -> dict[str, Any]:
        """Return the result of a request, which is the first of its daemon unless there is one run.

        A member of `meta` that is `...` is left out.

        Raises:
            RefusedError: It was refused.
        """
        peer = await self._connected()
        whole = {name: value for name, value in {**META, **meta}.items() if value is not ...}
        response = await peer.call(method, {"meta": whole, "data": data})
        if self._ending is not Ending.NEVER:
            await self.restart()
        if "error" in response:
            raise RefusedError(response["error"])
        return response["result"]

    async def _connected(self) -> Peer:
        if self._peer is None:
            if self._endpoint is None:
                self._endpoint = await self._serve()
            peer = await Peer.connect(self._endpoint, capabilities=["artifacts", "subscriptions"])
            self._peer = await self._cleanup.enter_async_context(peer)
        return self._peer

    async def _serve(self) -> Path:
        if self._ending is Ending.KILL:
            self._daemon = self._cleanup.enter_context(DaemonProcess(self.home))
            return self._daemon.endpoint
        served = await self._cleanup.enter_async_context(serving(settings_of(self.home)))
        return served.endpoint

    async def create(
        self, value: Any, name: str = "k", *, type_: str = "knowledge", **meta: Any
    ) -> Told:
        """Create an entity."""
        data = {"type": type_, "id": name, "value": value}
        return _told(await self.call(CREATE, data, **meta))

    async def update(
        self, bases: Any, value: Any, name: str = "k", *, type_: str = "knowledge", **meta: Any
    ) -> Told:
        """Update an entity from some versions, or from what mutations were told."""
        data = {"ref": {"type": type_, "id": name}, "value": value}
        return _told(await self.call(UPDATE, data, base_versions=_versions(bases), **meta))

    async def delete(
        self, bases: Any, name: str = "k", *, type_: str = "knowledge", **meta: Any
    ) -> Told:
        """Delete an entity from some versions, or from what mutations were told."""
        data = {"ref": {"type": type_, "id": name}}
        return _told(await self.call(DELETE, data, base_versions=_versions(bases), **meta))

    async def read(self, name: str = "k", *, type_: str = "knowledge", **meta: Any) -> Seen:
        """Read an entity."""
        result = await self.call(READ, {"ref": {"type": type_, "id": name}}, **meta)
        variants = result["data"]["variants"]
        values = {variant["version"]: variant.get("value") for variant in variants}
        return Seen(result["meta"], result["data"]["state"], values)

    async def find(
        self,
        query: dict[str, Any] | str,
        *,
        limit: int = 10,
        types: list[str] | None = None,
        **meta: Any,
    ) -> tuple[list[str], str | None]:
        """Return the ids of one page, and the cursor of the next one."""
        text = query if isinstance(query, str) else json.dumps(query)
        data = {"query": text, "limit": limit, "types": types}
        result = await self.call(RETRIEVE, data, **meta)
        ids = [hit["variants"][0]["ref"]["id"] for hit in result["data"]["hits"]]
        return ids, result["meta"].get("next_cursor")

    async def subscribe(self, after: str | None = None) -> str:
        """Return the boundary of a subscription that is given up at once."""
        result = await self.call(SUBSCRIBE, {"after_cursor": after})
        await self._hang_up()
        return result["data"]["cursor"]

    async def events(self, until: int) -> list[dict[str, Any]]:
        """Return the first changes of the scope, as many as there should be by now."""
        peer = await self._connected()
        await peer.result(SUBSCRIBE, {"meta": META, "data": {"after_cursor": "0"}})
        found = [(await peer.notification())["params"]["data"]["change"] for _ in range(until)]
        await self._hang_up()
        return found

    async def _hang_up(self) -> None:
        """End the connection, so that no events come between the answers."""
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.close()
        if self._ending is not Ending.NEVER:
            await self.restart()


async def refusal(request: Any) -> RefusedError:
    """Return the refusal of a request that must be refused."""
    try:
        answer = await request
    except RefusedError as error:
        return error
    raise AssertionError(f"this was answered with {answer}")


def _told(result: dict[str, Any]) -> Told:
    entity = result["data"]["entity"]
    return Told(result["meta"], entity["ref"]["id"], entity["version"], entity.get("value"))


def _versions(bases: Any) -> list[str]:
    if isinstance(bases, Told):
        return [bases.version]
    return [base.version if isinstance(base, Told) else base for base in bases]


def knowledge(content: Any, *, marker: int | None = None, **members: Any) -> dict[str, Any]:
    """Return a knowledge value; a text stands for a text content."""
    metadata = copy.deepcopy(ARTIFACT_METADATA)
    metadata["core"]["schema"] = "patchouli.knowledge@1"
    if marker is not None:
        metadata["extensions"] = {"acme.marker": {"n": marker}}
    if isinstance(content, str):
        content = {"kind": "text", "text": content}
    return {
        "content": content,
        "metadata": metadata,
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "unknown"},
            "ownership": "user",
            "abstraction": "instance",
            "persistence": "long_term",
            "retrieval": ["exact"],
            "actionability": "informational",
        },
        **members,
    }


def structured(value: Any) -> dict[str, Any]:
    """Return a structured content."""
    return {"kind": "structured", "value": value}


def texts(seen: Seen | Iterable[Any]) -> list[Any]:
    """Return the texts of all variants, in order of the texts."""
    values = seen.values.values() if isinstance(seen, Seen) else seen
    return sorted(value["content"]["text"] for value in values)


def markers(seen: Seen) -> list[int]:
    """Return the markers of all variants, ascending."""
    return sorted(v["metadata"]["extensions"]["acme.marker"]["n"] for v in seen.values.values())
