"""An agent of the tour: what it asks of the daemon, in its own words."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any, Final

from patchouli.server.caller import Caller, RefusedError

META: Final = {"workspace_id": "travel", "user_id": "mira"}


class Agent(Caller):
    """A connection of one agent, which writes and reads knowledge in the scope of the tour."""

    def create(
        self, name: str, text: str, *, meta: dict[str, Any] | None = None, **profile: str
    ) -> dict[str, Any]:
        """Write new knowledge and return its version."""
        data = {"type": "knowledge", "id": name, "value": _knowledge(text, profile)}
        return self.call("patchouli.entity.create@1", params_of(data, meta))["data"]["entity"]

    def read(self, name: str) -> dict[str, Any]:
        """Return the state and the variants of an entity."""
        data = {"ref": {"type": "knowledge", "id": name}}
        return self.call("patchouli.entity.read@1", params_of(data))["data"]

    def exists(self, name: str) -> bool:
        """Return whether there ever was such an entity."""
        try:
            self.read(name)
        except RefusedError as error:
            if error.reason == "NOT_FOUND":
                return False
            raise
        return True

    def update(
        self,
        name: str,
        text: str,
        bases: list[str],
        meta: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write another text over `bases` and return what it became."""
        current = self.read(name)["variants"][0]["value"]
        value = {**current, "content": {"kind": "text", "text": text}}
        data = {"ref": {"type": "knowledge", "id": name}, "value": value}
        params = params_of(data, {"base_versions": bases, **(meta or {})})
        return self.call("patchouli.entity.update@1", params)["data"]["entity"]

    def delete(self, name: str, bases: list[str]) -> None:
        """Delete an entity."""
        data = {"ref": {"type": "knowledge", "id": name}}
        self.call("patchouli.entity.delete@1", params_of(data, {"base_versions": bases}))

    def retrieve(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the hits of a query."""
        data = {"query": json.dumps(query), "types": ["knowledge"]}
        return self.call("patchouli.entity.retrieve@1", params_of(data))["data"]["hits"]

    def download(self, name: str, size: int) -> bytes:
        """Return the bytes of an artifact, fetched `size` at a time."""
        received = b""
        version = None
        while True:
            part = self.call(
                "patchouli.artifact.download.chunk@1",
                params_of(
                    {"id": name, "version": version, "offset": len(received), "max_bytes": size}
                ),
            )["data"]
            version = part["entity"]["version"]
            received += base64.b64decode(part["bytes_base64"])
            if part["eof"]:
                return received


def params_of(data: dict[str, Any], meta: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `params` of a request in the scope of the tour."""
    return {"meta": {**META, **(meta or {})}, "data": data}


def text_of(version: dict[str, Any]) -> str:
    """Return what a version says."""
    return version["value"]["content"]["text"]


def _knowledge(text: str, profile: dict[str, str]) -> dict[str, Any]:
    return {
        "content": {"kind": "text", "text": text},
        "metadata": metadata_of("patchouli.knowledge@1"),
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "timeless"},
            "ownership": "user",
            "abstraction": "instance",
            "persistence": "short_term",
            "retrieval": ["exact", "contextual"],
            "actionability": "informational",
            **profile,
        },
    }


def metadata_of(schema: str) -> dict[str, Any]:
    """Return metadata of a fact that is made now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return {
        "core": {
            "schema": schema,
            "scope": {
                "tenant": None,
                "workspace": META["workspace_id"],
                "user": META["user_id"],
                "session": None,
            },
            "origin": {
                "provider": "patchouli-db",
                "binding": "tour",
                "native_type": None,
                "native_id": None,
                "native_revision": None,
            },
            "time": {
                "event_at": None,
                "source_created_at": None,
                "source_updated_at": None,
                "observed_at": now,
                "ingested_at": now,
            },
            "lifecycle": {"status": "active", "expires_at": None},
            "provenance": [
                {"kind": "observed", "actor": "plugin:tour", "source": None, "recorded_at": now}
            ],
        },
        "extensions": {},
    }
