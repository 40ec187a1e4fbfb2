"""What the engine asks of a provider: reads, commits, publications, retrievals, change pages.

Every plan is complete: a provider answers it in one atomic step, without asking back. Times are
Unix milliseconds of the engine's clock; a deadline has passed when the provider's own clock is at
or beyond it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from patchouli.provider.record import record
from patchouli.provider.records import Source

if TYPE_CHECKING:
    from patchouli.provider.identity import (
        CausalToken,
        ControlKey,
        Cursor,
        EntityKey,
        ScopeText,
        VersionId,
    )
    from patchouli.provider.records import ChangeKind, Version


@record
class Retention:
    """How long a store keeps what is no longer current, at least.

    Changes for `changes_seconds`. Superseded versions and the identities of finished work units for
    `history_seconds`; 0 keeps these for ever. The engine lets history be no shorter than the other
    two and than a work unit may stay open. Idempotency records carry their own end.
    """

    changes_seconds: int
    idempotency_seconds: int
    history_seconds: int


@record
class SessionRequirement:
    """A session whose frontiers bound a read from below, and which the read may advance."""

    key: ControlKey
    monotonic_reads: bool
    read_your_writes: bool


_AUTHORITY_ONLY = frozenset({Source.AUTHORITY})


@record
class Consistency:
    """What a read must be at least as new as, where it may come from, and until when."""

    allowed_sources: frozenset[Source] = _AUTHORITY_ONLY
    minimum_tokens: tuple[CausalToken, ...] = ()
    sessions: tuple[SessionRequirement, ...] = ()
    linearization_keys: tuple[ControlKey, ...] = ()
    deadline_unix_ms: int | None = None


@record
class WorkUnit:
    """A work unit as one request names it; the first request to reach the store opens it.

    A later request whose `scope` or `policy_json` differs is refused, whatever the state.
    `expires_at_unix_ms` counts only for the request that opens the unit.
    """

    identity: ControlKey
    scope: ScopeText
    policy_json: str
    now_unix_ms: int
    expires_at_unix_ms: int


@record
class IdempotencyProbe:
    """A question whether a mutation was already accepted."""

    identity: ControlKey
    request_json: str
    now_unix_ms: int


@record
class ReadPlan:
    """Read the heads of one entity, and for a mutation also what it will need to decide.

    `base_versions` are looked up whether or not they are heads; unknown ones are left out of the
    reading. `with_divergence` asks for the divergence of the active heads and the bases when the
    two sets differ.
    """

    key: EntityKey
    consistency: Consistency
    base_versions: tuple[VersionId, ...] = ()
    with_divergence: bool = False
    idempotency: IdempotencyProbe | None = None
    unit: WorkUnit | None = None


@record
class IdempotencyRecord:
    """The stored answer of an accepted mutation; absent from `expires_at_unix_ms` on."""

    identity: ControlKey
    request_json: str
    result_json: str
    now_unix_ms: int
    expires_at_unix_ms: int


@record
class UnitStaging:
    """How a commit takes part in a work unit.

    `conflict_policy_json` is given back by a drifted close: that of the entity's last mutation, or
    of the last one with `holds_policy`, if there was any. `request_json` fingerprints the request;
    the one that seals the unit is remembered, so that only its repetition is answered with success.
    """

    unit: WorkUnit
    conflict_policy_json: str
    request_json: str
    close: bool
    holds_policy: bool = False


@record
class Commit:
    """Replace the heads of one entity, if they still are `expected_heads` (as a set).

    Empty `expected_heads` mean that the entity must not exist. `head_versions` is the complete new
    head set, in order, of new versions and of present heads that stay; `accepted` is the version
    the request will be answered with. `new_versions` stand parents before children. Some may be no
    heads: a proposal that was merged at once is kept as a parent of what it was merged into, and is
    superseded by the very change that publishes it. `base_versions` and `with_divergence` say what
    a `Raced` outcome has to bring. In a work unit `kind` is derived again when the unit is
    published.

    A commit without new versions only closes a unit: its mutation was staged before, under the
    `idempotency` identity that it names, with the version `accepted`. `head_versions` repeat
    `expected_heads`, and what was staged for the entity stays as it is.
    """

    key: EntityKey
    expected_heads: tuple[VersionId, ...]
    new_versions: tuple[Version, ...]
    head_versions: tuple[VersionId, ...]
    accepted: VersionId
    kind: ChangeKind
    causal_token: CausalToken
    event_meta_json: str
    recorded_at_unix_ms: int
    deadline_unix_ms: int | None = None
    ordering_key: ControlKey | None = None
    write_sessions: tuple[ControlKey, ...] = ()
    base_versions: tuple[VersionId, ...] = ()
    with_divergence: bool = False
    idempotency: IdempotencyRecord | None = None
    staging: UnitStaging | None = None


@record
class Resolution:
    """New heads of one drifted entity, valid only against the two head sets it was made from.

    `causal_token` is one more name for the position at which the entity will be published, beside
    the tokens of the mutations that were staged for it.
    """

    key: EntityKey
    expected_published_heads: tuple[VersionId, ...]
    expected_staged_heads: tuple[VersionId, ...]
    new_versions: tuple[Version, ...]
    head_versions: tuple[VersionId, ...]
    causal_token: CausalToken | None = None


@record
class Publish:
    """Publish a sealed unit with one resolution per drifted entity, or discard it.

    Without resolutions it asks whether the drift has gone. `results` replaces stored idempotent
    answers by the final ones, so that a replay says what the close said.
    """

    unit: WorkUnit
    resolutions: tuple[Resolution, ...] = ()
    results: tuple[tuple[ControlKey, str], ...] = ()
    recorded_at_unix_ms: int
    deadline_unix_ms: int | None = None
    discard: bool = False


class Operator(StrEnum):
    """Comparison of a filter; the meaning of each is `patchouli.provider.holds`."""

    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    LESS = "less_than"
    LESS_OR_EQUAL = "less_than_or_equal"
    GREATER = "greater_than"
    GREATER_OR_EQUAL = "greater_than_or_equal"
    CONTAINS = "contains"


@record
class Filter:
    """A condition on the value at a JSON Pointer; `operand_json` is canonical JSON text."""

    pointer: str
    operator: Operator
    operand_json: str


class Order(StrEnum):
    """Result order of a retrieval. Each is total: see `patchouli.provider.sort_key`."""

    RELEVANCE = "relevance"
    NEWEST = "newest"
    OLDEST = "oldest"
    ID_ASCENDING = "id_asc"
    ID_DESCENDING = "id_desc"


@record
class Position:
    """The place of one hit in its order; a page continues strictly after it."""

    score: float
    recorded_at_unix_ms: int
    type: str
    id: str


@record
class RetrievePlan:
    """Find entities of one scope by text, filters, types and ids, in an order, page by page.

    `text` and every filter must hold on one and the same active head. A page ends at `limit`
    entities, or before it when the values of its heads exceed `limit_bytes` (at least one hit).
    """

    scope: ScopeText
    consistency: Consistency
    order: Order
    limit: int
    limit_bytes: int
    types: tuple[str, ...] | None = None
    ids: frozenset[str] | None = None
    text: str | None = None
    filters: tuple[Filter, ...] = ()
    after: Position | None = None
    unit: WorkUnit | None = None


@record
class ChangesPlan:
    """Read published changes of a scope strictly after a cursor, ascending, at most `limit`.

    `types` and `ids` restrict; `limit` counts what passed them. A page ends before `limit` when the
    UTF-8 bytes of its event metadata exceed `limit_bytes` (at least one change). Changes recorded
    before `retained_after_unix_ms` count as pruned.
    """

    scope: ScopeText
    after: Cursor
    limit: int
    retained_after_unix_ms: int
    types: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    limit_bytes: int | None = None


@record
class ReferencesPlan:
    """Read what versions of one type name at a JSON Pointer, `limit` entities at a time.

    All scopes are looked through, in an order that the store chooses; `after` is the `reached` of
    the page before.
    """

    type: str
    pointer: str
    limit: int
    after: EntityKey | None = None


@record
class CompactionPlan:
    """Take one step of compaction that removes at most `limit` things.

    `with_due` asks how many are left, which costs as much as there is to count: for a person who
    watches, not for a timer.
    """

    limit: int
    with_due: bool = False
