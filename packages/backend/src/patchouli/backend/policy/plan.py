"""What one request asks for, once its behavior is known.

A `BehaviorPlan` is one behavior of the policy, compiled at start. `BehaviorPlan.select` adds what
depends on the request, and gives the `Selection` that the engine works from. Nothing is weakened to
make a request succeed: what a behavior needs and the request does not carry is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from patchouli.backend.canonical import canonical, jeq
from patchouli.backend.config.models import (
    BatchPublication,
    CausalAfter,
    KeyedIdempotency,
    Serialize,
    SharedSnapshot,
)
from patchouli.backend.errors import InvalidRequestError
from patchouli.backend.pointers import UNBOUND, Unbound
from patchouli.backend.policy.keys import KeyDeriver
from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    Consistency,
    SessionRequirement,
    Source,
    WorkUnit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.backend.config.models import (
        Behavior,
        MergeRule,
        Otherwise,
        Strategy,
    )
    from patchouli.backend.policy.bindings import AliasBinder
    from patchouli.backend.policy.keys import Scope
    from patchouli.provider import ControlKey, Json

_STRATEGIES: dict[object, Strategy] = {"merge": "merge", "mvcc": "mvcc", "reject": "reject"}
_AUTHORITY = frozenset({Source.AUTHORITY})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitDescriptor:
    """The work unit that a request belongs to; its time is added when the request is planned.

    `policy_text` is equal for all requests that may share the unit. `is_closing` says that the
    request carries the closing marker; only a mutation acts on it.
    """

    identity: ControlKey
    policy_text: str
    ttl_ms: int
    is_closing: bool

    def at(self, scope: Scope, *, now_unix_ms: int) -> WorkUnit:
        """Return the unit as a request of this moment names it; its end saturates."""
        return WorkUnit(
            identity=self.identity,
            scope=scope.text,
            policy_json=self.policy_text,
            now_unix_ms=now_unix_ms,
            expires_at_unix_ms=min(now_unix_ms + self.ttl_ms, INTEGER_MAX),
        )


class Selection(NamedTuple):
    """Everything the policy says about one request.

    A tuple, because one is built for every request and a frozen dataclass of this size takes five
    times as long to build; use the names, not the positions.

    Attributes:
        behavior: The compiled behavior; what does not depend on the request is found there and
            under the properties below.
        scope: The scope, its text and its object.
        bindings: Every bound alias and its value, in code-point order of the aliases; the metadata
            of the change event.
        minimum_tokens: The bound causal lower bounds, each once, as the request carries them.
        linearization_key: The linearization domain, if the behavior has one.
        sessions: The sessions of the request and their guarantees.
        ordering_key: The domain in which mutations are accepted one at a time, if there is one.
        strategy: The conflict strategy in force.
        base_versions: The value that names the bases of a mutation, not looked into, or `UNBOUND`.
        idempotency_key: The idempotency identity; None if the behavior has none, or if an alias of
            it is unbound, which a mutation may not be.
        unit: The work unit, if publication is by batch.
    """

    behavior: BehaviorPlan
    scope: Scope
    bindings: Mapping[str, Json]
    minimum_tokens: tuple[Json, ...]
    linearization_key: ControlKey | None
    sessions: tuple[SessionRequirement, ...]
    ordering_key: ControlKey | None
    strategy: Strategy
    base_versions: Json | Literal[Unbound.UNBOUND]
    idempotency_key: ControlKey | None
    unit: UnitDescriptor | None

    @property
    def entity_type(self) -> str:
        """The entity type of the request."""
        return self.behavior.entity_type

    @property
    def rule(self) -> str | None:
        """The name of the rule that was selected, or None for the fallback."""
        return self.behavior.rule

    @property
    def sources(self) -> frozenset[Source]:
        """The sources a read may be served from; mutations use the authority."""
        return self.behavior.sources

    @property
    def causal_aliases(self) -> tuple[str, ...]:
        """The aliases under which every result carries the observed or the new token."""
        return self.behavior.causal_aliases

    @property
    def merge_rules(self) -> tuple[MergeRule, ...]:
        """The merged paths."""
        return self.behavior.merge_rules

    @property
    def otherwise(self) -> Otherwise:
        """What to do where no merge rule can apply."""
        return self.behavior.otherwise

    @property
    def is_keyed(self) -> bool:
        """Whether mutations need an idempotency identity."""
        return self.behavior.is_keyed

    def require_idempotency_key(self) -> ControlKey:
        """Return the idempotency identity of a mutation of a keyed behavior.

        Raises:
            InvalidRequestError: An alias of it is unbound.
        """
        return self.idempotency_key or self.behavior.identity(self.scope, self.bindings)

    @property
    def write_sessions(self) -> tuple[ControlKey, ...]:
        """The sessions whose later reads must see what a mutation of this request writes."""
        return tuple([session.key for session in self.sessions if session.read_your_writes])

    def consistency(self, *, deadline_unix_ms: int | None, is_mutation: bool) -> Consistency:
        """Return what a read of this request must satisfy; a mutation reads from the authority.

        Raises:
            InvalidRequestError: A causal lower bound is not a string.
        """
        for token in self.minimum_tokens:
            if not isinstance(token, str):
                raise self.behavior.bad_token(self.bindings)
        behavior = self.behavior
        return Consistency(
            allowed_sources=behavior.mutation_sources if is_mutation else behavior.sources,
            minimum_tokens=cast("tuple[CausalToken, ...]", self.minimum_tokens),
            sessions=self.sessions,
            linearization_keys=() if self.linearization_key is None else (self.linearization_key,),
            deadline_unix_ms=deadline_unix_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Causal:
    alias: str
    is_optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _SessionPlan:
    key: KeyDeriver
    monotonic_reads: bool
    read_your_writes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnitPlan:
    key: KeyDeriver
    publication_text: str
    marker_alias: str
    marker_value: Json
    ttl_ms: int


class BehaviorPlan:
    """One behavior of one entity type, compiled; immutable."""

    __slots__ = (
        "_binder",
        "_idempotency",
        "_ordering",
        "_requirements",
        "_sessions",
        "_snapshot",
        "_unit",
        "base_versions_alias",
        "causal_aliases",
        "default_strategy",
        "entity_type",
        "is_keyed",
        "merge_rules",
        "mutation_sources",
        "otherwise",
        "rule",
        "sources",
        "strategy_alias",
    )

    def __init__(
        self, entity_type: str, rule: str | None, behavior: Behavior, binder: AliasBinder
    ) -> None:
        consistency, conflict = behavior.consistency, behavior.conflict
        self._binder = binder
        self.entity_type = entity_type
        self.rule = rule
        self._snapshot = (
            KeyDeriver(consistency.snapshot.key_by, binder, "it is part of the snapshot key")
            if isinstance(consistency.snapshot, SharedSnapshot)
            else None
        )
        self._requirements = tuple(
            _Causal(alias=requirement.token, is_optional=requirement.optional)
            if isinstance(requirement, CausalAfter)
            else KeyDeriver(requirement.key_by, binder, "it is part of the linearization domain")
            for requirement in consistency.acquire.requirements
        )
        is_linearizable = any(isinstance(found, KeyDeriver) for found in self._requirements)
        sources = frozenset(map(Source, consistency.acquire.allow_sources))
        self.sources = sources & _AUTHORITY if is_linearizable else sources
        self.mutation_sources = sources & _AUTHORITY
        self.causal_aliases = tuple(
            dict.fromkeys(found.alias for found in self._requirements if isinstance(found, _Causal))
        )
        self._sessions = tuple(
            _SessionPlan(
                key=KeyDeriver(session.key_by, binder, "it is part of the session key"),
                monotonic_reads="monotonic_reads" in session.guarantees,
                read_your_writes="read_your_writes" in session.guarantees,
            )
            for session in consistency.sessions
        )
        ordering = consistency.commit.ordering
        self._ordering = (
            KeyDeriver(ordering.key_by, binder, "it is part of the ordering domain")
            if isinstance(ordering, Serialize)
            else None
        )
        self.default_strategy: Strategy = conflict.default_strategy
        self.strategy_alias = conflict.strategy_from
        self.base_versions_alias = conflict.base_versions
        self.merge_rules = conflict.merge
        self.otherwise: Otherwise = conflict.otherwise
        self._idempotency = (
            KeyDeriver(behavior.idempotency.key_by, binder, "it is part of the idempotency key")
            if isinstance(behavior.idempotency, KeyedIdempotency)
            else None
        )
        self.is_keyed = self._idempotency is not None
        self._unit = _unit_plan(behavior.publication, binder)

    def select(self, scope: Scope, bound: Mapping[str, Json]) -> Selection:
        """Return the selection of a request of this behavior.

        Raises:
            InvalidRequestError: A required alias is unbound, or the strategy is unknown.
        """
        snapshot_key = self._snapshot.derive(scope, bound) if self._snapshot else None
        tokens: tuple[Json, ...] = ()
        linearization_key: ControlKey | None = None
        for requirement in self._requirements:
            if isinstance(requirement, KeyDeriver):
                linearization_key = requirement.derive(scope, bound)
            elif requirement.alias in bound:
                token = bound[requirement.alias]
                if not any(jeq(token, known) for known in tokens):
                    tokens = (*tokens, token)
            elif not requirement.is_optional:
                raise self._binder.missing(
                    requirement.alias, "a read of this type needs a causal token"
                )
        sessions = (
            tuple(
                SessionRequirement(
                    key=session.key.derive(scope, bound),
                    monotonic_reads=session.monotonic_reads,
                    read_your_writes=session.read_your_writes,
                )
                for session in self._sessions
            )
            if self._sessions
            else ()
        )
        ordering_key = None if self._ordering is None else self._ordering.derive(scope, bound)
        strategy = self._strategy(bound)
        return Selection(
            behavior=self,
            scope=scope,
            bindings=bound,
            minimum_tokens=tokens,
            linearization_key=linearization_key,
            sessions=sessions,
            ordering_key=ordering_key,
            strategy=strategy,
            base_versions=bound.get(self.base_versions_alias, UNBOUND),
            idempotency_key=(
                None
                if self._idempotency is None
                else self._idempotency.derive_or_none(scope, bound)
            ),
            unit=(
                None
                if self._unit is None
                else self._described(
                    self._unit, scope, bound, (snapshot_key, linearization_key, ordering_key)
                )
            ),
        )

    def bad_token(self, bound: Mapping[str, Json]) -> InvalidRequestError:
        """Return the refusal of a request whose causal lower bound is not a string."""
        alias = next(a for a in self.causal_aliases if not isinstance(bound.get(a, ""), str))
        pointer = f"meta{self._binder.pointer(alias)}"
        return InvalidRequestError(f"{pointer} must be a causal token, a string", pointer=pointer)

    def identity(self, scope: Scope, bound: Mapping[str, Json]) -> ControlKey:
        """Return the idempotency identity of a mutation; the behavior is keyed.

        Raises:
            InvalidRequestError: An alias of it is unbound.
        """
        assert self._idempotency is not None  # noqa: S101 -- the behavior is keyed
        return self._idempotency.derive(scope, bound)

    def _strategy(self, bound: Mapping[str, Json]) -> Strategy:
        value = bound.get(self.strategy_alias, UNBOUND)
        if value is UNBOUND:
            return self.default_strategy
        strategy = _STRATEGIES.get(value) if type(value) is str else None
        if strategy is None:
            pointer = f"meta{self._binder.pointer(self.strategy_alias)}"
            raise InvalidRequestError(
                f'{pointer} must be one of "merge", "mvcc" and "reject"', pointer=pointer
            )
        return strategy

    def _described(
        self,
        unit: _UnitPlan,
        scope: Scope,
        bound: Mapping[str, Json],
        keys: tuple[ControlKey | None, ControlKey | None, ControlKey | None],
    ) -> UnitDescriptor:
        snapshot, linearization, ordering = (key or "null" for key in keys)
        marker = bound.get(unit.marker_alias, UNBOUND)
        return UnitDescriptor(
            identity=unit.key.derive(scope, bound),
            policy_text=(
                f'{{"snapshot":{snapshot},"publication":{unit.publication_text},'
                f'"linearization":{linearization},"ordering":{ordering}}}'
            ),
            ttl_ms=unit.ttl_ms,
            is_closing=marker is not UNBOUND and jeq(marker, unit.marker_value),
        )


def _unit_plan(publication: object, binder: AliasBinder) -> _UnitPlan | None:
    if not isinstance(publication, BatchPublication):
        return None
    return _UnitPlan(
        key=KeyDeriver(publication.key_by, binder, "it names the work unit"),
        publication_text=canonical(publication.model_dump(mode="json")),
        marker_alias=publication.close_when.field,
        marker_value=publication.close_when.equals,
        ttl_ms=publication.staging_ttl_ms,
    )
