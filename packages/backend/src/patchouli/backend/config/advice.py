"""What a policy may say and probably does not mean: warnings, never errors.

Whether a schema admits a value is found by trying values, so that a warning is never wrong about
the value it names; a schema may still admit others. Requests must carry the aliases of the scope
and of keys in a type without rules; that is what such a policy says, and is not warned about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from patchouli.backend.canonical import canonical
from patchouli.backend.config.dialect import compile_schema, subschemas
from patchouli.backend.config.models import (
    BatchPublication,
    CausalAfter,
    KeyedIdempotency,
    Linearizable,
    Serialize,
    SharedSnapshot,
)
from patchouli.backend.config.places import Place
from patchouli.backend.pointers import compile_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patchouli.backend.config.models import Aliases, Behavior, EntityTypePolicy, Policy
    from patchouli.provider import Json

DURATION_MAX_MS = 2**63 - 1
_CURSOR_MEMBER = "next_cursor"
_STRATEGIES = frozenset({"merge", "mvcc", "reject"})
_STRINGS: tuple[Json, ...] = ("", "other", "MERGE", "Mvcc", "merge ", "x" * 40)
_NO_STRINGS: tuple[Json, ...] = (None, True, 0, 1.5, [], {})
_NO_VERSION_SETS: tuple[Json, ...] = (*_NO_STRINGS[:4], {}, "v", [1], [None], ["v", "v"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWarning:
    """Something allowed that is probably not meant, and what to do; `path` is dotted."""

    path: str
    message: str


def advice(policy: Policy) -> tuple[PolicyWarning, ...]:
    """Return the warnings about `policy`, which must have passed `check_policy`."""
    return tuple(dict.fromkeys(_Advice(policy).all()))


class _Advice:
    """The warnings of one policy; each method yields its own."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.admits: dict[str, Callable[[Json], bool]] = {
            alias: compile_schema(field.json_schema).is_valid
            for alias, field in policy.meta_fields.items()
        }

    def all(self) -> Iterator[PolicyWarning]:
        yield from self.retention()
        for alias in sorted(self.policy.meta_fields):
            yield from self.float_values(alias)
        for name in sorted(self.policy.entity_types):
            yield from self.entity_type(Place(("entity_types", name)), name)

    def retention(self) -> Iterator[PolicyWarning]:
        retention = self.policy.retention
        place = Place(("retention",))
        for name in ("idempotency_seconds", "changes_seconds", "history_seconds"):
            seconds: int | None = getattr(retention, name)
            if seconds is not None and seconds * 1000 > DURATION_MAX_MS:
                yield _warning(
                    place / name,
                    "the time does not fit into 64 bits of milliseconds and is taken as endless. "
                    f"Write {DURATION_MAX_MS // 1000} or less.",
                )
        configured, effective = retention.history_seconds, self.policy.history_seconds
        if configured is not None and configured != effective:
            yield _warning(
                place / "history_seconds",
                "history must last as long as changes, stored results and open batches, so that "
                f"{effective} seconds are kept. Write {effective} or more, or 0 for all history.",
            )

    def float_values(self, alias: str) -> Iterator[PolicyWarning]:
        if alias in self.policy.entity_identity.scope_by and self.admits[alias](0.5):
            yield _warning(
                Place(("meta_fields", alias, "schema")),
                "numbers with a fraction are valid here and would be part of the scope, where 1 "
                "and 1.0 are different and other spellings are possible. Admit strings or integers "
                "only.",
            )

    def entity_type(self, place: Place, name: str) -> Iterator[PolicyWarning]:
        entity_type = self.policy.entity_types[name]
        earlier: list[tuple[int, frozenset[str]]] = []
        for index, rule in enumerate(entity_type.rules):
            here = place / "rules" / index
            aliases = frozenset(rule.when.all_present)
            by = next((i for i, tested in earlier if tested <= aliases), None)
            if by is not None:
                yield _warning(
                    here,
                    f"the rule can never be selected, because rules[{by}] takes every request that "
                    "it would take. Put it before that rule, or remove it.",
                )
            earlier.append((index, aliases))
            for alias in rule.when.all_present:
                if self.policy.meta_fields[alias].json_schema is False:
                    yield _warning(
                        here / "when" / "all_present",
                        f'"{alias}" has the schema false, so that the rule can never be selected. '
                        "Admit values, or remove the rule.",
                    )
            yield from self.unguaranteed(here / "behavior", rule.behavior, aliases)
            yield from self.behavior(here / "behavior", rule.behavior)
        yield from self.impossible_fallback(place / "fallback", entity_type)
        yield from self.behavior(place / "fallback", entity_type.fallback)

    def unguaranteed(
        self, place: Place, behavior: Behavior, guaranteed: frozenset[str]
    ) -> Iterator[PolicyWarning]:
        """Warn of keys that a request selected by the rule need not have."""
        for key, aliases in _keys(place, behavior):
            for alias in aliases:
                if alias not in guaranteed:
                    yield _warning(
                        key,
                        f'"{alias}" is needed here, but the rule also takes requests without it, '
                        "which are then refused. Add it to all_present, or make sure that clients "
                        "send it.",
                    )

    def impossible_fallback(
        self, place: Place, entity_type: EntityTypePolicy
    ) -> Iterator[PolicyWarning]:
        """Warn of keys that no request which reaches the fallback can have."""
        taken = {
            rule.when.all_present[0]: rule.name
            for rule in entity_type.rules
            if len(rule.when.all_present) == 1
        }
        for key, aliases in _keys(place, entity_type.fallback):
            for alias in aliases:
                if alias in taken:
                    yield _warning(
                        key,
                        f'"{alias}" is needed here, but the rule "{taken[alias]}" takes every '
                        "request that carries it, so that all others are refused. Use another key.",
                    )

    def behavior(self, place: Place, behavior: Behavior) -> Iterator[PolicyWarning]:
        yield from self.causal(place / "consistency" / "acquire" / "requirements", behavior)
        conflict = place / "conflict"
        strategy = behavior.conflict.strategy_from
        admitted = self.first_admitted(strategy, (*_STRINGS, *self.spelled_out(strategy)))
        if admitted is not None:
            yield _warning(
                conflict / "strategy_from",
                f'the schema of "{strategy}" admits {admitted}, which is refused as a strategy. '
                'Give it the schema {"enum": ["merge", "mvcc", "reject"]}.',
            )
        bases = behavior.conflict.base_versions
        admitted = self.first_admitted(bases, _NO_VERSION_SETS)
        if admitted is not None:
            yield _warning(
                conflict / "base_versions",
                f'the schema of "{bases}" admits {admitted}, which is refused as a set of '
                'versions. Give it a schema of type "array" with items of type "string" and '
                '"uniqueItems": true.',
            )
        if isinstance(behavior.publication, BatchPublication):
            yield from self.batch(place / "publication", behavior.publication)

    def causal(self, place: Place, behavior: Behavior) -> Iterator[PolicyWarning]:
        optional: dict[str, bool] = {}
        for index, requirement in enumerate(behavior.consistency.acquire.requirements):
            if not isinstance(requirement, CausalAfter):
                continue
            alias = requirement.token
            if optional.setdefault(alias, requirement.optional) != requirement.optional:
                yield _warning(
                    place / index / "optional",
                    f'"{alias}" is required once and optional once; it is required. Keep one.',
                )
            admitted = self.first_admitted(alias, _NO_STRINGS)
            if admitted is not None:
                yield _warning(
                    place / index / "token",
                    f'the schema of "{alias}" admits {admitted}, but a causal token is a string. '
                    'Give it the schema {"type": "string"}.',
                )
            if compile_pointer(self.policy.meta_fields[alias].pointer)[0] == _CURSOR_MEMBER:
                yield _warning(
                    place / index / "token",
                    f'"{alias}" stands at "/{_CURSOR_MEMBER}", where a retrieval puts its own '
                    "cursor in place of the token. Point to another member.",
                )

    def batch(self, place: Place, publication: BatchPublication) -> Iterator[PolicyWarning]:
        marker = publication.close_when
        if not self.admits[marker.field](marker.equals):
            yield _warning(
                place / "close_when" / "equals",
                f'the schema of "{marker.field}" does not admit {_shown(marker.equals)}, so that a '
                "batch can never be closed. Write a value that it admits.",
            )
        if publication.staging_ttl_ms > DURATION_MAX_MS:
            yield _warning(
                place / "staging_ttl_ms",
                "the time does not fit into 64 bits and is taken as endless. "
                f"Write {DURATION_MAX_MS} or less.",
            )

    def first_admitted(self, alias: str, values: tuple[Json, ...]) -> str | None:
        """Return the first of `values` that the schema of `alias` admits, as JSON."""
        return next((_shown(value) for value in values if self.admits[alias](value)), None)

    def spelled_out(self, alias: str) -> tuple[Json, ...]:
        """Return the strings that the schema of `alias` lists and that are no strategy."""
        listed: list[Any] = []
        for _, part in subschemas(self.policy.meta_fields[alias].json_schema):
            listed += [*part.get("enum", []), part.get("const")]
        strings = [value for value in listed if isinstance(value, str)]
        return tuple(value for value in strings if value not in _STRATEGIES)


def _keys(place: Place, behavior: Behavior) -> Iterator[tuple[Place, Aliases]]:
    """Yield every key of `behavior` with its place, the derived ones in their order."""
    consistency = behavior.consistency
    here = place / "consistency"
    if isinstance(consistency.snapshot, SharedSnapshot):
        yield here / "snapshot" / "key_by", consistency.snapshot.key_by
    for index, requirement in enumerate(consistency.acquire.requirements):
        if isinstance(requirement, Linearizable):
            yield here / "acquire" / "requirements" / index / "key_by", requirement.key_by
    for index, session in enumerate(consistency.sessions):
        yield here / "sessions" / index / "key_by", session.key_by
    if isinstance(consistency.commit.ordering, Serialize):
        yield here / "commit" / "ordering" / "key_by", consistency.commit.ordering.key_by
    if isinstance(behavior.idempotency, KeyedIdempotency):
        yield place / "idempotency" / "key_by", behavior.idempotency.key_by
    if isinstance(behavior.publication, BatchPublication):
        yield place / "publication" / "key_by", behavior.publication.key_by


def _warning(place: Place, message: str) -> PolicyWarning:
    return PolicyWarning(path=place.dotted, message=message)


def _shown(value: object) -> str:
    return canonical(cast("Json", value))
