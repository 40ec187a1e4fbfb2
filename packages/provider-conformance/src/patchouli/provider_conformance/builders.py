"""Plans and records with sensible defaults, so that a test names only what it is about."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    ChangeKind,
    ChangesPlan,
    Commit,
    Consistency,
    ControlKey,
    Cursor,
    EntityKey,
    Filter,
    IdempotencyProbe,
    IdempotencyRecord,
    Operator,
    Order,
    ReadPlan,
    Retention,
    RetrievePlan,
    ScopeText,
    UnitStaging,
    Version,
    VersionId,
    VersionState,
    WorkUnit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patchouli.provider import Json

SCOPE = ScopeText('{"w":"1"}')
OTHER_SCOPE = ScopeText('{"w":"2"}')
AUTHORITY = Consistency()
ORIGIN = Cursor(0)  # the position before the first change
NOW = 1_700_000_000_000  # where the clock of the suite starts; records are made at this time
FOREVER = Retention(changes_seconds=10**12, idempotency_seconds=10**12, history_seconds=0)


class ManualClock:
    """A clock that stands still until it is told otherwise; it can be set back."""

    def __init__(self, unix_ms: int = NOW) -> None:
        self.now_unix_ms = unix_ms

    def unix_ms(self) -> int:
        """Return the set time."""
        return self.now_unix_ms

    def monotonic(self) -> float:
        """Return the set time in seconds."""
        return self.now_unix_ms / 1000


def canonical(value: Json) -> str:
    """Return the canonical JSON text of `value`."""
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def entity(name: str = "a", *, scope: ScopeText = SCOPE, kind: str = "note") -> EntityKey:
    """Return the key of the entity with the id `name` and the type `kind`."""
    return EntityKey(scope, kind, name)


def version(
    name: str,
    value: Json = None,
    *,
    parents: Iterable[str] = (),
    recorded_at_unix_ms: int = NOW,
) -> Version:
    """Return an active version; without a value it holds `{"text": name}`."""
    return Version(
        id=VersionId(name),
        state=VersionState.ACTIVE,
        value_json=canonical({"text": name} if value is None else value),
        parents=version_ids(parents),
        recorded_at_unix_ms=recorded_at_unix_ms,
    )


def tombstone(
    name: str,
    *,
    parents: Iterable[str] = (),
    recorded_at_unix_ms: int = NOW,
) -> Version:
    """Return a deleted version."""
    return Version(
        id=VersionId(name),
        state=VersionState.DELETED,
        value_json=None,
        parents=version_ids(parents),
        recorded_at_unix_ms=recorded_at_unix_ms,
    )


def version_ids(ids: Iterable[str]) -> tuple[VersionId, ...]:
    """Return `ids` as version ids."""
    return tuple(VersionId(i) for i in ids)


# Any: forwarded to the constructor of the plan, which the type checker cannot see through here.
def commit(
    key: EntityKey,
    *new_versions: Version,
    expected: Iterable[str] = (),
    heads: Iterable[str] | None = None,
    **overrides: Any,
) -> Commit:
    """Return a commit of `new_versions`, which become the heads unless `heads` says otherwise.

    The causal token is `token-` and the id of the first new version.
    """
    expected_heads = version_ids(expected)
    accepted = new_versions[0].id if new_versions else VersionId("none")
    members: dict[str, Any] = {
        "key": key,
        "expected_heads": expected_heads,
        "new_versions": new_versions,
        "head_versions": version_ids([v.id for v in new_versions] if heads is None else heads),
        "accepted": accepted,
        "kind": ChangeKind.UPDATED if expected_heads else ChangeKind.CREATED,
        "causal_token": CausalToken(f"token-{accepted}"),
        "event_meta_json": "{}",
        "recorded_at_unix_ms": max((v.recorded_at_unix_ms for v in new_versions), default=NOW),
    }
    return Commit(**members | overrides)


def create(key: EntityKey, name: str = "v1", value: Json = None, **overrides: Any) -> Commit:
    """Return a commit that makes `key` with one active version."""
    recorded_at = overrides.get("recorded_at_unix_ms", NOW)
    return commit(key, version(name, value, recorded_at_unix_ms=recorded_at), **overrides)


def update(
    key: EntityKey,
    base: str,
    name: str,
    value: Json = None,
    **overrides: Any,
) -> Commit:
    """Return a commit that replaces the single head `base` by one active version."""
    recorded_at = overrides.get("recorded_at_unix_ms", NOW)
    new = version(name, value, parents=[base], recorded_at_unix_ms=recorded_at)
    return commit(key, new, **{"expected": [base], **overrides})


def delete(key: EntityKey, base: str, name: str, **overrides: Any) -> Commit:
    """Return a commit that replaces the single head `base` by a tombstone."""
    new = tombstone(name, parents=[base])
    return commit(key, new, **{"expected": [base], "kind": ChangeKind.DELETED, **overrides})


def read(key: EntityKey, *bases: str, **overrides: Any) -> ReadPlan:
    """Return a read of the heads of `key` and of the named bases."""
    members: dict[str, Any] = {
        "key": key,
        "consistency": AUTHORITY,
        "base_versions": version_ids(bases),
    }
    return ReadPlan(**members | overrides)


def retrieve(**overrides: Any) -> RetrievePlan:
    """Return a retrieval of the whole scope, by ascending id, without bounds that matter."""
    members: dict[str, Any] = {
        "scope": SCOPE,
        "consistency": AUTHORITY,
        "order": Order.ID_ASCENDING,
        "limit": 100,
        "limit_bytes": 1 << 30,
    }
    return RetrievePlan(**members | overrides)


def where(pointer: str, operator: Operator, operand: Json) -> Filter:
    """Return a condition on the value at `pointer`."""
    return Filter(pointer=pointer, operator=operator, operand_json=canonical(operand))


def changes(after: int = 0, **overrides: Any) -> ChangesPlan:
    """Return a page of all retained changes of the scope after a cursor."""
    members: dict[str, Any] = {
        "scope": SCOPE,
        "after": Cursor(after),
        "limit": 256,
        "retained_after_unix_ms": 0,
    }
    return ChangesPlan(**members | overrides)


def control(name: str, *, scope: ScopeText = SCOPE) -> ControlKey:
    """Return a control key of `scope`: a session, an idempotency identity or a work unit."""
    return ControlKey(canonical({"fields": {"key": name}, "scope": json.loads(scope)}))


def probe(identity: ControlKey, request: str = '"request"', **overrides: Any) -> IdempotencyProbe:
    """Return the question whether a request was already accepted under `identity`."""
    members: dict[str, Any] = {
        "identity": identity,
        "request_json": request,
        "now_unix_ms": NOW,
    }
    return IdempotencyProbe(**members | overrides)


def record(identity: ControlKey, request: str = '"request"', **overrides: Any) -> IdempotencyRecord:
    """Return a record of an accepted request, kept for a day."""
    members: dict[str, Any] = {
        "identity": identity,
        "request_json": request,
        "result_json": '"result"',
        "now_unix_ms": NOW,
        "expires_at_unix_ms": NOW + 86_400_000,
    }
    return IdempotencyRecord(**members | overrides)


def unit(name: str = "unit", **overrides: Any) -> WorkUnit:
    """Return a work unit that may stay open for an hour."""
    members: dict[str, Any] = {
        "identity": control(name),
        "scope": SCOPE,
        "policy_json": '{"policy":1}',
        "now_unix_ms": NOW,
        "expires_at_unix_ms": NOW + 3_600_000,
    }
    return WorkUnit(**members | overrides)


def staging(
    work_unit: WorkUnit,
    *,
    close: bool = False,
    request: str = '"request"',
    policy: str = "{}",
    holds: bool = False,
) -> UnitStaging:
    """Return how a commit takes part in `work_unit`."""
    return UnitStaging(
        unit=work_unit,
        conflict_policy_json=policy,
        request_json=request,
        close=close,
        holds_policy=holds,
    )


def closing_again(staged: Commit, work_unit: WorkUnit, heads: Iterable[str]) -> Commit:
    """Return the commit that closes `work_unit` for `staged`, which the unit holds already.

    `heads` are those that the entity has in the unit now.
    """
    present = version_ids(heads)
    request = staged.idempotency.request_json if staged.idempotency is not None else ""
    return replace(
        staged,
        expected_heads=present,
        new_versions=(),
        head_versions=present,
        causal_token=CausalToken(f"{staged.causal_token}-again"),
        staging=staging(work_unit, close=True, request=request),
    )


LATE = 0  # a deadline that has passed whatever the clock says
NEVER = INTEGER_MAX  # a deadline that never passes
