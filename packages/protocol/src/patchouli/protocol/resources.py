"""The documents that come with the package: JSON Schemas of the facts, and the API description."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from patchouli.protocol.jsonvalue import JsonObject

FACT_COMMON_URN: Final = "urn:patchouli:schema:fact-common:1"
ARTIFACT_URN: Final = "urn:patchouli:schema:artifact:1"
KNOWLEDGE_URN: Final = "urn:patchouli:schema:knowledge:1"
KNOWLEDGE_RELATION_URN: Final = "urn:patchouli:schema:knowledge-relation:1"

_SCHEMA_FILES: Final = {
    FACT_COMMON_URN: "fact-common.json",
    ARTIFACT_URN: "artifact.json",
    KNOWLEDGE_URN: "knowledge.json",
    KNOWLEDGE_RELATION_URN: "knowledge-relation.json",
}


def schemas() -> dict[str, JsonObject]:
    """Return the JSON Schemas of the fact vocabulary by URN; the caller may change what it gets."""
    return {urn: _document(f"schemas/{name}") for urn, name in _SCHEMA_FILES.items()}


def openrpc_document() -> JsonObject:
    """Return the OpenRPC description of every method; the caller may change what it gets."""
    return _document("openrpc.json")


def _document(name: str) -> JsonObject:
    return cast("JsonObject", json.loads(_text(name)))


@cache
def _text(name: str) -> str:
    return files("patchouli.protocol").joinpath("data", name).read_text(encoding="utf-8")
