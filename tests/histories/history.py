"""What concurrent clients asked for and were told, with the order in which they saw it happen.

`invoked` and `responded` count on one clock that grows with every event: an operation precedes
another one when it was answered before the other one was sent. All that was sent and never answered
may have happened at any time after it was sent, or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["create", "read", "update", "delete", "publish"]
Strategy = Literal["merge", "mvcc", "reject"]


class Entity(NamedTuple):
    """An entity on the wire; the user names its scope."""

    user: str
    type: str
    id: str


class _Deleted:
    """The one value of a tombstone."""

    def __repr__(self) -> str:
        return "DELETED"


DELETED: Final = _Deleted()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The mutation was done; `value` is DELETED for a tombstone."""

    version: str
    value: Any

    def __str__(self) -> str:
        return f"accepted as {self.version[-6:]}"


@dataclass(frozen=True, slots=True)
class Shown:
    """A read showed these variants, by version."""

    state: str
    variants: dict[str, Any]

    @property
    def heads(self) -> frozenset[str]:
        """The versions that were shown."""
        return frozenset(self.variants)

    def __str__(self) -> str:
        return f"{self.state} {short(self.variants)}"


@dataclass(frozen=True, slots=True)
class NotFound:
    """The entity did not exist."""

    def __str__(self) -> str:
        return "not found"


@dataclass(frozen=True, slots=True)
class Conflict:
    """The mutation was refused, and this is the head set that it met."""

    heads: frozenset[str]

    def __str__(self) -> str:
        return f"conflict with {short(self.heads)}"


@dataclass(frozen=True, slots=True)
class Refused:
    """The operation was refused for a reason that says nothing about the entity."""

    code: int

    def __str__(self) -> str:
        return f"refused with {self.code}"


@dataclass(frozen=True, slots=True)
class Published:
    """A work unit brought these heads; it had staged versions, of which some are tombstones."""

    heads: frozenset[str]
    staged: frozenset[str]
    tombstones: frozenset[str]

    def __str__(self) -> str:
        return f"published as {short(self.heads)}"


Outcome = Accepted | Shown | NotFound | Conflict | Refused | Published


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request about one entity.

    Attributes:
        number: Its number, from 1; it travels in the metadata, so the change names it.
        client: The connection that sent it.
        bases: The base versions of an update or delete.
        value: The value of a create or update.
        responded: None, as `outcome`, if no answer came or the answer does not say what happened.
        unit: The work unit that it belongs to.
        is_closing: Whether it carries the marker that closes its unit.
        session: The session that it belongs to.
        after: The causal tokens that it must not be older than.
        token: The causal token that the answer brought.
        call: The idempotency key, with which it may have been sent more than once.
    """

    number: int
    client: int
    kind: Kind
    entity: Entity
    invoked: int
    responded: int | None = None
    outcome: Outcome | None = None
    bases: frozenset[str] = frozenset()
    strategy: Strategy = "merge"
    value: Any = None
    unit: str | None = None
    is_closing: bool = False
    session: str | None = None
    after: tuple[str, ...] = ()
    token: str | None = None
    call: str | None = None

    def precedes(self, other: Operation) -> bool:
        """Whether it was answered before the other one was sent."""
        return self.responded is not None and self.responded < other.invoked

    def __str__(self) -> str:
        about = f" from {short(self.bases)} by {self.strategy}" if self.bases else ""
        where = f" in {self.unit}" if self.unit else ""
        until = "…" if self.responded is None else self.responded
        told = "no answer" if self.outcome is None else self.outcome
        return (
            f"{self.invoked}-{until} client {self.client}: "
            f"{self.kind} {self.entity.id}{about}{where}: {told}"
        )


class Change(NamedTuple):
    """One change as the change stream tells it.

    `operation` is the number of the (last) mutation that made it, `unit` the work unit that
    published it; `token` is its own causal token, where the policy has one. The stream tells
    nothing of an entity that a unit both made and deleted, although it is deleted from then on:
    `is_hidden`.
    """

    cursor: str
    entity: Entity
    kind: str
    heads: frozenset[str]
    operation: int
    unit: str | None = None
    token: str | None = None
    is_hidden: bool = False


class HistoryError(AssertionError):
    """No run of the system that keeps its promise can have told this history."""


def short(versions: Any) -> str:
    """Return versions for reading: their ends, which differ."""
    return "{" + ", ".join(sorted(version[-6:] for version in versions)) + "}"


def versions_of(operations: Any) -> dict[str, Any]:
    """Return the value of each version that anybody was told.

    Raises:
        HistoryError: Two told different values of one version, which never changes, or a version
            was told of two entities.
    """
    values: dict[str, Any] = {}
    owners: dict[str, Entity] = {}
    for operation in operations:
        match operation.outcome:
            case Accepted(version, value):
                told = {version: value}
            case Shown(variants=variants):
                told = variants
            case _:
                continue
        for version, value in told.items():
            if owners.setdefault(version, operation.entity) != operation.entity:
                raise HistoryError(f"{version} is told of two entities, last by {operation}")
            known = values.setdefault(version, value)
            if known is not value and (known is DELETED or value is DELETED or known != value):
                raise HistoryError(f"{version} has two values, last by {operation}")
    return values
