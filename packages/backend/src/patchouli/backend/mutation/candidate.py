"""What takes part in the decision about new heads: stored versions and the proposed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from patchouli.backend.errors import InvalidRequestError
from patchouli.backend.pointers import UNBOUND
from patchouli.provider import Version, VersionId, VersionState

if TYPE_CHECKING:
    from typing import Literal

    from patchouli.backend.pointers import Unbound
    from patchouli.provider import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An active version that may become, or stay, a head."""

    version: Version
    value: Json
    is_proposed: bool = False


def stored_candidate(version: Version) -> Candidate:
    """Return an active version of the store as a candidate."""
    assert version.value_json is not None  # noqa: S101 -- an active version has a value
    return Candidate(version=version, value=orjson.loads(version.value_json))


def proposed_version(
    version: VersionId, value_json: str, bases: tuple[VersionId, ...], *, now_unix_ms: int
) -> Version:
    """Return the version that a create (without bases) or an update asks for."""
    return Version(
        id=version,
        state=VersionState.ACTIVE,
        value_json=value_json,
        parents=bases,
        recorded_at_unix_ms=now_unix_ms,
    )


def tombstone(version: VersionId, bases: tuple[VersionId, ...], *, now_unix_ms: int) -> Version:
    """Return the version that a delete asks for."""
    return Version(
        id=version,
        state=VersionState.DELETED,
        value_json=None,
        parents=bases,
        recorded_at_unix_ms=now_unix_ms,
    )


def base_versions(
    bound: Json | Literal[Unbound.UNBOUND], pointer: str
) -> tuple[VersionId, ...] | InvalidRequestError:
    """Return the base versions that a request names, or why it names none properly.

    The refusal is a value, because an unknown entity is reported before it.
    """
    if bound is UNBOUND:
        return InvalidRequestError(
            f"{pointer} is missing: it names the versions this mutation starts from",
            pointer=pointer,
        )
    if not isinstance(bound, list) or not bound:
        return InvalidRequestError(
            f"{pointer} must be a non-empty array of versions", pointer=pointer
        )
    bases: dict[VersionId, None] = {}
    for base in bound:
        if not isinstance(base, str):
            return InvalidRequestError(f"{pointer} must hold strings", pointer=pointer)
        bases[VersionId(base)] = None
    if len(bases) < len(bound):
        return InvalidRequestError(f"{pointer} must not name a version twice", pointer=pointer)
    return tuple(bases)
