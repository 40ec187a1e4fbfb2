"""The OpenRPC description of the wire, made from the models and kept as `data/openrpc.json`.

    python -m patchouli.protocol.openrpc > src/patchouli/protocol/data/openrpc.json

The document says of each method what its `params`, its `result` and its errors are, and, as members
of our own, which capability it needs (`x-capability`), which clause of SPEC describes it
(`x-clause`), and that a notification goes to the client (`x-direction`).
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, cast

from patchouli.protocol.constants import MAX_REQUEST_BYTES, PROTOCOL_VERSION
from patchouli.protocol.errors import ErrorCode
from patchouli.protocol.methods import METHODS
from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from patchouli.protocol.jsonvalue import JsonObject
    from patchouli.protocol.methods import Method
    from pydantic import BaseModel

OPENRPC_VERSION = "1.3.2"

_MEANINGS = {
    ErrorCode.PARSE_ERROR: "The line is not JSON of the profile.",
    ErrorCode.NOT_A_REQUEST: "The line is not one request object, or is too long.",
    ErrorCode.UNKNOWN_METHOD: "There is no such method.",
    ErrorCode.INTERNAL_ERROR: "A fault of the server or of stored bytes.",
    ErrorCode.INVALID_REQUEST: "Params, metadata or value are wrong.",
    ErrorCode.UNAUTHENTICATED: "There was no handshake yet.",
    ErrorCode.FORBIDDEN: "Not permitted; reserved.",
    ErrorCode.NOT_FOUND: "The identity, version, upload or content is unknown.",
    ErrorCode.VERSION_CONFLICT: "The base versions do not fit the heads.",
    ErrorCode.IDEMPOTENCY_CONFLICT: "The same key was used for another mutation.",
    ErrorCode.UNSUPPORTED_CAPABILITY: "Not negotiated, not spoken, or not held here.",
    ErrorCode.DEADLINE_EXCEEDED: "The deadline has passed before acceptance.",
    ErrorCode.OVERLOADED: "It cannot be served now.",
    ErrorCode.CURSOR_EXPIRED: "The cursor is outside the kept log.",
    ErrorCode.WORK_UNIT_EXPIRED: "The work unit has ended unpublished.",
}


def build() -> JsonObject:
    """Return the document; the same models give the same document."""
    models = {model for method in METHODS.values() for model in _models(method)}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    schemas = cast("dict[str, JsonObject]", definitions["$defs"])
    for schema in schemas.values():
        _drop_titles(schema)
    return {
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "Patchouli",
            "version": str(PROTOCOL_VERSION),
            "description": (
                "JSON-RPC 2.0, one object a line of UTF-8, over a local stream socket. Params are "
                f"passed by name. A request line has at most {MAX_REQUEST_BYTES} bytes. SPEC.md of "
                "patchouli-protocol is the contract; its clauses are named in x-clause."
            ),
            "license": {"name": "MIT"},
        },
        "methods": [_method(method, schemas) for method in METHODS.values()],
        "x-frame-errors": [
            _error_ref(code)
            for code in (
                ErrorCode.PARSE_ERROR,
                ErrorCode.NOT_A_REQUEST,
                ErrorCode.UNKNOWN_METHOD,
            )
        ],
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "errors": {code.name: _error(code) for code in _MEANINGS},
        },
    }


def text() -> str:
    """Return the document as the text of its file."""
    return json.dumps(build(), indent=2, ensure_ascii=False) + "\n"


def _models(method: Method[BaseModel]) -> list[type[BaseModel]]:
    return [method.params] if method.result is None else [method.params, method.result]


def _method(method: Method[BaseModel], schemas: dict[str, JsonObject]) -> JsonObject:
    params = schemas[method.params.__name__]
    members = cast("dict[str, JsonObject]", params["properties"])
    required = cast("list[str]", params["required"])
    document: JsonObject = {
        "name": method.name,
        "summary": params["description"],
        "paramStructure": "by-name",
        "params": [
            {
                "name": name,
                "required": name in required,
                "schema": schema,
            }
            for name, schema in members.items()
        ],
        "x-clause": method.section,
    }
    if method.capability is not None:
        document["x-capability"] = method.capability
    if method.result is None:
        document["x-direction"] = "server-to-client"
    else:
        name = method.result.__name__
        document["result"] = {"name": name, "schema": {"$ref": f"#/components/schemas/{name}"}}
        document["errors"] = [_error_ref(code) for code in sorted(method.errors, reverse=True)]
    return document


def _error(code: ErrorCode) -> JsonObject:
    error: JsonObject = {"code": int(code), "message": _MEANINGS[code]}
    if code.reason is not None:
        error["data"] = {"reason": code.reason.value}
    return error


def _error_ref(code: ErrorCode) -> JsonObject:
    return {"$ref": f"#/components/errors/{code.name}"}


def _drop_titles(schema: JsonObject) -> None:
    # The titles that pydantic makes repeat the names of members.
    schema.pop("title", None)
    for member in cast("dict[str, JsonObject]", schema.get("properties", {})).values():
        member.pop("title", None)


if __name__ == "__main__":
    sys.stdout.write(text())
