"""The fingerprint of a mutation: what it wants to do, apart from its metadata.

Two requests with one fingerprint are the same mutation asked for twice: it decides whether an
idempotency identity is used again or for something else, and whose close of a work unit is
answered with success.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from patchouli.backend.canonical import canonical_bytes

if TYPE_CHECKING:
    from patchouli.provider import ControlKey

Operation = Literal["create", "delete", "update"]


def request_fingerprint(
    operation: Operation, entity_type: str, entity_id: str | None, value_json: str | None
) -> str:
    """Return the JSON text that stands for an operation and its data.

    `entity_id` is None where the request leaves the choice to the server, which is another request
    than one that names the same id. `value_json` is canonical; None for a delete.
    """
    head = canonical_bytes([operation, entity_type, entity_id])
    value = b"" if value_json is None else value_json.encode()
    return f'"{sha256(head + value).hexdigest()}"'  # the head ends where its bracket closes


def closing_request(identity: ControlKey | None, fingerprint: str) -> str:
    """Return the JSON text by which a work unit remembers who sealed it.

    Whoever names it again is the same request: the same idempotency identity if there is one, else
    the same operation and data.
    """
    return f'{{"fingerprint":{fingerprint}}}' if identity is None else f'{{"identity":{identity}}}'
